"""Derivatives against finite differences, and how a minimisation ends."""

import numpy as np
import pytest

from analysis.forms import FORMS, LOG_TERM_MIN
from analysis.solver import Objective, minimise

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(2, 9))
THETA = {
    "chinchilla": np.array([[-0.5, -0.3, -0.7, 0.4, 0.3], [0.2, -1.0, -0.4, 0.2, 0.6]]),
    "tied": np.array([[-0.5, -0.3, -0.7, 0.4]]),
    "kaplan": np.array([[-0.5, -0.3, 0.8, -2.0], [0.1, 0.4, 1.3, -1.0]]),
}


@pytest.mark.parametrize("name", FORMS)
def test_derivatives_match_finite_differences(name):
    form, theta = FORMS[name], THETA[name]
    exact = form.derivatives(theta, X, Y)
    q = RNG.normal(size=(len(theta), len(X)))
    hessian = exact.curvature(q)
    step = 1e-5
    for k in range(theta.shape[1]):
        moved = step * np.eye(theta.shape[1])[k]
        up, down = form.derivatives(theta + moved, X, Y), form.derivatives(theta - moved, X, Y)
        np.testing.assert_allclose(exact.jacobian[..., k], (up.value - down.value) / (2 * step), atol=1e-8)
        slope = (up.jacobian - down.jacobian) / (2 * step)
        np.testing.assert_allclose(hessian[:, k], np.einsum("bn,bnk->bk", q, slope), atol=1e-7)
    np.testing.assert_allclose(exact.value, form.value(theta, X, Y))


@pytest.mark.parametrize("name", FORMS)
def test_law_parameters_and_back(name):
    form, theta = FORMS[name], THETA[name][:1]
    fields = {key: float(value[0]) for key, value in form.law_parameters(theta, 15.0, 20.0, 2.5).items()}
    from analysis.laws import KaplanSurface, LossSurface

    law = KaplanSurface(**fields) if name == "kaplan" else LossSurface(**fields)
    np.testing.assert_allclose(form.from_law(law, 15.0, 20.0, 2.5), theta[0], rtol=1e-9)
    expected = 2.5 * np.exp(form.value(theta, X, Y)[0])
    np.testing.assert_allclose(law.loss(np.exp(X + 15), np.exp(Y + 20)), expected, rtol=1e-9)


def test_problems_in_one_batch_do_not_touch_each_other():
    form, objective = FORMS["chinchilla"], Objective(space="log", delta=1e-3)
    z = form.value(THETA["chinchilla"][:1], X, Y)[0] + 0.01 * RNG.normal(size=len(X))
    weights = RNG.integers(1, 4, size=(2, len(X))).astype(float)
    together = minimise(form, THETA["chinchilla"], X, Y, z, weights, objective)
    for i in range(2):
        alone = minimise(form, THETA["chinchilla"][[i]], X, Y, z, weights[i], objective)
        np.testing.assert_array_equal(together.theta[i], alone.theta[0])


def test_floor_that_is_not_there_ends_at_its_bound():
    form = FORMS["chinchilla"]
    x, y = (g.ravel() for g in np.meshgrid(np.linspace(-2, 2, 6), np.linspace(-2, 2, 6)))
    truth = np.array([[-0.7, -0.7, -40.0, 0.3, 0.3]])
    z = form.value(truth, x, y)[0]
    found = minimise(form, THETA["chinchilla"], x, y, z, np.ones(len(x)), Objective(space="log", delta=np.inf))
    assert found.converged.all()
    assert (np.exp(found.theta[:, 2]) < 1e-3).all()
    assert (found.theta[:, 2] >= LOG_TERM_MIN).all()
