"""Surfaces of log loss in the coordinates the solver works in, with first and second derivatives.

Shapes: B problems side by side (starts, or bootstrap resamples), n points, k parameters. x_n = log N and y_n = log
D, both centred, so that the parameters are nearly uncorrelated and a change of units changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from analysis.laws import FloatArray, KaplanSurface, LossSurface

EXPONENT_MIN, EXPONENT_MAX = 1e-3, 8.0
LOG_TERM_MIN, LOG_TERM_MAX = -14.0, 40.0
"""A term below exp(-14) of the geometric mean loss is a term that is not there: one part in a million."""


@dataclass(frozen=True, kw_only=True)
class Derivatives:
    """value (B, n), jacobian (B, n, k), and curvature(q_Bn) = sum_i q_i Hessian_i, shape (B, k, k)."""

    value: FloatArray
    jacobian: FloatArray
    curvature: Callable[[FloatArray], FloatArray]


class Form(Protocol):
    """One family of surfaces."""

    @property
    def lower(self) -> FloatArray:
        """Smallest theta, (k,)."""

    @property
    def upper(self) -> FloatArray:
        """Largest theta, (k,)."""

    def value(self, theta: FloatArray, x: FloatArray, y: FloatArray) -> FloatArray:
        """Log loss, (B, n)."""

    def derivatives(self, theta: FloatArray, x: FloatArray, y: FloatArray) -> Derivatives:
        """Log loss and its derivatives."""

    def starts(self, x: FloatArray, y: FloatArray, z: FloatArray, weights: FloatArray) -> FloatArray:
        """Starting points, (grid, k), from variable projection: given the exponents the rest is linear."""

    def law_parameters(self, theta: FloatArray, x0: float, y0: float, scale: float) -> dict[str, FloatArray]:
        """The law's fields in the user's units: x0, y0 are the means taken out, scale the unit of loss."""

    def from_law(self, law: LossSurface | KaplanSurface, x0: float, y0: float, scale: float) -> FloatArray:
        """Inverse of `law_parameters` for one law, shape (k,)."""


def _log_sum(terms: list[FloatArray]) -> tuple[FloatArray, list[FloatArray]]:
    """log sum exp of the terms and each term's share of the sum."""
    top = np.maximum.reduce(terms)
    exps = [np.exp(term - top) for term in terms]
    total = np.add.reduce(exps)
    return top + np.log(total), [e / total for e in exps]


def _linear_terms(features: FloatArray, target: FloatArray, weights: FloatArray) -> FloatArray:
    """Weighted least squares of target (g or 1, n) on features (g, n, m) for each of g settings, kept positive."""
    gram = np.matmul((features * weights[:, None]).transpose(0, 2, 1), features)
    moment = np.matmul(
        (features * weights[:, None]).transpose(0, 2, 1), np.broadcast_to(target, features.shape[:2])[..., None]
    )
    ridge = 1e-12 * np.trace(gram, axis1=1, axis2=2)[:, None, None] * np.eye(features.shape[-1])
    return np.maximum(np.linalg.solve(gram + ridge, moment)[..., 0], 1e-4)


class Chinchilla:
    """log(e^a / N^alpha + e^b / D^beta + e^e); theta = (a, b, e, alpha, beta)."""

    lower = np.array([LOG_TERM_MIN, LOG_TERM_MIN, LOG_TERM_MIN, EXPONENT_MIN, EXPONENT_MIN])
    upper = np.array([LOG_TERM_MAX, LOG_TERM_MAX, LOG_TERM_MAX, EXPONENT_MAX, EXPONENT_MAX])

    def value(self, theta: FloatArray, x: FloatArray, y: FloatArray) -> FloatArray:
        a, b, e, alpha, beta = (theta[:, i, None] for i in range(5))
        return _log_sum([a - alpha * x, b - beta * y, e + 0 * x])[0]

    def derivatives(self, theta: FloatArray, x: FloatArray, y: FloatArray) -> Derivatives:
        a, b, e, alpha, beta = (theta[:, i, None] for i in range(5))
        value, (p_n, p_d, p_e) = _log_sum([a - alpha * x, b - beta * y, e + 0 * x])
        jacobian = np.stack([p_n, p_d, p_e, -x * p_n, -y * p_d], axis=-1)

        def curvature(q: FloatArray) -> FloatArray:
            # Hessian of log-sum-exp: sum_k p_k g_k g_k^T - J J^T, g_k the gradient of term k (1 and -x or -y).
            total = -np.matmul((jacobian * q[..., None]).transpose(0, 2, 1), jacobian)
            for p, at, i, j in ((p_n, x, 0, 3), (p_d, y, 1, 4)):
                qp = q * p
                total[:, i, i] += qp.sum(1)
                total[:, i, j] -= (qp * at).sum(1)
                total[:, j, i] -= (qp * at).sum(1)
                total[:, j, j] += (qp * at * at).sum(1)
            total[:, 2, 2] += (q * p_e).sum(1)
            return total

        return Derivatives(value=value, jacobian=jacobian, curvature=curvature)

    def starts(self, x: FloatArray, y: FloatArray, z: FloatArray, weights: FloatArray) -> FloatArray:
        grid = np.geomspace(0.02, 1.6, 24)
        alpha, beta = np.meshgrid(grid, grid, indexing="ij")
        return self._project(alpha.ravel(), beta.ravel(), x, y, z, weights)

    @staticmethod
    def _project(
        alpha: FloatArray, beta: FloatArray, x: FloatArray, y: FloatArray, z: FloatArray, weights: FloatArray
    ) -> FloatArray:
        loss = np.exp(z)
        features = np.stack(
            [np.exp(-alpha[:, None] * x), np.exp(-beta[:, None] * y), np.ones((len(alpha), len(x)))], -1
        )
        terms = np.log(_linear_terms(features, loss, weights / loss**2))
        return np.column_stack([terms, alpha, beta])

    def law_parameters(self, theta: FloatArray, x0: float, y0: float, scale: float) -> dict[str, FloatArray]:
        a, b, e, alpha, beta = theta.T
        # A term at the lower bound is absent; reporting e^-14 as an estimate of E would pretend otherwise.
        floor = np.where(e > LOG_TERM_MIN, np.exp(e), 0.0)
        return {
            "A": scale * np.exp(a + alpha * x0),
            "B": scale * np.exp(b + beta * y0),
            "E": scale * floor,
            "alpha": alpha,
            "beta": beta,
        }

    def from_law(self, law: LossSurface | KaplanSurface, x0: float, y0: float, scale: float) -> FloatArray:
        assert isinstance(law, LossSurface)
        log_e = np.log(law.E / scale) if law.E > 0 else LOG_TERM_MIN
        a, b = np.log(law.A / scale) - law.alpha * x0, np.log(law.B / scale) - law.beta * y0
        return np.array([a, b, log_e, law.alpha, law.beta])


class Tied:
    """Chinchilla with alpha = beta; theta = (a, b, e, alpha), a linear restriction of the five."""

    lower, upper = Chinchilla.lower[:4], Chinchilla.upper[:4]
    _expand = np.array([[1.0, 0, 0, 0, 0], [0, 1, 0, 0, 0], [0, 0, 1, 0, 0], [0, 0, 0, 1, 1]])

    def value(self, theta: FloatArray, x: FloatArray, y: FloatArray) -> FloatArray:
        return Chinchilla().value(theta @ self._expand, x, y)

    def derivatives(self, theta: FloatArray, x: FloatArray, y: FloatArray) -> Derivatives:
        full = Chinchilla().derivatives(theta @ self._expand, x, y)
        return Derivatives(
            value=full.value,
            jacobian=full.jacobian @ self._expand.T,
            curvature=lambda q: self._expand @ full.curvature(q) @ self._expand.T,
        )

    def starts(self, x: FloatArray, y: FloatArray, z: FloatArray, weights: FloatArray) -> FloatArray:
        grid = np.geomspace(0.02, 1.6, 48)
        return Chinchilla._project(grid, grid, x, y, z, weights)[:, :4]

    def law_parameters(self, theta: FloatArray, x0: float, y0: float, scale: float) -> dict[str, FloatArray]:
        return Chinchilla().law_parameters(theta @ self._expand, x0, y0, scale)

    def from_law(self, law: LossSurface | KaplanSurface, x0: float, y0: float, scale: float) -> FloatArray:
        return Chinchilla().from_law(law, x0, y0, scale)[:4]


class Kaplan:
    """gamma log(e^a / N^r + e^b / D); theta = (a, b, r, log gamma). alpha_d = gamma, alpha_n = r gamma."""

    lower = np.array([-500.0, -500.0, EXPONENT_MIN, np.log(EXPONENT_MIN)])
    upper = np.array([500.0, 500.0, 50.0, np.log(EXPONENT_MAX)])

    def value(self, theta: FloatArray, x: FloatArray, y: FloatArray) -> FloatArray:
        a, b, r, log_gamma = (theta[:, i, None] for i in range(4))
        return np.exp(log_gamma) * _log_sum([a - r * x, b - y])[0]

    def derivatives(self, theta: FloatArray, x: FloatArray, y: FloatArray) -> Derivatives:
        a, b, r, log_gamma = (theta[:, i, None] for i in range(4))
        inner, (p_n, p_d) = _log_sum([a - r * x, b - y])
        gamma = np.exp(log_gamma)
        value = gamma * inner
        inner_jacobian = np.stack([p_n, p_d, -x * p_n], axis=-1)
        jacobian = np.concatenate([gamma[..., None] * inner_jacobian, value[..., None]], axis=-1)

        def curvature(q: FloatArray) -> FloatArray:
            total = np.zeros((len(theta), 4, 4))
            weighted = gamma * q
            block = -np.matmul((inner_jacobian * weighted[..., None]).transpose(0, 2, 1), inner_jacobian)
            qp = weighted * p_n
            block[:, 0, 0] += qp.sum(1)
            block[:, 0, 2] -= (qp * x).sum(1)
            block[:, 2, 0] -= (qp * x).sum(1)
            block[:, 2, 2] += (qp * x * x).sum(1)
            block[:, 1, 1] += (weighted * p_d).sum(1)
            total[:, :3, :3] = block
            # d/d(log gamma) of (gamma * anything) is gamma * anything.
            total[:, 3, :] = total[:, :, 3] = (q[..., None] * jacobian).sum(1)
            return total

        return Derivatives(value=value, jacobian=jacobian, curvature=curvature)

    def starts(self, x: FloatArray, y: FloatArray, z: FloatArray, weights: FloatArray) -> FloatArray:
        r, gamma = (g.ravel() for g in np.meshgrid(np.geomspace(0.2, 5, 16), np.geomspace(0.02, 1, 24), indexing="ij"))
        target = np.exp(z / gamma[:, None])
        features = np.stack([np.exp(-r[:, None] * x), np.broadcast_to(np.exp(-y), target.shape)], -1)
        # Relative errors of L^(1/gamma) are 1/gamma times those of L; only the ratio between points matters.
        scaled = features / target[..., None]
        terms = np.log(_linear_terms(scaled, np.ones_like(target), weights))
        return np.column_stack([terms, r, np.log(gamma)])

    def law_parameters(self, theta: FloatArray, x0: float, y0: float, scale: float) -> dict[str, FloatArray]:
        a, b, r, log_gamma = theta.T
        gamma = np.exp(log_gamma)
        shift = np.log(scale) / gamma
        return {
            "n_c": np.exp((a + r * x0 + shift) / r),
            "d_c": np.exp(b + y0 + shift),
            "alpha_n": r * gamma,
            "alpha_d": gamma,
        }

    def from_law(self, law: LossSurface | KaplanSurface, x0: float, y0: float, scale: float) -> FloatArray:
        assert isinstance(law, KaplanSurface)
        r, shift = law.alpha_n / law.alpha_d, np.log(scale) / law.alpha_d
        return np.array([r * (np.log(law.n_c) - x0) - shift, np.log(law.d_c) - y0 - shift, r, np.log(law.alpha_d)])


FORMS: dict[str, Form] = {"chinchilla": Chinchilla(), "tied": Tied(), "kaplan": Kaplan()}
