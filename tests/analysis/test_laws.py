"""Closed forms against numerical minimisation."""

import numpy as np
import pytest
from scipy.optimize import minimize_scalar

from analysis.laws import KaplanSurface, LossSurface, OptimalPath, Parabola, PowerLaw

LAWS = [
    LossSurface(A=406.4, B=410.7, E=1.69, alpha=0.34, beta=0.28),
    KaplanSurface(n_c=6.4e13, d_c=1.8e13, alpha_n=0.076, alpha_d=0.103),
]


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("c", [1e16, 1e23])
def test_optimum_is_the_minimum_under_six_n_d(law, c):
    best = minimize_scalar(
        lambda u: law.loss(np.exp(u), c / 6 / np.exp(u)), bounds=(5, 45), method="bounded", options={"xatol": 1e-11}
    )
    assert law.n_opt(c) == pytest.approx(np.exp(best.x), rel=1e-5)
    assert 6 * law.n_opt(c) * law.d_opt(c) == pytest.approx(c, rel=1e-12)


@pytest.mark.parametrize("law", LAWS)
def test_exponents_are_the_slopes_of_the_optimum(law):
    assert np.log(law.n_opt(1e22) / law.n_opt(1e20)) / np.log(100) == pytest.approx(law.a, rel=1e-12)
    assert law.a + law.b == pytest.approx(1, rel=1e-12)


def test_draws_broadcast_as_many_laws():
    many = LossSurface(A=np.array([406.4, 300.0]), B=410.7, E=1.69, alpha=np.array([0.34, 0.3]), beta=0.28)
    one = LossSurface(A=300.0, B=410.7, E=1.69, alpha=0.3, beta=0.28)
    assert many.n_opt(1e20)[1] == pytest.approx(one.n_opt(1e20), rel=1e-12)
    assert many.loss(1e7, 1e9)[1] == pytest.approx(one.loss(1e7, 1e9), rel=1e-12)


def test_simple_laws():
    assert PowerLaw(intercept=np.log(3.0), exponent=-0.5)(4.0) == pytest.approx(1.5)
    path = OptimalPath(
        n_intercept=0.0, n_exponent=0.5, d_intercept=-np.log(6), d_exponent=0.5, loss_intercept=1.0, loss_exponent=-0.05
    )
    assert path.n_opt(1e10) * path.d_opt(1e10) * 6 == pytest.approx(1e10)
    assert path(1e10) == path.loss(1e10) == pytest.approx(np.exp(1) * 1e10**-0.05)
    assert Parabola(x_min=2.0, y_min=3.0, curvature=0.5)(2.0 * np.e) == pytest.approx(3.5)
