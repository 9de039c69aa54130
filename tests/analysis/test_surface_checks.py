"""What a surface fit must admit, each on data that must raise it and on data that must not."""

import numpy as np
import pytest

from analysis.fit import fit_surface
from analysis.laws import LossSurface
from analysis.result import Caveat, Status

LAW = LossSurface(A=406.4, B=410.7, E=1.69, alpha=0.34, beta=0.28)
FLOORLESS = LossSurface(A=406.4, B=410.7, E=0.0, alpha=0.2, beta=0.2)


def grid(sizes=6, horizons=6, law=LAW, noise=0.0, seed=0):
    n, d = (g.ravel() for g in np.meshgrid(np.geomspace(1e6, 1e9, sizes), np.geomspace(1e8, 1e11, horizons)))
    return n, d, law.loss(n, d) * np.exp(noise * np.random.default_rng(seed).standard_normal(len(n)))


def test_clean_data_that_reach_the_floor_raise_nothing():
    n, d = (g.ravel() for g in np.meshgrid(np.geomspace(1e6, 1e14, 6), np.geomspace(1e8, 1e16, 6)))
    errors = np.exp(0.001 * np.random.default_rng(0).standard_normal(36))
    fit = fit_surface(n, d, LAW.loss(n, d) * errors, bootstrap=100)
    assert fit.status == Status.CONVERGED
    assert fit.warnings == ()


def test_a_floor_that_no_run_came_near_is_called_an_extrapolation():
    fit = fit_surface(*grid(noise=0.001), bootstrap=100)
    assert fit.status == Status.CONVERGED
    assert [warn.kind for warn in fit.warnings] == [Caveat.EXTRAPOLATION]


def test_floor_at_zero_is_a_bound_hit():
    fit = fit_surface(*grid(law=FLOORLESS))
    assert fit.status == Status.BOUND_HIT
    assert fit.has(Caveat.E_AT_ZERO)
    assert not fit_surface(*grid()).has(Caveat.E_AT_ZERO)


def test_floor_above_the_smallest_loss():
    n, d, loss = grid()
    broken = loss.copy()
    broken[np.argmin(loss)] = 1.5
    fit = fit_surface(n, d, broken)
    assert fit.has(Caveat.E_ABOVE_SMALLEST_LOSS)
    assert fit.status == Status.BOUND_HIT
    assert not fit_surface(n, d, loss).has(Caveat.E_ABOVE_SMALLEST_LOSS)


@pytest.mark.parametrize(("sizes", "horizons"), [(2, 6), (6, 2), (1, 6), (6, 1)])
def test_too_few_sizes_or_horizons_identify_nothing(sizes, horizons):
    fit = fit_surface(*grid(sizes, horizons, noise=0.001), bootstrap=20)
    assert fit.status == Status.NOT_IDENTIFIED
    assert fit.has(Caveat.FEW_SIZES)
    assert all(interval.low == -np.inf and interval.high == np.inf for interval in fit.intervals.values())
    assert not fit_surface(*grid(3, 3)).has(Caveat.FEW_SIZES)


def test_as_many_points_as_parameters_only_interpolate():
    n, d, loss = grid(3, 3)
    keep = [0, 2, 4, 6, 8]
    fit = fit_surface(n[keep], d[keep], loss[keep])
    assert fit.status == Status.NOT_IDENTIFIED and fit.has(Caveat.FEW_SIZES)


def test_floor_that_the_data_do_not_show_is_not_identified():
    fit = fit_surface(*grid(4, 4, law=FLOORLESS, noise=0.01), bootstrap=200, clusters=np.repeat(np.arange(16), 1))
    assert fit.status == Status.NOT_IDENTIFIED
    assert fit.intervals["E"].low == pytest.approx(0, abs=2e-3)
    assert 0.0 in fit.intervals["E"] or fit.intervals["E"].low < 2e-3


def test_start_returned_and_iterations_spent():
    n, d, loss = grid(noise=0.003)
    start = LossSurface(A=300.0, B=900.0, E=1.5, alpha=0.3, beta=0.3)
    stuck = fit_surface(n, d, loss, start=start, max_iter=0)
    assert stuck.status == Status.NO_PROGRESS and stuck.has(Caveat.START_RETURNED)
    assert stuck.law.alpha == pytest.approx(0.3)
    assert fit_surface(n, d, loss, start=start, max_iter=2).status == Status.MAX_ITER
    free = fit_surface(n, d, loss, start=start)
    assert free.status == Status.CONVERGED and not free.has(Caveat.START_RETURNED)


def test_starting_at_the_answer_is_no_failure():
    n, d, loss = grid()
    fit = fit_surface(n, d, loss, start=LAW)
    assert fit.status == Status.CONVERGED
    assert not fit.has(Caveat.START_RETURNED)


def test_few_trunks_state_the_noise_they_assume():
    n, d, loss = grid(4, 3, noise=0.003)
    trunk = np.unique(n, return_inverse=True)[1]
    few = fit_surface(n, d, loss, clusters=trunk, bootstrap=50)
    assert few.has(Caveat.NOISE_ASSUMED)
    assert not fit_surface(n, d, loss, clusters=trunk, bootstrap=50, noise=0.003).has(Caveat.NOISE_ASSUMED)
    n, d, loss = grid(8, 4, noise=0.003)
    many = fit_surface(n, d, loss, clusters=np.unique(n, return_inverse=True)[1], bootstrap=50)
    assert not many.has(Caveat.NOISE_ASSUMED)


def test_more_noise_gives_wider_intervals_and_seeds_change_little():
    n, d, loss = grid(5, 3, noise=0.002)
    trunk = np.unique(n, return_inverse=True)[1]

    def width(noise, seed):
        interval = fit_surface(n, d, loss, clusters=trunk, bootstrap=400, noise=noise, seed=seed).intervals["alpha"]
        return interval.high - interval.low

    assert width(0.004, 0) > 1.6 * width(0.002, 0)
    assert width(0.002, 1) == pytest.approx(width(0.002, 0), rel=0.2)


def test_an_exponent_that_reaches_the_bound_is_not_bounded_above():
    """Two of three sizes lie beyond what N does to the loss: any steep alpha fits them."""
    n, d = (g.ravel() for g in np.meshgrid([1e6, 3e6, 9e6], np.geomspace(1e8, 1e11, 4)))
    steep = LossSurface(A=0.3 * 1e6**5, B=410.7, E=1.69, alpha=5.0, beta=0.28)
    loss = steep.loss(n, d) * np.exp(0.01 * np.random.default_rng(0).standard_normal(12))
    alpha = fit_surface(n, d, loss, bootstrap=200, clusters=np.unique(n, return_inverse=True)[1]).intervals["alpha"]
    assert alpha.high == alpha.se == np.inf and 0 < alpha.low < 5
    assert fit_surface(*grid(noise=0.001), bootstrap=100).intervals["alpha"].high < 1
