"""The held-out check: silent where the law holds, loud where it does not."""

import dataclasses

import numpy as np
import pandas as pd
import pytest

from analysis.backtest import backtest, held_out, select
from analysis.laws import LossSurface
from analysis.result import Caveat, Reason
from analysis.runs import load

LAW = LossSurface(A=406.4, B=410.7, E=1.69, alpha=0.34, beta=0.28)


def as_points(n, d, loss):
    return load(pd.DataFrame({"n_params": n, "tokens": d, "loss": loss})).best()


def grid(sizes=7, horizons=6, noise=0.002, bend=0.0):
    n, d = (g.ravel() for g in np.meshgrid(np.geomspace(1e6, 1e8, sizes), np.geomspace(1e8, 3.2e9, horizons)))
    errors = noise * np.random.default_rng(0).standard_normal(len(n))
    # A bend: past 1e9 tokens the loss falls faster than the law of the smaller budgets.
    extra = bend * np.maximum(0, np.log(d / 1e9))
    return as_points(n, d, LAW.loss(n, d) * np.exp(errors - extra))


def test_a_law_that_holds_predicts_the_largest_budget():
    found = backtest(grid())
    assert found.approach == "surface"
    assert len(found.ids) == 7
    assert np.abs(found.error).max() < 0.012
    assert (found.low < found.high).all()
    assert 0.8 < found.drift < 1.25
    assert found.warnings == ()


def test_losses_without_noise_do_not_drift_by_rounding():
    assert backtest(grid(noise=0.0)).warnings == ()


def test_a_law_that_bends_drifts():
    found = backtest(grid(bend=0.02, noise=0.0005))
    assert any(warn.kind == Caveat.BACKTEST_DRIFT for warn in found.warnings)
    assert (found.error < 0).all()


def test_held_out_points_are_not_in_the_fit():
    points = grid()
    found = backtest(points)
    assert not set(found.ids) & set(found.fit.used)
    assert all(found.fit.left_out[point] == Reason.HELD_OUT for point in found.ids)
    assert set(found.ids) | set(found.fit.used) == set(points.ids)


def test_too_few_budgets_for_a_surface_fall_back_to_the_envelope():
    found = backtest(grid(horizons=3))
    assert found.approach == "envelope"
    # A pure power law has no floor: over a factor of 6 in compute it promises too much, by 5.7 %.
    assert (found.error > 0).all() and found.error.max() < 0.08


def test_budgets_are_levels_of_compute_for_isoflop_runs():
    c = np.repeat(np.geomspace(1e17, 1e20, 4), 7)
    n = LAW.n_opt(c) * np.tile(np.geomspace(0.25, 4, 7), 4)
    points = as_points(n, c / (6 * n), LAW.loss(n, c / (6 * n)))
    out = held_out(points, 1)
    assert out.sum() == 7
    assert points.flops[out].min() > points.flops[~out].max()


def test_selection_keeps_the_rivals_of_what_is_kept():
    table = pd.DataFrame(
        {"n_params": [1e6, 1e6, 2e6, 2e6], "tokens": 1e8, "lr": [0.01, 0.02] * 2, "loss": [3.0, 3.1, 2.9, 2.8]}
    )
    points = load(table).best()
    kept = select(points, np.array([False, True]))
    assert kept.loss.tolist() == [2.8]
    assert kept.rivals.cell.tolist() == [0, 0]
    assert sorted(np.exp(kept.rivals.gap)) == pytest.approx([1.0, 2.9 / 2.8])
    assert dataclasses.replace(kept, left_out={}).n.tolist() == [2e6]


def test_nothing_to_fit_is_refused():
    with pytest.raises(ValueError, match=r"cannot hold out 1 of 2 budgets: 2 must be left to fit, so run more$"):
        backtest(grid(horizons=2))
    with pytest.raises(ValueError, match="cannot hold out 0 of 6 budgets"):
        backtest(grid(), budgets=0)
