"""The winner's curse against closed forms, and against losses whose truth is known."""

import numpy as np
import pandas as pd
import pytest
from scipy.stats import norm

from analysis import choice
from analysis.laws import LossSurface
from analysis.result import Caveat
from analysis.runs import load
from benchmarks.coverage import CHOICES, LAW, NOISE, simulate_choice


@pytest.mark.parametrize(("count", "mean"), [(1, 0.0), (2, -0.56419), (3, -0.84628), (5, -1.16296)])
def test_of_equals_the_bias_is_the_mean_of_the_lowest_normal(count, mean):
    found = choice.bias(np.zeros(count, int), np.zeros(count), np.full(count, 0.01))
    # 1,000 draws of the lowest of them: a standard error of at most .03.
    assert found == pytest.approx([0.01 * mean], abs=0.01 * 0.06)


@pytest.mark.parametrize("gap", [0.0, 0.5, 1.0, 2.0, 10.0])
def test_the_bias_of_two_fades_with_their_gap(gap):
    """E[min(X, Y)] of normals a `gap` apart, by Clark 1961."""
    spread = np.sqrt(2)
    expected = -spread * (norm.pdf(gap / spread) - gap / spread * norm.sf(gap / spread))
    found = choice.bias(np.array([0, 0, 1]), np.array([0.0, gap, 0.0]), np.ones(3))
    assert found == pytest.approx([expected, 0.0], abs=0.06)
    assert (found <= 0).all()


def candidates(noise, cells=30, lrs=5, seed=0):
    """cell, gap, lr, seeds, n, d and the true shape: a parabola whose place falls with n."""
    rng = np.random.default_rng(seed)
    n, d = np.geomspace(1e5, 1e7, cells), np.tile([1e8, 2e8, 4e8], cells // 3)
    cell, step = np.repeat(np.arange(cells), lrs), np.tile(np.arange(lrs) - lrs // 2, cells)
    mu = 0.01 * (step + 0.3 * np.log(n / 1e6)[cell] / np.log(10)) ** 2
    loss = mu + noise * rng.standard_normal(len(mu))
    gap = loss - np.array([loss[cell == k].min() for k in range(cells)])[cell]
    return (cell, gap, 0.02 * 1.5**step, np.ones(len(cell)), n, d), mu


def test_the_shape_and_the_noise_about_it_are_found():
    given, truth = candidates(0.002)
    mu, noise = choice.shape(*given)
    assert noise == pytest.approx(0.002, rel=0.25)
    cell = given[0]
    for k in range(30):
        near = (cell == k) & choice._near(*given[:3])
        error = (mu - truth)[near]
        assert np.abs(error - error.mean()).max() < 0.0025


def test_too_few_candidates_show_no_noise():
    given, _ = candidates(0.002, cells=3, lrs=3)
    mu, noise = choice.shape(*given)
    assert noise is None
    np.testing.assert_array_equal(mu, given[1])


@pytest.mark.parametrize("design", CHOICES)
def test_what_is_fitted_is_not_low_by_its_choice(design):
    rng = np.random.default_rng(7)
    points = [simulate_choice(CHOICES[design], rng) for _ in range(30)]
    raw = np.mean([np.log(p.loss / LAW.loss(p.n, p.d)).mean() for p in points])
    corrected = np.mean([np.log(p.corrected_loss / LAW.loss(p.n, p.d)).mean() for p in points])
    ties = CHOICES[design] < NOISE
    # 8 trunks chosen a sweep, half of whose variance is common: the mean of 30 sweeps errs by about .0001.
    assert abs(corrected) < 0.0004
    assert (raw < -0.002) == ties
    warned = [any(warn.kind == Caveat.CHOICE_BIAS for warn in p.warnings) for p in points]
    assert not ties or all(warned)


def runs(gaps, seeds=(0,), noise=0.0, tokens=(1e8, 2e8, 4e8)):
    """4 sizes by some token counts at LRs whose losses lie `gaps` of log loss above the best."""
    law = LossSurface(A=406.4, B=410.7, E=1.69, alpha=0.34, beta=0.28)
    rng = np.random.default_rng(0)
    rows = [
        {
            "n_params": n,
            "tokens": d,
            "lr": 0.01 * 2**k,
            "seed": seed,
            "loss": law.loss(n, d) * np.exp(gap + noise * rng.standard_normal()),
        }
        for n in (1e6, 2e6, 4e6, 8e6)
        for d in tokens
        for k, gap in enumerate(gaps)
        for seed in seeds
    ]
    return load(pd.DataFrame(rows))


@pytest.mark.parametrize(
    ("made", "warned"),
    [
        (lambda: runs((0.0,)), False),
        (lambda: runs((0.1, 0.0)), False),
        (lambda: runs((0.002, 0.0), noise=0.003), True),
        (lambda: runs((0.002, 0.0), tokens=(1e8,)), True),
        (lambda: runs((0.1, 0.0, 0.1), seeds=(0, 1), noise=0.003), False),
        (lambda: runs((0.0, 0.0, 0.0), seeds=(0, 1), noise=0.003), True),
    ],
    ids=["one LR", "two apart", "two near", "noise unknown", "three apart", "three equal"],
)
def test_near_ties_are_warned_of(made, warned):
    points = made().best()
    assert any(warn.kind == Caveat.CHOICE_BIAS for warn in points.warnings) == warned
    assert (points.choice_bias <= 0).all()
    known = not any("nothing shows that error" in warn.detail for warn in points.warnings)
    assert (points.choice_bias.min() < -choice.MATTERS) == (warned and known)


def test_more_seeds_leave_less_to_choose_from():
    few, many = (runs((0.0, 0.0, 0.0), seeds=range(k), noise=0.003).best().choice_bias.mean() for k in (2, 8))
    assert few < 1.5 * many < 0
