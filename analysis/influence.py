"""Which points carry the answer: refits without each point, and without the few that matter most together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from analysis.fit import fit_surface
from analysis.laws import FloatArray, LossSurface
from analysis.result import Caveat, Fit, Warn
from analysis.runs import Points

CARRIED = 3.0
"""Robust standard errors that a few points may move the answer; simulated sweeps without outliers stay below 2.9."""
SMALL = 0.05
"""A shift of log N* that changes no decision, however exact the data."""
FEW = 5
"""Points dropped together: five decided the published exponents of Hoffmann et al. 2022 (Besiroglu et al. 2024)."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Influence:
    """shift (points,): change of log N* at 10 times the largest compute when a point is left out.

    carriers: the ids whose joint removal moves it most; joint_shift: by how much. robust_se: standard error of log
    N* by the jackknife, from the median of the shifts, so that the outliers themselves cannot widen it.
    """

    ids: tuple[str, ...]
    shift: FloatArray
    carriers: tuple[str, ...]
    joint_shift: float
    robust_se: float
    warnings: tuple[Warn, ...]


def influence(points: Points, fit: Fit[Any], *, objective: str = "log_huber") -> Influence:
    """Leave-one-out shifts, and the joint shift of the `FEW` points (a tenth at most) that pull most in one direction.

    Warns INFLUENTIAL_POINTS when the joint shift is more than `CARRIED` robust standard errors. ValueError for a
    fit of no surface.
    """
    if not isinstance(fit.law, LossSurface):
        raise ValueError(f"influence is defined for a loss surface, not for a {type(fit.law).__name__}")
    c = 10 * float(points.flops.max())
    at_all = float(np.log(fit.law.n_opt(c)))

    def shift_without(rows: list[int]) -> float:
        keep = np.ones(len(points), bool)
        keep[rows] = False
        # Starting at the fit to all points: leaving out a few moves the minimum, it does not find another one.
        part = fit_surface(
            points.n[keep],
            points.d[keep],
            points.corrected_loss[keep],
            weights=points.weights[keep],
            objective=objective,
            start=fit.law,
        )
        return float(np.log(part.law.n_opt(c))) - at_all

    shift = np.array([shift_without([i]) for i in range(len(points))])
    count = max(1, min(FEW, len(points) // 10))
    order = np.argsort(shift)
    sides = [order[:count].tolist(), order[-count:].tolist()]
    joint = [shift_without(rows) for rows in sides]
    worst = int(np.argmax(np.abs(joint)))
    carriers = tuple(points.ids[i] for i in sides[worst])
    warnings = []
    robust_se = float(1.4826 * np.median(np.abs(shift - np.median(shift))) * np.sqrt(len(points)))
    if abs(joint[worst]) > max(CARRIED * robust_se, SMALL):
        detail = (
            f"{count} of {len(points)} points carry the answer: without them N* at 10x changes by a factor "
            f"{np.exp(joint[worst]):.2f}, over {CARRIED:g} standard errors"
        )
        warnings.append(Warn(kind=Caveat.INFLUENTIAL_POINTS, detail=detail, points=carriers))
    return Influence(
        ids=points.ids,
        shift=shift,
        carriers=carriers,
        joint_shift=joint[worst],
        robust_se=robust_se,
        warnings=tuple(warnings),
    )
