"""What a reader must check before any number of a report: sentences, none where nothing is wrong."""

from __future__ import annotations

from collections.abc import Sequence

from analysis.result import Caveat, Warn

FIRST = (Caveat.OUTLIER_LOSS, Caveat.OFF_LAW, Caveat.REPEATS)
"""Warnings that a run or the table itself may be wrong."""


def cautions(warnings: Sequence[Warn], n_points: int) -> list[str]:
    """Sentences for those of `warnings` that come before the advice; `n_points`: how many the fit has."""
    said = [f"Check first: {warn.detail}." for kind in FIRST for warn in warnings if warn.kind == kind]
    at_edge = max((len(warn.points) for warn in warnings if warn.kind == Caveat.LR_AT_EDGE), default=0)
    if 2 * at_edge > n_points:
        said.append(
            f"The best LR of {at_edge} of {n_points} points lies at the edge of the LRs tried: their losses, and those "
            "expected here, are upper bounds, and no interval holds that error."
        )
    return said
