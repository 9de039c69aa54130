"""From a fit to what to train: the optimum for a budget, and the trial that would teach most per FLOP."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.stats import t as student

from analysis.inputs import is_positive
from analysis.ladder import Rung, rungs
from analysis.laws import FloatArray, KaplanSurface, LossSurface, LrLaw, OptimalPath
from analysis.lr import Bound
from analysis.result import Caveat, Fit, Interval, Prediction, Status, Warn
from analysis.runs import Params, Points
from analysis.trials import Trial, is_measured
from tinyllm.config import ModelConfig

MIN_GAIN = 0.05
"""A trial that removes less of the variance is not worth its overhead, however cheap its FLOPs."""
FAR = 10.0
"""Extrapolation in compute beyond this factor gets a warning."""
WIDE = 10.0
"""An N* known to a wider factor is no advice: a size 10 times off costs more than the sweep that would tell."""


@dataclass(frozen=True, kw_only=True)
class Advice:
    """What to train. n: parameters, d: tokens, flops, loss: nats per token, lr: peak LR of the hidden matrices.

    extrapolation: how many times `flops` lies beyond the compute of the points (1 within it).
    With a ladder, depth, n and d are those of a real model under its exact FLOPs; n_continuous and d_continuous are the
    optimum of the law itself, and the intervals (None without a bootstrap) are of these. lr_bound: what `lr` is where
    no best LR is bracketed: "at least" or "at most" its value, or the "only" LR tried.
    """

    flops: float
    depth: int | None
    n: float
    d: float
    loss: Prediction
    lr: Prediction | None
    n_continuous: float
    d_continuous: float
    n_interval: Interval | None
    d_interval: Interval | None
    extrapolation: float
    warnings: tuple[Warn, ...]
    lr_bound: Bound = ""

    @property
    def identified(self) -> bool:
        """Whether the runs tell what to train; else only the intervals, and why (WIDE_INTERVAL), may be quoted."""
        return not any(warn.kind == Caveat.WIDE_INTERVAL for warn in self.warnings)


def optimum(
    fit: Fit[Any],
    *,
    flops: float | None = None,
    n: float | None = None,
    d: float | None = None,
    ladder: ModelConfig | None = None,
    params: Params = "with_head",
    lr_fit: Fit[LrLaw] | None = None,
    level: float = 0.9,
) -> Advice:
    """The compute-optimal run for one of `flops` to spend, `n` parameters to train, or `d` tokens to train on.

    With `ladder` and `flops`, the loss is minimised over the ladder's depths, each with its exact FLOPs per token.
    Without one, N is continuous and C = 6 N D (typed warning NO_LADDER). ValueError unless exactly one of the three
    is given and positive, or when the fit has no optimum (a power law, a parabola). Where the fit is not CONVERGED, or
    the interval of N* spans more than a factor of `WIDE`, the warning WIDE_INTERVAL says that this is no advice.
    """
    given = {name: value for name, value in (("flops", flops), ("n", n), ("d", d)) if value is not None}
    if len(given) != 1 or not is_positive(next(iter(given.values()))):
        raise ValueError(f"give exactly one positive number of flops=, n=, d=; got {given}")
    law = fit.law
    if not isinstance(law, LossSurface | KaplanSurface | OptimalPath):
        raise ValueError(f"a {type(law).__name__} has no optimum: pass the fit of a surface, an envelope or isoFLOPs")
    c = flops if flops is not None else _budget_for(law, n, d)
    n_star, d_star = float(law.n_opt(c)), float(law.d_opt(c))
    best_n, best_d, depth = n_star, d_star, None
    warnings = []
    if ladder is None:
        detail = "no model ladder: N is continuous and C = 6 N D"
        warnings.append(Warn(kind=Caveat.NO_LADDER, detail=detail))
    else:
        rung = _best_rung(law, c, rungs(ladder, params))
        best_n, best_d, depth = rung.n, c / rung.flops_per_token, rung.depth
    at: tuple[float, ...] = (c,) if isinstance(law, OptimalPath) else (best_n, best_d)
    loss = fit.predict(*at, level=level)
    warnings += _outside_grid(fit, c, n_star)
    beyond = fit.extrapolation(flops=c)["flops"]
    # Ten times the largest compute is no more than FAR, however it was rounded.
    if beyond > FAR * (1 + 1e-9):
        side = "times the largest" if c > fit.domain["flops"][1] else "times below the smallest"
        # A path rests on few of the points: its own range is what it goes beyond.
        whose = "that the line goes through" if isinstance(law, OptimalPath) else "of the data"
        detail = f"{beyond:,.0f} {side} compute {whose}: read the interval, then doubt it"
        warnings.append(Warn(kind=Caveat.EXTRAPOLATION, detail=detail))
    n_interval = fit.interval(lambda drawn: drawn.n_opt(c), level)
    warnings += _not_identified(fit, c, n_interval)
    return Advice(
        flops=c,
        depth=depth,
        n=best_n,
        d=best_d,
        loss=loss,
        lr=lr_fit.predict(best_n, best_d, level=level) if lr_fit else None,
        n_continuous=n_star,
        d_continuous=d_star,
        n_interval=n_interval,
        d_interval=fit.interval(lambda drawn: drawn.d_opt(c), level),
        extrapolation=beyond,
        warnings=tuple(warnings),
        lr_bound=lr_fit.settings["bound"] if lr_fit else "",
    )


def _not_identified(fit: Fit[Any], c: float, n_interval: Interval | None) -> list[Warn]:
    """Why the optimum of `c` FLOPs is not known well enough to be advised."""
    if fit.status != Status.CONVERGED:
        return [Warn(kind=Caveat.WIDE_INTERVAL, detail=f"the fit ended {fit.status}: its optimum is no advice")]
    # The low end may be 0 or nan where draws overflow: that is wide too.
    if n_interval is None or n_interval.high <= WIDE * n_interval.low:
        return []
    detail = (
        f"N* at {c:.3g} FLOPs is anywhere from {n_interval.low:.3g} to {n_interval.high:.3g}, "
        f"by its {100 * n_interval.level:.3g} % interval: more than a factor of {WIDE:g}"
    )
    return [Warn(kind=Caveat.WIDE_INTERVAL, detail=detail)]


def lowest_loss(law: Any, c: Any, sizes: Sequence[Rung] = ()) -> Any:
    """Loss at the law's optimum of `c` FLOPs (an array broadcasts against the law's own).

    With `sizes` the lowest over those models under their exact FLOPs per token; without, a surface's under C = 6 N D.
    """
    if isinstance(law, OptimalPath):
        return law.loss(c)
    if not sizes:
        return law.loss(law.n_opt(c), law.d_opt(c))
    return np.minimum.reduce([np.asarray(law.loss(rung.n, c / rung.flops_per_token)) for rung in sizes])


def _outside_grid(fit: Fit[Any], c: float, n_star: float) -> list[Warn]:
    """A budget that the data cover, whose best size they do not: only a bound was measured."""
    if "n" not in fit.domain or c > 6 * fit.domain["n"][1] * fit.domain["d"][1]:
        return []
    low, high = fit.domain["n"]
    if low <= n_star <= high:
        return []
    bound = f"at most {low:.3g}, the smallest size" if n_star < low else f"at least {high:.3g}, the largest size"
    detail = f"N* at {c:.3g} FLOPs lies outside the sizes tried: the data say {bound}; {n_star:.3g} is the law's word"
    return [Warn(kind=Caveat.OPTIMUM_OUTSIDE_GRID, detail=detail)]


def _budget_for(law: Any, n: float | None, d: float | None) -> float:
    """FLOPs at which `n` (or `d`) is optimal: N*(C) and D*(C) are power laws, so two values give the inverse."""
    if n is not None:
        return float(np.exp((np.log(n) - np.log(law.n_opt(1.0))) / law.a))
    assert d is not None
    return float(np.exp((np.log(d) - np.log(law.d_opt(1.0))) / law.b))


def _best_rung(law: LossSurface | KaplanSurface | OptimalPath, c: float, ladder: Sequence[Rung]) -> Rung:
    """The depth with the lowest loss at `c` FLOPs; a path knows no loss off the optimum, so there the nearest size."""
    if isinstance(law, OptimalPath):
        return min(ladder, key=lambda rung: abs(np.log(rung.n / law.n_opt(c))))
    return min(ladder, key=lambda rung: law.loss(rung.n, c / rung.flops_per_token))


def next_trials(
    fit: Fit[Any],
    *,
    target_flops: float,
    ladder: ModelConfig | None = None,
    params: Params = "with_head",
    max_flops: float | None = None,
    points: Points | None = None,
    count: int = 5,
) -> list[Trial]:
    """The runs that would make the loss predicted at the optimum of `target_flops` surer, best gain per FLOP first.

    Candidates cost at most `max_flops` each (default: a tenth of the target). Of a surface: sizes and token counts up
    to 4 times beyond the fitted range. Of an optimal path (approaches 1 and 2), which knows no loss off the optimum:
    runs on the path, up to 16 times the fitted compute. Those that `points` hold already, to 10 % of their tokens, are
    left out. Measuring log loss f with noise s takes cov(t, f)^2 /
    (var f + s^2) off the variance of the target t (linear Gaussian update); covariances are those of the draws.
    ValueError for a law without an optimum, and for a fit without draws or with too few sizes or budgets: its spread
    is unknown. `analysis.gaps.missing_trials` says what such a fit lacks.
    """
    law: Any = fit.law_draws
    if not isinstance(fit.law, LossSurface | KaplanSurface | OptimalPath):
        raise ValueError(
            f"a {type(fit.law).__name__} has no optimum: pass the fit of a surface, an envelope or isoFLOPs"
        )
    lacking = [warn.detail for warn in fit.warnings if warn.kind in (Caveat.FEW_SIZES, Caveat.FEW_BUDGETS)]
    if lacking:
        raise ValueError(f"no trial can be ranked: {lacking[0]}")
    if law is None:
        raise ValueError("no trial can be ranked without bootstrap draws: take 1000 or so")
    limit = target_flops / 10 if max_flops is None else max_flops
    on_path = isinstance(fit.law, OptimalPath)
    if on_path:
        target = np.log(law.loss(target_flops))
        candidates = _along(fit, ladder, params)
    else:
        target = np.log(law.loss(fit.law.n_opt(target_flops), fit.law.d_opt(target_flops)))
        candidates = _around(fit, ladder, params)
    noise = max(fit.noise if np.isfinite(fit.noise) else 0.0, 1e-4)
    found = []
    for rung, d in candidates:
        flops = rung.flops_per_token * d
        if flops > limit or (points is not None and is_measured(points, rung.n, d)):
            continue
        seen = np.log(law.loss(flops) if on_path else law.loss(rung.n, d))
        gain = _gain(target, seen, noise, fit.settings.get("spare"))
        depth = rung.depth if ladder else None
        found.append(Trial(depth=depth, n=rung.n, d=float(d), flops=float(flops), gain=gain))
    worth = [trial for trial in found if trial.gain is not None and trial.gain >= MIN_GAIN]
    return sorted(worth, key=lambda trial: (trial.gain or 0) / trial.flops, reverse=True)[:count]


def _around(fit: Fit[Any], ladder: ModelConfig | None, params: Params) -> list[tuple[Rung, float]]:
    """(size, tokens) on a grid up to 4 times beyond the domain of a surface."""
    (n_low, n_high), (d_low, d_high) = fit.domain["n"], fit.domain["d"]
    if ladder is None:
        sizes = [_free_size(n) for n in np.geomspace(n_low, 4 * n_high, 9)]
    else:
        sizes = [rung for rung in rungs(ladder, params) if n_low / 2 <= rung.n <= 4 * n_high]
    return [(rung, float(d)) for rung in sizes for d in np.geomspace(d_low, 4 * d_high, 9)]


def _along(fit: Fit[Any], ladder: ModelConfig | None, params: Params) -> list[tuple[Rung, float]]:
    """(size, tokens) at the path's own optimum, up to 16 times beyond its domain."""
    low, high = fit.domain["flops"]
    found = []
    for c in np.geomspace(low, 16 * high, 25):
        n = float(fit.law.n_opt(c))
        rung = _free_size(n) if ladder is None else _best_rung(fit.law, c, rungs(ladder, params))
        found.append((rung, float(c / rung.flops_per_token)))
    return found


def _free_size(n: float) -> Rung:
    """A size of no ladder, at 6 N FLOPs a token."""
    return Rung(depth=-1, n=n, flops_per_token=6 * n)


def _gain(target: FloatArray, seen: FloatArray, noise: float, spare: int | None) -> float:
    """Share of the variance of `target` (draws,) that measuring `seen` (draws,) with `noise` would remove.

    Scales are taken from quartiles: draws of a line through few points are Student's t with `spare` degrees of
    freedom, whose variance says nothing of the noise behind them (it is infinite at 2). None: Gaussian.
    """
    quartile = float(student.ppf(0.75, np.inf if spare is None else spare))

    def scale(draws: FloatArray) -> float:
        low, high = np.quantile(draws, [0.25, 0.75])
        return float(high - low) / (2 * quartile)

    one, other = scale(target), scale(seen)
    if not one or not other:
        return 0.0
    # Gnanadesikan and Kettenring's covariance: from the scales of a sum and a difference.
    correlation = (scale(target / one + seen / other) ** 2 - scale(target / one - seen / other) ** 2) / 4
    return float(np.clip(correlation, -1, 1) ** 2 * other**2 / (other**2 + noise**2))
