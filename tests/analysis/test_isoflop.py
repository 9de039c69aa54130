"""Approach 2 against the closed form and a published fit."""

import numpy as np
import pytest

from analysis.isoflop import fit_isoflop, fit_levels, group_levels
from analysis.laws import LossSurface
from analysis.result import Caveat, Reason, Status

CHINCHILLA = LossSurface(A=406.4, B=410.7, E=1.69, alpha=0.34, beta=0.28)
SYMMETRIC = LossSurface(A=400.0, B=400.0, E=1.69, alpha=0.31, beta=0.31)


def sweep(law, low, high, budgets=(1e17, 1e18, 1e19, 1e20, 1e21), sizes=15):
    """Runs at each budget with sizes from `low` to `high` times the optimum, D = C / 6N."""
    c = np.repeat(budgets, sizes)
    n = law.n_opt(c) * np.tile(np.geomspace(low, high, sizes), len(budgets))
    return c, n, c / (6 * n), law.loss(n, c / (6 * n))


@pytest.mark.parametrize(("spread", "bias"), [(2, -0.327), (4, -1.301), (8, -2.903), (16, -5.100)])
def test_parabola_bias_is_as_in_closed_form_and_warned_of(spread, bias):
    fit = fit_isoflop(*sweep(CHINCHILLA, 1 / spread, spread))
    found = 100 * (fit.law.d_opt(1e24) / CHINCHILLA.d_opt(1e24) - 1)
    assert found == pytest.approx(bias, abs=0.01)
    assert fit.has(Caveat.PARABOLA_BIAS)


def test_symmetric_surface_has_no_parabola_bias():
    fit = fit_isoflop(*sweep(SYMMETRIC, 1 / 16, 16))
    assert fit.law.d_opt(1e24) == pytest.approx(SYMMETRIC.d_opt(1e24), rel=1e-9)
    assert not fit.has(Caveat.PARABOLA_BIAS)


def test_porian_with_their_interpolation_and_weights(published):
    table = published("porian_rw_tuned")
    fit = fit_isoflop(table["flops"], table["n"], table["tokens"], table["loss"], method="akima", level=0.95)
    assert fit.law.a == pytest.approx(0.497, abs=0.004)
    assert fit.intervals["n_exponent"].low == pytest.approx(0.4907, abs=0.006)
    assert fit.intervals["n_exponent"].high == pytest.approx(0.5045, abs=0.006)


@pytest.mark.parametrize("method", ["parabola", "akima"])
@pytest.mark.parametrize(("low", "high", "bound"), [(2, 20, "upper bound"), (0.05, 0.5, "lower bound")])
def test_optimum_outside_the_grid_is_only_a_bound(method, low, high, bound):
    c, n, d, loss = (
        np.concatenate(pair)
        for pair in zip(
            sweep(CHINCHILLA, 1 / 8, 8, budgets=(1e17, 1e18, 1e19)),
            sweep(CHINCHILLA, low, high, budgets=(1e20,)),
            strict=True,
        )
    )
    fit = fit_isoflop(c, n, d, loss, method=method, noise=1e-4)
    assert fit.has(Caveat.OPTIMUM_OUTSIDE_GRID)
    assert any(bound in warn.detail for warn in fit.warnings)
    assert set(fit.left_out.values()) == {Reason.OUTSIDE_GRID}
    assert len(fit.left_out) == 15
    inside = fit_isoflop(*sweep(CHINCHILLA, 1 / 8, 8), method=method, noise=1e-4)
    assert not inside.has(Caveat.OPTIMUM_OUTSIDE_GRID)


def test_concave_curve_is_left_out():
    c, n, d, loss = sweep(CHINCHILLA, 1 / 4, 4)
    bent = c == 1e21
    loss = np.where(bent, 2 * loss[bent].min() - loss, loss)
    fit = fit_isoflop(c, n, d, loss)
    assert fit.has(Caveat.CONCAVE_ISOFLOP)
    assert set(fit.left_out.values()) == {Reason.CONCAVE}
    assert not fit_isoflop(*sweep(CHINCHILLA, 1 / 4, 4)).has(Caveat.CONCAVE_ISOFLOP)


def test_two_budgets_are_a_line_by_construction():
    fit = fit_isoflop(*sweep(CHINCHILLA, 1 / 4, 4, budgets=(1e18, 1e20)))
    assert fit.status == Status.NOT_IDENTIFIED
    assert fit.has(Caveat.FEW_BUDGETS) and fit.has(Caveat.PERFECT_BY_CONSTRUCTION)
    assert fit.intervals["n_exponent"].high == np.inf
    three = fit_isoflop(*sweep(CHINCHILLA, 1 / 4, 4, budgets=(1e18, 1e19, 1e20)))
    assert three.status == Status.CONVERGED
    assert not three.has(Caveat.FEW_BUDGETS) and not three.has(Caveat.PERFECT_BY_CONSTRUCTION)


def test_three_sizes_a_budget_leave_no_residual():
    fit = fit_isoflop(*sweep(CHINCHILLA, 1 / 4, 4, sizes=3))
    assert fit.has(Caveat.PERFECT_BY_CONSTRUCTION)


def test_one_budget_is_refused_with_what_is_missing():
    with pytest.raises(ValueError, match=r"at 2 budgets at least, found 1 of 2 \(the others: 1 too_few_sizes"):
        fit_isoflop(*(np.concatenate([a, b[:2]]) for a, b in zip(
            sweep(CHINCHILLA, 1 / 4, 4, budgets=(1e20,)), sweep(CHINCHILLA, 1 / 4, 4, budgets=(1e18,)), strict=True
        )))  # fmt: skip
    with pytest.raises(ValueError, match="method='spline': take parabola or akima"):
        fit_isoflop([1.0], [1.0], [1.0], [1.0], method="spline")


def test_budgets_rounded_to_whole_steps_are_one_level():
    flops = np.array([1.00e18, 1.03e18, 2.0e18, 0.98e18, 2.05e18])
    assert [sorted(rows.tolist()) for rows in group_levels(flops)] == [[0, 1, 3], [2, 4]]


def test_level_keeps_its_parabola_for_the_figure():
    c, n, d, loss = sweep(SYMMETRIC, 1 / 4, 4, budgets=(1e18,))
    (level,) = fit_levels(c, n, d, loss)
    assert level.curve is not None
    assert level.curve(level.n_opt) == pytest.approx(level.loss_opt)
    assert level.n_opt == pytest.approx(SYMMETRIC.n_opt(1e18), rel=1e-9)
