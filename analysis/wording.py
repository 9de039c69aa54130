"""Numbers and verdicts in words, the same on the page, in Markdown and on the terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from analysis import plots
from analysis.advise import Advice
from analysis.cautions import cautions
from analysis.laws import KaplanSurface, LossSurface, OptimalPath
from analysis.result import Caveat, Fit, Interval, Status
from analysis.study import Study
from analysis.trials import Trial

NOT_KNOWN = "not known"


def verdict(study: Study) -> list[str]:
    """What must be read before any number of the report: sentences, none where the surface is identified."""
    surface, goal = study.fits["surface"], study.goal
    said = cautions(surface.warnings, len(study.points))
    unknown = [advice for advice in study.advice if not advice.identified]
    if unknown:
        why = f"{study.headline}: {study.fit.status}"
        if study.fit.status == Status.CONVERGED:
            why = next(warn.detail for warn in unknown[0].warnings if warn.kind == Caveat.WIDE_INTERVAL)
        start = (
            "No advice yet"
            if unknown[0].flops <= goal.flops
            else f"No advice from {compute(unknown[0].flops)} FLOPs on"
        )
        said.append(f"{start}: these runs do not identify what is compute-optimal ({why}).")
        said.append(f"Missing: {'; '.join(study.missing)}.")
    if surface.status != Status.CONVERGED:
        known = f" (90 % interval {span(surface.intervals['E'])})" if "E" in surface.intervals else ""
        said.append(f"The surface ended {surface.status}: its floor E is not quoted{known}.")
    if isinstance(study.fit.law, OptimalPath) and any(loss_words(advice) != NOT_KNOWN for advice in study.advice):
        said.append(
            f"The {study.headline} has no floor: from the largest run on its losses and their intervals are too low."
        )
    if goal.lr_bound:
        said.append(f"The best LR is {lr_words(goal)}.")
    if not study.fit.draws and study.fit.status == Status.CONVERGED:
        said.append("Without resamples there are no intervals: how sure these numbers are is not known.")
    return said


def lr_words(advice: Advice) -> str:
    """The peak LR advised: a value, or what is known of it instead."""
    if advice.lr is None:
        return NOT_KNOWN
    value = number(advice.lr.value, 2)
    if advice.lr_bound == "only":
        return f"not known: {value} is the only one tried"
    if advice.lr_bound:
        return f"{advice.lr_bound} {value} at the sizes tried: it lies at the edge of the grid"
    interval = advice.lr.interval
    known = interval is None or np.isfinite([interval.low, interval.high]).all()
    return value if known else f"near {value}, where it was best among those tried"


def lr_short(advice: Advice) -> str:
    """The same for a cell of a table."""
    if advice.lr is None:
        return "–"
    sign = {"": "", "at least": "≥ ", "at most": "≤ ", "only": "only "}[advice.lr_bound]
    return f"{sign}{number(advice.lr.value, 2)}"


def best_lr(row: Mapping[Any, Any]) -> str:
    """The best LR of one size and token count, a row of `analysis.lr.optima`: a value, or what is known of it."""
    value = number(row["lr"], 2)
    if pd.isna(row["reason"]):
        return value
    if row["bound"] == "only":
        return f"{value}, the only one tried"
    return f"{row['bound']} {value}, at the edge of those tried" if row["bound"] else f"near {value}, not bracketed"


def loss_words(advice: Advice) -> str:
    """The loss expected: a value with its interval where what to train is known, else the interval alone."""
    interval = advice.loss.interval
    if advice.identified:
        return f"{advice.loss.value:.4f} ({span(interval, 5)})"
    return NOT_KNOWN if interval is None or not np.isfinite(interval.high) else span(interval, 5)


def trial_words(trial: Trial) -> str:
    """A trial on one line."""
    size = f"depth {trial.depth}" if trial.depth is not None else f"{number(trial.n)} parameters"
    tokens = ", ".join(number(d) for d in (*trial.branches, trial.d))
    lrs = f" at LR {', '.join(number(lr, 2) for lr in trial.lrs)}" if trial.lrs else ""
    return f"{size} on {tokens} tokens{lrs}, seed {trial.seed}: {why(trial)}"


def why(trial: Trial) -> str:
    """What a trial is for."""
    if trial.gain is not None:
        return f"removes {100 * trial.gain:.0f} % of the variance of the loss predicted at 10×"
    return trial.why or "not measured yet: completes the grid"


def number(value: float | None, digits: int = 3) -> str:
    """A number for people: 3 significant digits, thousands as k, M, B up to a trillion, powers of ten beyond."""
    if value is None or np.isnan(value):
        return "–"
    if np.isinf(value):
        return "∞" if value > 0 else "−∞"
    return plots.short(value, digits)


def compute(value: float) -> str:
    """FLOPs for people: 5.07e14."""
    mantissa, exponent = f"{value:.2e}".split("e")
    return f"{mantissa.rstrip('0').rstrip('.')}e{int(exponent)}"


def span(interval: Interval | None, digits: int = 3) -> str:
    """An interval for people, or that there is none."""
    if interval is None:
        return "no interval"
    if np.isinf(interval.low) and np.isinf(interval.high):
        return "unbounded"
    return f"{number(interval.low, digits)} … {number(interval.high, digits)}"


def formula(fit: Fit[Any]) -> str:
    """The fitted law with its numbers, on one line."""
    law = fit.law
    if isinstance(law, LossSurface):
        # A floor is seen by nobody: it is quoted with its interval or not at all.
        known = fit.status == Status.CONVERGED and "E" in fit.intervals
        floor = f"{law.E:.4g} [{span(fit.intervals['E'], 4)}]" if known else "E"
        return f"L(N, D) = {floor} + {law.A:.4g} / N^{law.alpha:.3f} + {law.B:.4g} / D^{law.beta:.3f}"
    if isinstance(law, KaplanSurface):
        return f"L(N, D) = [({law.n_c:.3g} / N)^{law.alpha_n / law.alpha_d:.3f} + {law.d_c:.3g} / D]^{law.alpha_d:.3f}"
    if isinstance(law, OptimalPath):
        return (
            f"L*(C) = {np.exp(law.loss_intercept):.4g} C^{law.loss_exponent:.4f},  "
            f"N*(C) = {np.exp(law.n_intercept):.3g} C^{law.n_exponent:.3f},  "
            f"D*(C) = {np.exp(law.d_intercept):.3g} C^{law.d_exponent:.3f}"
        )
    return str(law)


def sentence(text: str) -> str:
    """With a capital letter; the rest as it is, unlike str.capitalize."""
    return text[:1].upper() + text[1:]
