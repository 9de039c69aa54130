"""Batched damped Newton for robust fits of a surface: many starts, or many bootstrap resamples, at once.

Minimises sum_i w_i rho(target_i - model_i), rho the Huber function (quadratic within delta, absolute beyond).
Newton's Hessian is exact and fast near the answer, the IRLS one is positive definite and safe far from it; each
problem blends the two and adapts the blend and the damping by whether its last step lowered the objective.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from analysis.forms import Derivatives, Form
from analysis.laws import FloatArray

CHUNK_FLOATS = 2**19
"""Problems are taken in chunks of about this many (problem, point) pairs: 4 MB an array stays near the cache."""


@dataclass(frozen=True, kw_only=True)
class Objective:
    """space: residuals of log loss or of raw loss. delta: Huber's scale in that space (inf = squares)."""

    space: str
    delta: float

    def rho(self, residual: FloatArray) -> FloatArray:
        """Huber's function: r^2 / 2 within delta, delta (|r| - delta / 2) beyond."""
        size = np.abs(residual)
        if np.isinf(self.delta):
            return 0.5 * residual**2
        return np.where(size <= self.delta, 0.5 * residual**2, self.delta * (size - 0.5 * self.delta))

    def total(self, model: FloatArray, target: FloatArray, weights: FloatArray) -> FloatArray:
        """Weighted sum over points, (B,). `model` is log loss, `target` log or raw loss as `space` says."""
        value = model if self.space == "log" else np.exp(model)
        return (weights * self.rho(target - value)).sum(1)


@dataclass(frozen=True, kw_only=True)
class Solution:
    """theta (B, k), objective (B,), moved (B,): any step accepted, converged (B,): stopped by itself."""

    theta: FloatArray
    objective: FloatArray
    moved: np.ndarray
    converged: np.ndarray


def _in_raw_space(log: Derivatives) -> Derivatives:
    """Derivatives of exp(f) from those of f."""
    value = np.exp(log.value)
    jacobian = value[..., None] * log.jacobian

    def curvature(q: FloatArray) -> FloatArray:
        qv = q * value
        outer = np.matmul((log.jacobian * qv[..., None]).transpose(0, 2, 1), log.jacobian)
        return outer + log.curvature(qv)

    return Derivatives(value=value, jacobian=jacobian, curvature=curvature)


def minimise(
    form: Form,
    start: FloatArray,
    x: FloatArray,
    y: FloatArray,
    target: FloatArray,
    weights: FloatArray,
    objective: Objective,
    *,
    max_iter: int = 300,
    tolerance: float = 1e-11,
) -> Solution:
    """Minimise from each start (B, k). `target` and `weights` are (n,) shared by all or (B, n) one row a problem."""
    n_problems, n_points = len(start), len(x)
    target = np.broadcast_to(target, (n_problems, n_points))
    weights = np.broadcast_to(weights, (n_problems, n_points))
    size = max(1, CHUNK_FLOATS // n_points)
    parts = [
        _minimise_chunk(
            form, start[i : i + size], x, y, target[i : i + size], weights[i : i + size], objective, max_iter, tolerance
        )
        for i in range(0, n_problems, size)
    ]
    return Solution(
        theta=np.concatenate([p.theta for p in parts]),
        objective=np.concatenate([p.objective for p in parts]),
        moved=np.concatenate([p.moved for p in parts]),
        converged=np.concatenate([p.converged for p in parts]),
    )


def _minimise_chunk(
    form: Form,
    start: FloatArray,
    x: FloatArray,
    y: FloatArray,
    target: FloatArray,
    weights: FloatArray,
    objective: Objective,
    max_iter: int,
    tolerance: float,
) -> Solution:
    theta = np.clip(start, form.lower, form.upper)
    value = objective.total(form.value(theta, x, y), target, weights)
    # Below this the objective is rounding error: a noise-free surface reaches it.
    rounding = 1e-30 * weights.sum(1) * np.maximum(1.0, np.abs(target).max(1)) ** 2
    blend = np.ones(len(theta))
    damping = np.full(len(theta), 1e-3)
    quiet = np.zeros(len(theta), int)
    moved = np.zeros(len(theta), bool)
    converged = np.zeros(len(theta), bool)
    active = np.ones(len(theta), bool)
    for _ in range(max_iter):
        at = np.flatnonzero(active)
        if not len(at):
            break
        step, predicted = _step(form, theta[at], x, y, target[at], weights[at], objective, blend[at], damping[at])
        trial = np.clip(theta[at] + step, form.lower, form.upper)
        trial_value = objective.total(form.value(trial, x, y), target[at], weights[at])
        gain = value[at] - trial_value
        better = gain > 0
        won, lost = at[better], at[~better]
        theta[won], value[won], moved[won] = trial[better], trial_value[better], True
        blend[won] = np.where(blend[won] < 0.02, 0.0, 0.3 * blend[won])
        damping[won] = np.maximum(0.2 * damping[won], 1e-12)
        blend[lost] = np.clip(4 * blend[lost], 0.05, 1.0)
        damping[lost] = np.minimum(8 * damping[lost] + 1e-9, 1e4)
        still = (predicted <= tolerance * value[at] + rounding[at]) & (gain <= tolerance * value[at] + rounding[at])
        quiet[at] = np.where(still, quiet[at] + 1, 0)
        # Damping at its limit: no step of any length lowers the objective any more (kinks of a small delta).
        done = (quiet[at] >= 3) | (damping[at] >= 1e3)
        converged[at[done]] = True
        active[at[done]] = False
    return Solution(theta=theta, objective=value, moved=moved, converged=converged)


def _step(
    form: Form,
    theta: FloatArray,
    x: FloatArray,
    y: FloatArray,
    target: FloatArray,
    weights: FloatArray,
    objective: Objective,
    blend: FloatArray,
    damping: FloatArray,
) -> tuple[FloatArray, FloatArray]:
    """The damped step (B, k) and the decrease that the quadratic model predicts (B,)."""
    model = form.derivatives(theta, x, y)
    if objective.space == "raw":
        model = _in_raw_space(model)
    residual = target - model.value
    size = np.abs(residual)
    inside = size <= objective.delta
    psi = residual if np.isinf(objective.delta) else np.where(inside, residual, objective.delta * np.sign(residual))
    gradient = -np.matmul((weights * psi)[:, None, :], model.jacobian)[:, 0]
    irls_weight = weights * np.where(inside, 1.0, objective.delta / np.maximum(size, 1e-300))
    mixed = np.where(inside, weights, 0.0) * (1 - blend)[:, None] + irls_weight * blend[:, None]
    irls_diagonal = np.matmul(irls_weight[:, None, :], model.jacobian**2)[:, 0]
    hessian = np.matmul((model.jacobian * mixed[..., None]).transpose(0, 2, 1), model.jacobian)
    hessian -= model.curvature((1 - blend)[:, None] * weights * psi)
    eye = np.eye(theta.shape[1])
    floor = 1e-12 * irls_diagonal.max(1, keepdims=True) + 1e-300
    hessian += ((damping[:, None] * irls_diagonal + floor)[:, :, None]) * eye
    # A parameter at its bound whose gradient points outward is held there.
    held = ((theta <= form.lower) & (gradient > 0)) | ((theta >= form.upper) & (gradient < 0))
    gradient = np.where(held, 0.0, gradient)
    hessian = np.where(held[:, :, None] | held[:, None, :], floor[:, :, None] * eye, hessian)
    step = -np.linalg.solve(hessian, gradient[..., None])[..., 0]
    uphill = (step * gradient).sum(1) > 0
    # Not positive definite: fall back to scaled steepest descent, which is downhill by construction.
    step[uphill] = -(gradient / ((1 + damping[:, None]) * irls_diagonal + floor))[uphill]
    step *= np.minimum(1, 2.0 / np.maximum(np.abs(step).max(1), 1e-300))[:, None]
    return step, 0.5 * np.abs((step * gradient).sum(1))
