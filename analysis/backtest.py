"""Held-out check: leave out the largest budget(s), fit the rest, compare with what was measured."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import numpy as np

from analysis.fit import fit_envelope, fit_points
from analysis.isoflop import group_levels
from analysis.laws import FloatArray
from analysis.result import Caveat, Fit, Reason, Status, Warn
from analysis.runs import Points

DRIFT_MATTERS = 1.25
"""A factor by which N* may move when the largest budgets join; the sizes of a sweep are rarely closer than that."""
FLOOR_MATTERS = 1e-3
"""A share of E below which a move of it is none, however narrow its interval."""
LEVEL = 0.9


@dataclass(frozen=True, kw_only=True, eq=False)
class Backtest:
    """Predicted against measured loss of the points held out. Arrays have shape (held-out points,).

    approach: "surface", or "envelope" where the rest do not identify a surface (then only points on the envelope of
    all points are predicted). measured: without the bias of choosing the lowest of several LRs, as it is fitted.
    error: measured over predicted, minus 1. low, high: 90 % predictive interval, of the law and of one measurement.
    drift: N* at the largest compute by the fit to all points over that by the fit to the rest.
    """

    approach: str
    ids: tuple[str, ...]
    n: FloatArray
    d: FloatArray
    flops: FloatArray
    measured: FloatArray
    predicted: FloatArray
    low: FloatArray
    high: FloatArray
    drift: float
    fit: Fit[Any]
    warnings: tuple[Warn, ...]

    @property
    def error(self) -> FloatArray:
        return self.measured / self.predicted - 1

    @property
    def inside(self) -> int:
        """How many lie in their interval."""
        return int(((self.low <= self.measured) & (self.measured <= self.high)).sum())


def backtest(points: Points, *, budgets: int = 1, bootstrap: int = 500, seed: int = 0) -> Backtest:
    """Hold out the `budgets` largest budgets, fit the others, and predict the held-out losses.

    A budget is a token count, or a FLOPs level where the points are isoFLOP runs. ValueError when fewer than 2
    budgets would be left, or when the rest do not even give an envelope.
    """
    out = held_out(points, budgets)
    rest = select(points, ~out)
    approach, part = "surface", fit_points(rest, bootstrap=bootstrap, seed=seed, level=LEVEL)
    whole = fit_points(points)
    predicted_rows = np.flatnonzero(out)
    if part.status != Status.CONVERGED:
        approach, part, whole = "envelope", _envelope(rest, seed), _envelope(points, seed)
        on_envelope = np.isin(points.ids, whole.used)
        predicted_rows = np.flatnonzero(out & on_envelope)
        if not len(predicted_rows):
            raise ValueError("no held-out point lies on the envelope: nothing that the rest of the sweep could predict")
    n, d, flops, measured = (
        values[predicted_rows] for values in (points.n, points.d, points.flops, points.corrected_loss)
    )
    inputs = (n, d) if approach == "surface" else (flops,)
    low, high = _predictive_interval(part, inputs, seed)
    c = float(points.flops.max())
    drift = float(whole.law.n_opt(c) / part.law.n_opt(c))
    ids = tuple(points.ids[i] for i in predicted_rows)
    return Backtest(
        approach=approach,
        ids=ids,
        n=n,
        d=d,
        flops=flops,
        measured=measured,
        predicted=np.asarray(part.law(*inputs)),
        low=low,
        high=high,
        drift=drift,
        fit=part,
        warnings=(*_warnings(ids, (measured < low) | (measured > high), drift, c), *_floor_drift(part, whole)),
    )


def held_out(points: Points, budgets: int) -> np.ndarray:
    """True for the points of the `budgets` largest budgets. ValueError unless 2 are left to fit."""
    _, by_tokens = np.unique(points.d, return_inverse=True)
    by_flops = np.empty(len(points), int)
    for k, rows in enumerate(group_levels(points.flops)):
        by_flops[rows] = k
    # A grid has few token counts and as many FLOPs as points; isoFLOP runs the other way round.
    budget = by_tokens if by_tokens.max() <= by_flops.max() else by_flops
    count = int(budget.max()) + 1
    if budgets < 1 or count - budgets < 2:
        remedy = "hold out fewer or run more" if count > 2 else "run more"
        raise ValueError(f"cannot hold out {budgets} of {count} budgets: 2 must be left to fit, so {remedy}")
    return budget >= count - budgets


def select(points: Points, keep: np.ndarray) -> Points:
    """The points where `keep` (points,) is true, with the rivals that compete for them."""
    renumber = np.cumsum(keep) - 1
    rivals = points.rivals
    among = keep[rivals.cell]
    columns = ("n", "d", "flops", "loss", "lr", "depth", "clusters", "weights", "choice_bias")
    arrays = {name: getattr(points, name)[keep] for name in columns}
    candidates = {name: getattr(rivals, name)[among] for name in ("gap", "cluster", "lr", "seeds")}
    dropped = {point: Reason.HELD_OUT for point, kept in zip(points.ids, keep, strict=True) if not kept}
    return dataclasses.replace(
        points,
        ids=tuple(point for point, kept in zip(points.ids, keep, strict=True) if kept),
        left_out={**points.left_out, **dropped},
        rivals=dataclasses.replace(rivals, cell=renumber[rivals.cell[among]], **candidates),
        **arrays,
    )


def _envelope(points: Points, seed: int) -> Fit[Any]:
    columns = (points.flops, points.n, points.d, points.corrected_loss)
    return fit_envelope(*columns, clusters=points.clusters, level=LEVEL, seed=seed, ids=points.ids)


def _predictive_interval(fit: Fit[Any], inputs: tuple[FloatArray, ...], seed: int) -> tuple[FloatArray, FloatArray]:
    """Ends of the interval of one new loss at each input; infinite where the fit has no draws."""
    drawn: Any = fit.law_draws
    if drawn is None:
        return np.zeros(len(inputs[0])), np.full(len(inputs[0]), np.inf)
    losses = np.asarray(drawn(*(values[:, None] for values in inputs)))
    noise = fit.noise if np.isfinite(fit.noise) else 0.0
    losses = losses * np.exp(noise * np.random.default_rng(seed).standard_normal(losses.shape))
    low, high = np.quantile(losses, [(1 - LEVEL) / 2, (1 + LEVEL) / 2], axis=1)
    return low, high


def _warnings(ids: tuple[str, ...], outside: np.ndarray, drift: float, c: float) -> list[Warn]:
    found = []
    # More misses than the 95th percentile of a binomial with the interval's own rate.
    expected = (1 - LEVEL) * len(ids)
    if outside.sum() > expected + 1.645 * np.sqrt(LEVEL * expected):
        detail = f"{outside.sum()} of {len(ids)} held-out losses lie outside their 90 % interval: the law drifts"
        missed = tuple(point for point, miss in zip(ids, outside, strict=True) if miss)
        found.append(Warn(kind=Caveat.BACKTEST_DRIFT, detail=detail, points=missed))
    if not 1 / DRIFT_MATTERS <= drift <= DRIFT_MATTERS:
        detail = f"N* at {c:.3g} FLOPs moves by a factor {drift:.2f} when the largest budgets join the fit"
        found.append(Warn(kind=Caveat.BACKTEST_DRIFT, detail=detail))
    return found


def _floor_drift(part: Fit[Any], whole: Fit[Any]) -> list[Warn]:
    """The floor moved by more than its interval allows: a plateau of these sizes, not of the data."""
    interval = part.intervals.get("E")
    if interval is None or whole.law.E in interval or abs(whole.law.E - part.law.E) < FLOOR_MATTERS * whole.law.E:
        return []
    detail = (
        f"E moves from {part.law.E:.4g} to {whole.law.E:.4g} when the largest budgets join, out of its 90 % interval"
    )
    return [Warn(kind=Caveat.BACKTEST_DRIFT, detail=detail)]
