"""Weighted least squares for lines in log-log, with the t distribution that small samples need."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.stats import t as student

from analysis.laws import FloatArray
from analysis.result import Interval


@dataclass(frozen=True, kw_only=True)
class Line:
    """coef (k,), its covariance (k, k), spare degrees of freedom (points - k), weighted sum of squares, noise.

    noise: residual standard deviation at unit weight; nan, as the covariance, with no degree of freedom to spare.
    """

    coef: FloatArray
    covariance: FloatArray
    spare: int
    objective: float
    noise: float

    def interval(self, k: int, level: float) -> Interval:
        """Student's t interval of coefficient `k`; unbounded with no degree of freedom to spare."""
        if not self.spare:
            return Interval.unbounded(level)
        se = float(np.sqrt(self.covariance[k, k]))
        half = se * float(student.ppf((1 + level) / 2, self.spare))
        return Interval(low=float(self.coef[k]) - half, high=float(self.coef[k]) + half, level=level, se=se)

    def draws(self, count: int, seed: int) -> FloatArray:
        """Samples (count, k) of the coefficients from their multivariate t distribution."""
        assert self.spare, "no residual, no distribution"
        rng = np.random.default_rng(seed)
        # One chi-square a draw: the coefficients share the estimate of the noise.
        stretch = np.sqrt(self.spare / rng.chisquare(self.spare, count))[:, None]
        values, vectors = np.linalg.eigh(self.covariance)
        root = vectors * np.sqrt(np.maximum(values, 0))
        return self.coef + stretch * (rng.standard_normal((count, len(self.coef))) @ root.T)


def least_squares(design: FloatArray, y: FloatArray, weights: FloatArray) -> Line:
    """Fit y (n,) by design (n, k) @ coef with weights (n,) proportional to 1 / variance. Needs n >= k and full rank."""
    root = np.sqrt(weights)
    coef, _, rank, _ = np.linalg.lstsq(root[:, None] * design, root * y, rcond=None)
    assert rank == design.shape[1], "the design must have full rank: check the inputs' distinct values first"
    objective = float((weights * (y - design @ coef) ** 2).sum())
    spare = len(y) - design.shape[1]
    variance = objective / spare if spare else np.nan
    return Line(
        coef=np.asarray(coef, float),
        covariance=np.asarray(variance * np.linalg.inv(design.T @ (weights[:, None] * design)), float),
        spare=spare,
        objective=objective,
        noise=float(np.sqrt(variance)),
    )
