"""Judges a fitted surface: which status it deserves and which warnings it must carry."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from scipy.stats import norm

from analysis.forms import EXPONENT_MAX
from analysis.laws import FloatArray, LossSurface
from analysis.result import Caveat, Fit, Interval, Status, Warn
from analysis.runs import Points
from analysis.solver import Solution

OFF, OFF_UNSEEDED = 4.0, 5.0
"""Noise widths off the law that ask for a look at the run: widths known from seeds, and from the residuals alone."""
OFF_LEAST = 0.005
"""A deviation of log loss that is worth a look, however exact the data."""
MISFIT = 2.0
"""Residuals this many times the noise between seeds show a law that misses the data."""
FLOOR_SEEN = 1.02
"""A smallest loss within 2 % of E has come to the floor; above that E is an extrapolation of the law."""
E_IS_ZERO = 1e-3
"""E below this share of the smallest loss is no floor at all."""


def solver_status(solution: Solution) -> Status:
    """What the solver alone can tell."""
    if not solution.moved[0] and not solution.converged[0]:
        return Status.NO_PROGRESS
    return Status.CONVERGED if solution.converged[0] else Status.MAX_ITER


def judge(
    fit: Fit[Any], n: FloatArray, d: FloatArray, loss: FloatArray, *, level: float, noise_assumed: float | None
) -> Fit[Any]:
    """The fit with its intervals, its final status and its warnings."""
    warnings: list[Warn] = []
    status = fit.status
    if status == Status.NO_PROGRESS:
        warnings.append(
            Warn(kind=Caveat.START_RETURNED, detail="no step lowered the objective: the answer is the start")
        )
    intervals = _intervals(fit, level)
    if noise_assumed is not None:
        detail = f"too few trunks to show their scatter: noise of log loss taken as {noise_assumed:.2g}; repeat seeds"
        warnings.append(Warn(kind=Caveat.NOISE_ASSUMED, detail=detail))
    n_parameters = 4 if fit.settings["form"] != "chinchilla" else 5
    too_few = _too_few(n, d, len(loss), 3 if isinstance(fit.law, LossSurface) else 2, n_parameters)
    if isinstance(fit.law, LossSurface):
        floor_warnings = _floor(fit.law, loss)
        warnings += floor_warnings
        if floor_warnings and status == Status.CONVERGED:
            status = Status.BOUND_HIT
        elif not too_few and loss.min() > FLOOR_SEEN * fit.law.E:
            times = loss.min() / fit.law.E
            detail = f"the smallest loss is {times:.2f} times E: the floor is the law's word, not a measurement"
            warnings.append(Warn(kind=Caveat.EXTRAPOLATION, detail=detail))
    if too_few:
        warnings.append(Warn(kind=Caveat.FEW_SIZES, detail=too_few))
        status = Status.NOT_IDENTIFIED
        # Resamples share what the grid leaves open (they start at one answer): their spread would look like knowledge.
        fit = dataclasses.replace(fit, draws={})
        intervals = {name: Interval.unbounded(level) for name in intervals}
    elif "E" in intervals and intervals["E"].low <= E_IS_ZERO * loss.min():
        warnings.append(
            Warn(
                kind=Caveat.WIDE_INTERVAL,
                detail=f"E is anywhere from 0 to {intervals['E'].high:.4g}: the data do not show a floor",
            )
        )
        status = Status.NOT_IDENTIFIED
    return dataclasses.replace(fit, status=status, intervals=intervals, warnings=tuple(warnings))


def off_law(fit: Fit[Any], points: Points) -> tuple[Warn, ...]:
    """Warnings of points far off the law, and of a law that misses all of them by more than the noise between seeds.

    A width is the larger of the noise of a point's mean over seeds and the robust scatter of the residuals, of which
    as many as the law has parameters may be 0 by construction. Fewer than 5 residuals beyond those say nothing.
    """
    residual = np.log(points.corrected_loss / fit.law(points.n, points.d))
    spare = len(residual) - (4 if fit.settings["form"] != "chinchilla" else 5)
    if spare < 5:
        return ()
    # In units of a point of mean weight.
    scaled = residual * np.sqrt(points.weights)
    width = float(np.median(np.sort(np.abs(scaled))[-spare:]) / norm.ppf(0.75))
    limit, found = OFF_UNSEEDED, []
    if points.noise:
        seeds = float(points.rivals.seeds[points.rivals.gap == 0].mean())
        noise = points.noise / np.sqrt(seeds)
        times = width / noise
        if times > MISFIT:
            detail = (
                f"the law misses the losses by {times:.1f} times the noise between seeds: its form is not exact here, "
                "or runs of several kinds are mixed; the intervals hold that scatter, not what it does beyond the data"
            )
            found.append(Warn(kind=Caveat.LACK_OF_FIT, detail=detail))
        limit, width = OFF, max(width, noise)
    far = np.flatnonzero((np.abs(scaled) > limit * width) & (np.abs(residual) > OFF_LEAST))
    far = far[np.argsort(-np.abs(scaled[far]))]
    if len(far):
        named = ", ".join(
            f"{points.ids[i]} ({np.expm1(residual[i]):+.1%}, {abs(scaled[i]) / width:.0f} noise widths)"
            for i in far[:3]
        )
        detail = f"{len(far)} of {len(residual)} points lie far off the law: {named}: check these runs"
        found.insert(0, Warn(kind=Caveat.OFF_LAW, detail=detail, points=tuple(points.ids[i] for i in far)))
    return tuple(found)


def _intervals(fit: Fit[Any], level: float) -> dict[str, Interval]:
    if not fit.draws:
        return {}
    drawn = fit.law_draws
    assert drawn is not None
    named = {**fit.draws, "a": drawn.a, "b": drawn.b}  # type: ignore[union-attr]
    # An exponent at the solver's bound is not known to be that: it is not bounded above.
    for name in ("alpha", "beta"):
        if name in named:
            named[name] = np.where(named[name] >= EXPONENT_MAX, np.inf, named[name])
    return {name: Interval.of(np.asarray(values), level) for name, values in named.items()}


def _floor(law: LossSurface, loss: FloatArray) -> list[Warn]:
    smallest = float(loss.min())
    if law.E / smallest <= E_IS_ZERO:
        return [Warn(kind=Caveat.E_AT_ZERO, detail=f"E = {law.E:.3g} is at its bound: no floor in these losses")]
    if law.E / smallest >= 1:
        return [
            Warn(kind=Caveat.E_ABOVE_SMALLEST_LOSS, detail=f"E = {law.E:.5g} is above the smallest loss {smallest:.5g}")
        ]
    return []


def _too_few(n: FloatArray, d: FloatArray, n_points: int, need: int, n_parameters: int) -> str:
    for what, values, term in (("model size", n, "size"), ("token count", d, "data")):
        count = len(np.unique(values))
        if count < need:
            plural = "s" if count > 1 else ""
            return f"{count} {what}{plural} cannot separate the {term} term from the floor: {need} are the least"
    if n_points <= n_parameters:
        return f"{n_points} points for {n_parameters} parameters: the fit can only interpolate"
    return ""
