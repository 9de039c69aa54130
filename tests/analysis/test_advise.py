"""Advice against brute force and closed forms."""

import dataclasses

import numpy as np
import pytest

from analysis.advise import lowest_loss, next_trials, optimum
from analysis.fit import fit_envelope, fit_power_law, fit_surface
from analysis.ladder import of_runs, rungs
from analysis.laws import LossSurface
from analysis.result import Caveat, Status
from tinyllm.config import ModelConfig

LAW = LossSurface(A=406.4, B=410.7, E=1.69, alpha=0.34, beta=0.28)
MODEL = ModelConfig(depth=4, aspect_ratio=64, vocab_size=32768, seq_len=2048)
N, D = (g.ravel() for g in np.meshgrid(np.geomspace(1e7, 1e9, 6), np.geomspace(1e9, 1e11, 6)))
FIT = fit_surface(N, D, LAW.loss(N, D) * np.exp(0.001 * np.random.default_rng(0).standard_normal(36)), bootstrap=200)


def test_budget_size_and_tokens_ask_the_same_question():
    by_flops = optimum(FIT, flops=1e20)
    assert by_flops.n == pytest.approx(FIT.law.n_opt(1e20))
    assert optimum(FIT, n=by_flops.n).flops == pytest.approx(1e20)
    assert optimum(FIT, d=by_flops.d).flops == pytest.approx(1e20)
    assert optimum(FIT, d=by_flops.d).n == pytest.approx(by_flops.n)
    assert by_flops.n in by_flops.n_interval


def test_ladder_advice_is_the_best_of_all_depths_under_exact_flops():
    c = 1e20
    advice = optimum(FIT, flops=c, ladder=MODEL)
    losses = {}
    for depth in range(1, 60):
        model = dataclasses.replace(MODEL, depth=depth)
        losses[depth] = FIT.law.loss(model.counts.with_head, c / model.flops_per_token)
    assert advice.depth == min(losses, key=losses.get)
    chosen = dataclasses.replace(MODEL, depth=advice.depth)
    assert advice.n == chosen.counts.with_head
    assert advice.d * chosen.flops_per_token == pytest.approx(c)
    assert advice.loss.value == pytest.approx(losses[advice.depth])
    assert advice.n_continuous == pytest.approx(FIT.law.n_opt(c))


def test_a_table_without_a_ladder_says_that_it_uses_six_n_d():
    bare, real = optimum(FIT, flops=1e20), optimum(FIT, flops=1e20, ladder=MODEL)
    assert [warn.kind for warn in bare.warnings] == [Caveat.NO_LADDER]
    assert real.warnings == ()
    assert 6 * bare.n * bare.d == pytest.approx(1e20)


def test_extrapolation_is_stated_and_warned_of():
    largest = float((6 * N * D).max())
    near, edge, far = (optimum(FIT, flops=factor * largest, ladder=MODEL) for factor in (0.1, 10, 10.1))
    assert near.extrapolation == 1 and near.warnings == ()
    # The factor is one of compute, though neither N nor D of the advice is that far out.
    assert edge.extrapolation == pytest.approx(10) and edge.warnings == ()
    assert far.extrapolation == pytest.approx(10.1) and far.loss.beyond < 10
    assert [warn.kind for warn in far.warnings] == [Caveat.EXTRAPOLATION]
    (said,) = far.warnings
    assert "10 times the largest compute of the data" in said.detail
    below = optimum(FIT, flops=float((6 * N * D).min()) / 1000)
    assert "1,000 times below the smallest compute" in below.warnings[-1].detail
    assert below.warnings[-1].kind == Caveat.EXTRAPOLATION
    path = fit_envelope(6 * N * D, N, D, LAW.loss(N, D))
    assert optimum(path, flops=30 * path.domain["flops"][1]).extrapolation == pytest.approx(30)


def test_a_best_size_that_was_not_tried_is_only_a_bound():
    few = N < 2e8
    small = fit_surface(N[few], D[few], LAW.loss(N[few], D[few]))
    big = [warn for warn in optimum(small, flops=6e18).warnings if warn.kind == Caveat.OPTIMUM_OUTSIDE_GRID]
    assert small.law.n_opt(6e18) > N[few].max() and "at least" in big[0].detail
    inside = optimum(FIT, flops=1e20).warnings
    assert not any(warn.kind == Caveat.OPTIMUM_OUTSIDE_GRID for warn in inside)


def test_a_size_known_to_a_factor_of_ten_at_most_is_advice():
    c = 1e20
    low, high = (float(np.quantile(FIT.law_draws.n_opt(c), q)) for q in (0.05, 0.95))
    assert high < 10 * low and optimum(FIT, flops=c).identified

    def stretched(by):
        """FIT with log N* of each draw `by` times as far from the fit's."""
        away = np.log(FIT.law_draws.n_opt(c) / FIT.law.n_opt(c))
        gamma = FIT.draws["alpha"] + FIT.draws["beta"]
        return dataclasses.replace(FIT, draws={**FIT.draws, "A": FIT.draws["A"] * np.exp((by - 1) * away * gamma)})

    # The factor that the interval spans is raised to the power by which its ends move apart.
    for wanted, known in ((9.9, True), (10.1, False)):
        fit = stretched(np.log(wanted) / np.log(high / low))
        advice = optimum(fit, flops=c)
        assert advice.n_interval.high / advice.n_interval.low == pytest.approx(wanted, rel=0.01)
        assert advice.identified == known
        assert any("more than a factor of 10" in warn.detail for warn in advice.warnings) != known


def test_an_exponent_that_may_be_zero_is_no_advice():
    rng = np.random.default_rng(0)
    c = np.geomspace(1e17, 1e18, 5)
    n = LAW.n_opt(1e17) * np.exp(0.6 * rng.standard_normal(5))
    loss = 2 + (c / 1e17) ** -0.3
    fit = fit_envelope(c, n, c / (6 * n), loss)
    assert len(fit.used) >= 3 and 0 in fit.intervals["n_exponent"]
    assert fit.status == Status.NOT_IDENTIFIED and fit.has(Caveat.WIDE_INTERVAL)
    assert not optimum(fit, flops=1e18).identified
    assert envelope(slice(0, 5)).status == Status.CONVERGED


def test_an_envelope_of_two_sizes_is_no_law():
    two = np.isin(N, np.unique(N)[[1, 3]])
    fit = fit_envelope(6 * N[two] * D[two], N[two], D[two], LAW.loss(N[two], D[two]))
    assert fit.status == Status.NOT_IDENTIFIED and fit.intervals["n_exponent"].high == np.inf
    assert "2 model sizes, 3 are the least" in str([warn.detail for warn in fit.warnings])
    assert not optimum(fit, flops=1e20).identified


def test_an_envelope_advises_the_nearest_depth():
    c = 6 * N * D
    fit = fit_envelope(c, N, D, LAW.loss(N, D))
    advice = optimum(fit, flops=1e20, ladder=MODEL)
    sizes = rungs(MODEL)
    assert advice.depth == min(sizes, key=lambda rung: abs(np.log(rung.n / fit.law.n_opt(1e20)))).depth
    assert advice.loss.value == pytest.approx(fit.law.loss(1e20))


def test_mistakes_are_refused():
    with pytest.raises(ValueError, match="exactly one positive number"):
        optimum(FIT, flops=1e20, n=1e8)
    with pytest.raises(ValueError, match="exactly one positive number"):
        optimum(FIT)
    with pytest.raises(ValueError, match="exactly one positive number"):
        optimum(FIT, flops=-1.0)
    with pytest.raises(ValueError, match="PowerLaw has no optimum"):
        optimum(fit_power_law([1.0, 2.0, 3.0], [3.0, 2.5, 2.2]), flops=1e20)
    with pytest.raises(ValueError, match="bootstrap draws"):
        next_trials(fit_surface(N, D, LAW.loss(N, D)), target_flops=1e22)
    with pytest.raises(ValueError, match="PowerLaw has no optimum"):
        next_trials(fit_power_law([1.0, 2.0, 3.0], [3.0, 2.5, 2.2]), target_flops=1e20)


def test_lowest_loss_over_a_ladder_is_a_lower_envelope():
    sizes = rungs(MODEL, depths=range(2, 30))
    c = np.geomspace(1e18, 1e21, 5)
    lowest = lowest_loss(LAW, c, sizes)
    for rung in sizes:
        assert (lowest <= LAW.loss(rung.n, c / rung.flops_per_token) + 1e-12).all()
    assert lowest_loss(LAW, 1e20) == pytest.approx(LAW.loss(LAW.n_opt(1e20), LAW.d_opt(1e20)))


def test_next_trial_does_what_it_promises():
    """Adding the advised trial, many times over, shrinks the interval at the target by about the gain it states."""
    target = 100 * float((6 * N * D).max())
    trials = next_trials(FIT, target_flops=target, count=100)
    assert trials == sorted(trials, key=lambda trial: trial.gain / trial.flops, reverse=True)
    assert all(trial.flops <= target / 10 and 0.05 <= trial.gain <= 1 for trial in trials)
    best = max(trials, key=lambda trial: trial.gain)

    def variance(n, d, seed):
        errors = np.exp(0.001 * np.random.default_rng(seed).standard_normal(len(n)))
        fit = fit_surface(n, d, LAW.loss(n, d) * errors, objective="log_mse")
        return np.log(fit.law.loss(LAW.n_opt(target), LAW.d_opt(target)))

    before = np.var([variance(N, D, seed) for seed in range(60)])
    after = np.var([variance(np.append(N, best.n), np.append(D, best.d), seed) for seed in range(60)])
    # 60 sweeps a side: the ratio of variances has a standard error of about 26 %.
    assert after / before == pytest.approx(1 - best.gain, abs=0.3)


def test_ladder_of_a_sample_gives_the_recorded_counts_and_flops(sample_runs):
    model = of_runs(sample_runs)
    records = sample_runs.records.drop_duplicates("depth").set_index("depth")
    for rung in rungs(model, depths=tuple(records.index)):
        assert rung.n == records.loc[rung.depth, "n_params_with_head"]
        assert rung.flops_per_token == records.loc[rung.depth, "flops_per_token"]


def test_odd_widths_are_no_rungs():
    assert [
        rung.depth for rung in rungs(ModelConfig(aspect_ratio=15, vocab_size=64, seq_len=8), depths=range(1, 7))
    ] == [
        2,
        4,
        6,
    ]


PATH_C = np.geomspace(1e17, 1e20, 6)
PATH_N, PATH_D = LAW.n_opt(PATH_C), LAW.d_opt(PATH_C)


def envelope(points=slice(None)):
    """Runs at the optimum of each compute, so that all of them lie on the envelope."""
    errors = np.exp(1e-4 * np.random.default_rng(1).standard_normal(6))
    n, d = PATH_N[points], PATH_D[points]
    return fit_envelope(PATH_C[points], n, d, LAW.loss(n, d) * errors[points], draws=20_000)


@pytest.mark.parametrize("points", [slice(0, 5), slice(0, 4), slice(0, 3)], ids=["5 points", "4 points", "3 points"])
def test_gain_on_an_envelope_is_that_of_one_more_point_on_a_line(points):
    """Of least squares through known errors: 1 - t'(X'X + ff')^-1 t / t'(X'X)^-1 t, however few the points."""
    fit, c = envelope(points), PATH_C[points]
    assert len(fit.used) == len(c)
    target = 100 * c[-1]
    trials = next_trials(fit, target_flops=target, count=100)
    assert len(trials) > 5

    def variance(flops):
        design = np.column_stack([np.ones(len(flops)), np.log(flops)])
        row = np.array([1.0, np.log(target)])
        return row @ np.linalg.inv(design.T @ design) @ row

    for trial in trials:
        assert trial.flops <= target / 10
        assert trial.flops == pytest.approx(6 * trial.n * trial.d)
        assert trial.n == pytest.approx(fit.law.n_opt(trial.flops))
        assert trial.gain == pytest.approx(1 - variance(np.append(c, trial.flops)) / variance(c), abs=0.03)


def test_no_trial_is_advised_that_was_measured(sample_runs):
    points = sample_runs.best()
    fit = fit_surface(points.n, points.d, points.loss, clusters=points.clusters, bootstrap=200)
    target, ladder = 10 * float(points.flops.max()), of_runs(sample_runs)

    def measured(trials):
        return [t for t in trials if (np.isclose(points.n, t.n) & (np.abs(points.d / t.d - 1) < 0.09)).any()]

    assert measured(next_trials(fit, target_flops=target, ladder=ladder, count=100))
    again = next_trials(fit, target_flops=target, ladder=ladder, points=points, count=100)
    assert again and not measured(again)


def test_trials_of_an_envelope_are_models_of_the_ladder():
    sizes = {rung.depth: rung for rung in rungs(MODEL)}
    trials = next_trials(envelope(), target_flops=1e22, ladder=MODEL)
    assert trials
    for trial in trials:
        rung = sizes[trial.depth]
        assert (trial.n, trial.flops) == pytest.approx((rung.n, rung.flops_per_token * trial.d))


def test_a_fit_that_lacks_sizes_or_budgets_ranks_no_trial():
    one_size = fit_surface(np.full(6, 1e8), D[: 6 * 6 : 6], LAW.loss(1e8, D[: 6 * 6 : 6]), bootstrap=20)
    with pytest.raises(ValueError, match="no trial can be ranked: 1 model size cannot separate"):
        next_trials(one_size, target_flops=1e22)
    with pytest.raises(ValueError, match="no trial can be ranked: the envelope holds 1 model size, 3 are the least"):
        next_trials(fit_envelope(PATH_C, np.full(6, 1e8), PATH_C / 6e8, LAW.loss(1e8, PATH_C / 6e8)), target_flops=1e22)
    assert next_trials(envelope(), target_flops=1e22)
