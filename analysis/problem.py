"""A surface fit in the solver's coordinates: logs, centred, loss in units of its geometric mean."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from analysis import bootstrap as boot
from analysis.forms import FORMS, Form
from analysis.laws import FloatArray, KaplanSurface, LossSurface
from analysis.runs import Rivals
from analysis.solver import Objective, Solution, minimise

DEFAULT_NOISE = 0.002
"""Stated prior for the standard deviation of log loss where neither seeds nor enough trunks can show it."""
MIN_SPARE = 1.5
"""Effective degrees of freedom below which the residuals say nothing about the noise."""
LAD_DELTAS = (1e-3, 1e-4, 1e-5, 1e-6, 1e-7, 1e-8)
"""Huber's function over delta tends to the absolute value: the minimum is followed down."""
N_STARTS = 12


class SurfaceProblem:
    """One data set in the solver's coordinates: logs, centred, loss in units of its geometric mean."""

    def __init__(self, n: FloatArray, d: FloatArray, loss: FloatArray, weights: FloatArray, form: str):
        if len(weights) != len(n):
            raise ValueError(f"weights has {len(weights)} values for {len(n)} points")
        self.form: Form = FORMS[form]
        self.x0, self.y0 = float(np.log(n).mean()), float(np.log(d).mean())
        self.x, self.y = np.log(n) - self.x0, np.log(d) - self.y0
        self.scale = float(np.exp(np.log(loss).mean()))
        self.z = np.log(loss / self.scale)
        self.weights = weights
        self.law_type = KaplanSurface if form == "kaplan" else LossSurface

    def objective_unit(self, objective: str) -> float:
        """What turns the solver's objective into the user's units."""
        if objective == "log_lad":
            return 1 / LAD_DELTAS[-1]
        return self.scale**2 if objective in ("least_squares", "huber") else 1.0

    def _stages(self, objective: str, delta: float) -> list[Objective]:
        if objective == "log_lad":
            return [Objective(space="log", delta=step) for step in LAD_DELTAS]
        if objective in ("log_huber", "log_mse"):
            return [Objective(space="log", delta=delta if objective == "log_huber" else np.inf)]
        return [Objective(space="raw", delta=delta / self.scale if objective == "huber" else np.inf)]

    def _run(
        self, start: FloatArray, z: FloatArray, weights: FloatArray, objective: str, delta: float, max_iter: int = 300
    ) -> Solution:
        theta = start
        for stage in self._stages(objective, delta):
            target = z if stage.space == "log" else np.exp(z)
            result = minimise(self.form, theta, self.x, self.y, target, weights, stage, max_iter=max_iter)
            theta = result.theta
        return result

    def solve(
        self, objective: str, delta: float, start: LossSurface | KaplanSurface | None, max_iter: int
    ) -> tuple[Solution, float]:
        """The best minimum as a batch of one, and the share of starts that reached it."""
        if start is None:
            grid = self.form.starts(self.x, self.y, self.z, self.weights)
            first = self._stages(objective, delta)[0]
            target = self.z if first.space == "log" else np.exp(self.z)
            height = first.total(self.form.value(grid, self.x, self.y), target[None], self.weights[None])
            # Spread over the better quarter of the grid, the best included.
            better = np.argsort(height, kind="stable")[: max(N_STARTS, len(grid) // 4)]
            starts = grid[better[np.linspace(0, len(better) - 1, N_STARTS).astype(int)]]
        else:
            starts = self.form.from_law(start, self.x0, self.y0, self.scale)[None]
        found = self._run(starts, self.z, self.weights, objective, delta, max_iter)
        best = int(np.argmin(found.objective))
        near = found.objective <= found.objective[best] * (1 + 1e-6) + 1e-24
        picked = Solution(
            theta=found.theta[[best]],
            objective=found.objective[[best]],
            moved=found.moved[[best]],
            converged=found.converged[[best]],
        )
        return picked, float(near.mean())

    def law(self, theta: FloatArray) -> LossSurface | KaplanSurface:
        """The law of a batch of one."""
        return self.law_type(**{k: float(v[0]) for k, v in self.law_arrays(theta).items()})

    def law_arrays(self, theta: FloatArray) -> dict[str, FloatArray]:
        """The law's parameters, one array each."""
        return self.form.law_parameters(theta, self.x0, self.y0, self.scale)

    def noise(self, theta: FloatArray) -> float:
        """Residual standard deviation of log loss, corrected for the fitted parameters; nan with none to spare."""
        residual = self.z - self.form.value(theta, self.x, self.y)[0]
        spare = len(self.x) - theta.shape[1]
        return float(np.sqrt((self.weights * residual**2).sum() / self.weights.mean() / spare)) if spare > 0 else np.nan

    def resample(
        self,
        theta: FloatArray,
        objective: str,
        delta: float,
        clusters: Sequence[object] | np.ndarray | None,
        rivals: Rivals | None,
        draws: int,
        seed: int,
        noise: float | None,
        trunk_share: float,
    ) -> tuple[FloatArray, float | None]:
        """Parameters of each resample, (draws, k), and the noise that had to be assumed (None if it was measured)."""
        if not draws:
            return np.empty((0, len(theta))), None
        rng = np.random.default_rng(seed)
        start = np.repeat(theta[None], draws, axis=0)
        if clusters is None:
            counts = boot.row_weights(len(self.x), draws, rng)
            return self._run(start, self.z, counts * self.weights, objective, delta).theta, None
        if rivals is None:
            rivals = Rivals.none(clusters)
        own, cluster = boot.cluster_index(clusters), boot.cluster_index(rivals.cluster)
        errors, assumed = self._errors(theta, own, cluster, rivals.cell, draws, noise, trunk_share, rng)
        chosen = boot.choose(rivals.gap + errors, rivals.cell, len(self.x))
        # Residuals are of losses that were chosen as the lowest: small, and zero on average. Taking the lowest errors
        # again would make them smaller still and negative, so what was chosen errs anew.
        errors, _ = self._errors(theta, own, cluster, rivals.cell, draws, noise, trunk_share, rng)
        target = self.form.value(theta[None], self.x, self.y) + np.take_along_axis(errors, chosen, 1)
        return self._run(start, target, self.weights, objective, delta).theta, assumed

    def _errors(
        self,
        theta: FloatArray,
        own: np.ndarray,
        cluster: np.ndarray,
        cell: np.ndarray,
        draws: int,
        noise: float | None,
        trunk_share: float,
        rng: np.random.Generator,
    ) -> tuple[FloatArray, float | None]:
        """Errors of log loss, (draws, candidates), and the noise assumed for them (None if the trunks show it).

        Scale comes from the residuals of least squares, whatever the objective: its projection is known, while a
        robust fit passes exactly through k points and hides their errors.
        """
        squares = self._run(theta[None], self.z, self.weights, "log_mse", np.inf).theta
        model = self.form.derivatives(squares, self.x, self.y)
        root = np.sqrt(self.weights / self.weights.mean())
        residual = root * (self.z - model.value[0])
        hat = boot.hat_matrix(model.jacobian[0], self.weights)
        if own.max() + 1 >= boot.MIN_CLUSTERS:
            scaled = boot.inflate_by_cluster(residual, hat, own) / root
            weights = boot.webb_weights(cluster.max() + 1, draws, rng)
            # G trunks show the scale of their own errors with G - 1 degrees of freedom.
            return boot.student_scale(own.max(), draws, rng) * scaled[cell] * weights[:, cluster], None
        assumed = None
        stretch = np.ones((draws, 1))
        if noise is None:
            noise, spare = boot.trunk_noise(residual, hat, own, trunk_share)
            if spare < MIN_SPARE:
                noise = DEFAULT_NOISE
            else:
                stretch = boot.student_scale(spare, draws, rng)
            assumed = noise
        return stretch * boot.correlated_noise(cluster, (noise / root)[cell], trunk_share, draws, rng), assumed
