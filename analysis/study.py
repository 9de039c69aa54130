"""Everything the report says about a sweep, computed once: fits, advice, disagreements, cost."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from analysis import ladder as ladders
from analysis.advise import Advice, next_trials, optimum
from analysis.backtest import Backtest, backtest
from analysis.fit import fit_envelope, fit_points, fit_surface
from analysis.gaps import missing, missing_trials
from analysis.influence import Influence, influence
from analysis.isoflop import fit_isoflop
from analysis.ladder import Rung, rungs
from analysis.laws import LrLaw
from analysis.lr import fit_lr_optimum
from analysis.result import Caveat, Fit, Reason, Status, Warn
from analysis.runs import LrChoice, Points, Runs, load
from analysis.trials import Trial, around_best, with_lrs
from tinyllm.config import ModelConfig

TARGETS = (1.0, 10.0, 100.0)
"""Compute targets of the advice, in multiples of the largest compute of the data."""
EXPONENT_MATTERS = 0.05
"""A convention that moves the exponent of N* by more changes the size advised at 10x by more than 12 %."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Study:
    """A sweep and what it says.

    fits: approach -> fit, for those that could be made. refusals: approach -> why it could not be. headline: the
    approach whose advice is given. advice: one a target. next_trials: ranked by what they teach about the headline's
    loss at 10 times the largest compute; where that cannot be told, `next_refusal` says why, and they are what is
    missing. Trials that find the best LR, or show the noise, follow. missing: what the runs lack, in words.
    conventions: exponent of N* by convention.
    """

    runs: Runs
    points: Points
    ladder: ModelConfig | None
    fits: dict[str, Fit[Any]]
    refusals: dict[str, str]
    headline: str
    lr: Fit[LrLaw] | None
    advice: tuple[Advice, ...]
    next_trials: tuple[Trial, ...]
    next_refusal: str
    missing: tuple[str, ...]
    conventions: pd.DataFrame
    influence: Influence | None
    backtest: Backtest | None
    warnings: tuple[Warn, ...]

    @property
    def sizes(self) -> tuple[Rung, ...]:
        """The models of the ladder; empty without one."""
        return () if self.ladder is None else rungs(self.ladder, self.runs.params)

    @property
    def goal(self) -> Advice:
        """The advice that the page begins with: that of the second target (10 times the largest compute) or the only
        one; where the runs do not identify it, the largest target that they do identify, if there is one.
        """
        asked = self.advice[min(1, len(self.advice) - 1)]
        known = [advice for advice in self.advice if advice.identified]
        return asked if asked.identified or not known else max(known, key=lambda advice: advice.flops)

    @property
    def fit(self) -> Fit[Any]:
        """The fit whose advice is given."""
        return self.fits[self.headline]


def study(
    runs: Runs,
    *,
    lr_choice: LrChoice = "lowest",
    bootstrap: int = 1000,
    seed: int = 0,
    level: float = 0.9,
    targets: Sequence[float] = (),
) -> Study:
    """Fit everything that can be fitted. `targets`: FLOPs to advise on; default 1, 10, 100 times the largest of the
    data.

    Where there is too little for any fit the headline is a surface that is NOT_IDENTIFIED, and what was measured stands
    for itself. ValueError when there is no loss at all.
    """
    points = runs.best(lr_choice)
    fits: dict[str, Fit[Any]] = {"surface": fit_points(points, bootstrap=bootstrap, seed=seed, level=level)}
    refusals: dict[str, str] = {}
    columns: Any = (points.flops, points.n, points.d, points.corrected_loss)
    options: dict[str, Any] = {"level": level, "seed": seed, "ids": points.ids}
    paths: dict[str, Callable[[], Fit[Any]]] = {
        "envelope": lambda: fit_envelope(*columns, clusters=points.clusters, draws=bootstrap, **options),
        "isoflop": lambda: fit_isoflop(*columns, **options),
    }
    for name, make in paths.items():
        try:
            fits[name] = make()
        except ValueError as refusal:
            refusals[name] = str(refusal)
    headline = _headline(fits)
    try:
        lr: Fit[LrLaw] | None = fit_lr_optimum(runs, level=level, draws=bootstrap, seed=seed)
    except ValueError as refusal:
        lr, refusals["learning rate"] = None, str(refusal)
    surface = fits["surface"]
    carried = None if surface.has(Caveat.FEW_SIZES) else influence(points, surface)
    try:
        held_out: Backtest | None = backtest(points, seed=seed)
    except ValueError as refusal:
        held_out, refusals["back-test"] = None, str(refusal)
    ladder = ladders.of_runs(runs)
    goals = tuple(targets) or tuple(points.flops.max() * factor for factor in TARGETS)
    advice = tuple(
        optimum(fits[headline], flops=c, ladder=ladder, params=runs.params, lr_fit=lr, level=level) for c in goals
    )
    table = conventions(runs, lr_choice)
    target = 10 * float(points.flops.max())
    next_refusal = ""
    try:
        trials = next_trials(fits[headline], target_flops=target, ladder=ladder, params=runs.params, points=points)
    except ValueError as refusal:
        next_refusal = str(refusal)
        trials = missing_trials(points, ladder=ladder, params=runs.params)
    another_seed = surface.has(Caveat.NOISE_ASSUMED) and points.noise is None
    trials = [*with_lrs(trials, runs, lr), *around_best(runs, another_seed=another_seed)]
    return Study(
        runs=runs,
        points=points,
        ladder=ladder,
        fits=fits,
        refusals=refusals,
        headline=headline,
        lr=lr,
        advice=advice,
        next_trials=tuple(trials),
        next_refusal=next_refusal,
        missing=tuple(missing(points, lr)),
        conventions=table,
        influence=carried,
        backtest=held_out,
        warnings=(
            *disagreements(fits, target, level),
            *_convention_warning(table),
            *(carried.warnings if carried else ()),
            *(held_out.warnings if held_out else ()),
        ),
    )


def _headline(fits: dict[str, Fit[Any]]) -> str:
    """The surface where it is identified, since it alone knows a floor; else the envelope, else what there is."""
    order = [name for name in ("surface", "envelope", "isoflop") if name in fits]
    for name in order:
        if fits[name].status == Status.CONVERGED:
            return name
    return order[min(1, len(order) - 1)]


def disagreements(fits: dict[str, Fit[Any]], flops: float, level: float) -> list[Warn]:
    """Pairs of approaches whose intervals of N* at `flops` do not overlap."""
    intervals = {name: fit.interval(lambda law: law.n_opt(flops), level) for name, fit in fits.items()}
    known = {name: interval for name, interval in intervals.items() if interval is not None}
    found = []
    names = sorted(known)
    for i, one in enumerate(names):
        for other in names[i + 1 :]:
            if known[one].high < known[other].low or known[other].high < known[one].low:
                detail = (
                    f"N* at {flops:.3g} FLOPs: {_span(one, known[one])} and {_span(other, known[other])} do not overlap"
                )
                found.append(Warn(kind=Caveat.APPROACHES_DISAGREE, detail=detail))
    return found


def _span(name: str, interval: Any) -> str:
    return f"{name} [{interval.low:.3g}, {interval.high:.3g}]"


def conventions(runs: Runs, lr_choice: LrChoice = "lowest") -> pd.DataFrame:
    """Exponent of N*(C) by convention of N and FLOPs: columns params, flops, surface, envelope (nan where refused)."""
    rows = []
    for params in ("with_head", "total", "non_embedding"):
        if f"n_params_{params}" not in runs.records:
            continue
        for flops in ("exact", "6nd"):
            points = load(runs.records, params=params, flops=flops).best(lr_choice)
            row: dict[str, Any] = {"params": params, "flops": flops, "surface": np.nan, "envelope": np.nan}
            surface = fit_surface(points.n, points.d, points.corrected_loss, weights=points.weights)
            if surface.status == Status.CONVERGED:
                row["surface"] = surface.law.a
            # Too few budgets on the envelope in this convention: the cell stays empty.
            with contextlib.suppress(ValueError):
                path = fit_envelope(points.flops, points.n, points.d, points.corrected_loss, draws=0)
                row["envelope"] = path.law.a if path.status == Status.CONVERGED else np.nan
            rows.append(row)
    return pd.DataFrame(rows, columns=["params", "flops", "surface", "envelope"])


def _convention_warning(table: pd.DataFrame) -> list[Warn]:
    found = []
    for approach in ("surface", "envelope"):
        known = table[approach].dropna()
        if len(known) > 1 and known.max() - known.min() > EXPONENT_MATTERS:
            detail = f"{approach}: the exponent of N* runs from {known.min():.3f} to {known.max():.3f} by convention"
            found.append(Warn(kind=Caveat.CONVENTION_CHANGES_EXPONENT, detail=detail))
    return found


def left_out_counts(fit: Fit[Any]) -> dict[Reason, int]:
    """How many points each reason took."""
    reasons = list(fit.left_out.values())
    return {reason: reasons.count(reason) for reason in Reason if reason in reasons}
