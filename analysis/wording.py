"""Numbers and verdicts in words, the same on the page, in Markdown and on the terminal."""

from __future__ import annotations

from typing import Any

import numpy as np

from analysis import plots
from analysis.laws import KaplanSurface, LossSurface, OptimalPath
from analysis.result import Fit, Interval, Status
from analysis.study import Study


def verdict(study: Study) -> list[str]:
    """What must be read before any number of the report: sentences, none where the surface is identified."""
    said, surface = [], study.fits["surface"]
    if study.fit.status != Status.CONVERGED:
        said.append(
            f"These runs do not identify what is compute-optimal ({study.headline}: {study.fit.status}). "
            "The numbers are as far as the runs go: a guide, not a measurement."
        )
    if surface.status != Status.CONVERGED:
        known = f" (90 % interval {span(surface.intervals['E'])})" if "E" in surface.intervals else ""
        said.append(f"The surface ended {surface.status}: its floor E is not quoted{known}.")
    if isinstance(study.fit.law, OptimalPath):
        said.append(
            f"The {study.headline} has no floor: far beyond the data its losses and their intervals are too low."
        )
    return said


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
