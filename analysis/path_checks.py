"""Judges a fitted optimal path (approaches 1 and 2): which status it deserves and which warnings it must carry."""

from __future__ import annotations

import dataclasses

from analysis.laws import OptimalPath
from analysis.result import Caveat, Fit, Interval, Status, Warn

NAMES = {"n_exponent": "N*", "d_exponent": "D*", "loss_exponent": "the lowest loss"}


def judge(fit: Fit[OptimalPath], too_few: str) -> Fit[OptimalPath]:
    """The fit with its final status and warnings. too_few: what the points lack for exponents, empty if nothing.

    An exponent whose interval includes 0 does not show that size, tokens or loss change with compute at all.
    """
    if too_few:
        # Resamples share what the points leave open: their spread would look like knowledge.
        return dataclasses.replace(
            fit,
            status=Status.NOT_IDENTIFIED,
            intervals={name: Interval.unbounded(interval.level) for name, interval in fit.intervals.items()},
            draws={},
            warnings=(*fit.warnings, Warn(kind=Caveat.FEW_BUDGETS, detail=too_few)),
        )
    open_ended = [
        f"{NAMES[name]} from {interval.low:.3g} to {interval.high:.3g}"
        for name, interval in fit.intervals.items()
        if 0 in interval
    ]
    if not open_ended:
        return fit
    detail = f"exponents of compute whose interval includes 0: {', '.join(open_ended)}"
    warnings = (*fit.warnings, Warn(kind=Caveat.WIDE_INTERVAL, detail=detail))
    return dataclasses.replace(fit, status=Status.NOT_IDENTIFIED, warnings=warnings)
