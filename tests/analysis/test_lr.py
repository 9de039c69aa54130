"""The LR law against one that is known."""

import numpy as np
import pandas as pd
import pytest

from analysis.lr import fit_lr_optimum, optima
from analysis.result import Caveat, Reason, Status
from analysis.runs import load

LRS = np.geomspace(0.0025, 0.08, 6)


def table(sizes=(1e5, 1e6, 1e7), tokens=(1e8, 1e9), lrs=LRS, noise=0.0, seed=0):
    """Losses with a parabola in log LR around lr* = 2 N^-.2 D^-.1, which lies inside the grid."""
    n, d, lr = (g.ravel() for g in np.meshgrid(sizes, tokens, lrs, indexing="ij"))
    best = 2.0 * n**-0.2 * d**-0.1
    loss = 3.0 + 0.05 * (np.log(lr) - np.log(best)) ** 2 + noise * np.random.default_rng(seed).standard_normal(len(n))
    return pd.DataFrame({"n_params": n, "tokens": d, "lr": lr, "loss": loss})


def test_known_law_is_recovered():
    fit = fit_lr_optimum(load(table()))
    assert fit.status == Status.CONVERGED
    assert fit.law.n_exponent == pytest.approx(-0.2, abs=1e-9)
    assert fit.law.d_exponent == pytest.approx(-0.1, abs=1e-9)
    assert fit.law(3e6, 5e8) == pytest.approx(2.0 * 3e6**-0.2 * 5e8**-0.1, rel=1e-9)
    assert fit.warnings == ()


def test_interval_holds_the_truth_under_noise():
    fit = fit_lr_optimum(load(table(noise=0.002)), level=0.99)
    assert -0.2 in fit.intervals["n_exponent"]
    assert fit.predict(1e8, 1e9).interval.low < 2.0 * 1e8**-0.2 * 1e9**-0.1 < fit.predict(1e8, 1e9).interval.high


def test_minimum_at_the_edge_is_left_out_as_a_bound():
    cut = table().query("not (n_params == 1e5 and lr > .02)")
    fit = fit_lr_optimum(load(cut))
    assert fit.has(Caveat.LR_AT_EDGE)
    assert list(fit.left_out.values()).count(Reason.OUTSIDE_GRID) == len(fit.left_out) > 0
    assert fit.law.n_exponent == pytest.approx(-0.2, abs=1e-9)


def test_one_size_leaves_its_exponent_unknown():
    fit = fit_lr_optimum(load(table(sizes=(1e6,), tokens=(1e8, 1e9, 1e10))))
    assert fit.status == Status.NOT_IDENTIFIED
    assert fit.has(Caveat.FEW_SIZES)
    assert fit.law.n_exponent == 0
    assert fit.intervals["n_exponent"].high == np.inf
    assert fit.law.d_exponent == pytest.approx(-0.1, abs=1e-9)


def test_without_a_bracketed_minimum_the_law_is_the_mean_of_the_best():
    fit = fit_lr_optimum(load(table(lrs=(0.001, 0.002))))
    assert fit.status == Status.NOT_IDENTIFIED
    assert fit.law(1e6, 1e9) == pytest.approx(0.002)


def test_optima_say_why_there_is_none():
    cells = optima(load(table(lrs=LRS[:2])))
    assert set(cells["reason"]) == {Reason.OUTSIDE_GRID}
    with pytest.raises(ValueError, match="needs the column lr"):
        fit_lr_optimum(load(table().drop(columns="lr")))
