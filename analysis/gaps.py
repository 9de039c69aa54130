"""What a sweep lacks before any law of it is identified."""

from __future__ import annotations

import numpy as np

from analysis.advise import Trial
from analysis.ladder import Rung, rungs
from analysis.runs import Params, Points
from tinyllm.config import ModelConfig

NEED = 3
"""Sizes, and token counts, that separate a term from the floor."""


def missing_trials(
    points: Points, *, ladder: ModelConfig | None = None, params: Params = "with_head", count: int = 12
) -> list[Trial]:
    """The runs that fill a grid of at least 3 sizes by 3 token counts, fewest FLOPs first; their gain is None.

    Sizes are added at twice the largest and half the smallest (with a ladder the nearest depth there), token counts
    by doubling the largest. Where the grid is full, one more token count of every size.
    """
    sizes, tokens = _sizes(points), sorted(set(points.d.tolist()))
    while len(sizes) < NEED:
        sizes.append(_another(sizes, ladder, params))
    while len(tokens) < NEED:
        tokens.append(2 * tokens[-1])
    measured = set(zip(points.n.tolist(), points.d.tolist(), strict=True))
    cells = [(rung, d) for rung in sizes for d in tokens if (rung.n, d) not in measured]
    cells = cells or [(rung, 2 * tokens[-1]) for rung in sizes]
    found = [
        Trial(depth=rung.depth if rung.depth >= 0 else None, n=rung.n, d=d, flops=rung.flops_per_token * d, gain=None)
        for rung, d in cells
    ]
    return sorted(found, key=lambda trial: trial.flops)[:count]


def _sizes(points: Points) -> list[Rung]:
    """The sizes tried, with the FLOPs per token that they took."""
    first = np.unique(points.n, return_index=True)[1]
    return [
        Rung(depth=int(points.depth[i]), n=float(points.n[i]), flops_per_token=float(points.flops[i] / points.d[i]))
        for i in first
    ]


def _another(sizes: list[Rung], ladder: ModelConfig | None, params: Params) -> Rung:
    """Twice the only size; half the smallest of two, where the ladder has one."""
    smallest, largest = min(rung.n for rung in sizes), max(rung.n for rung in sizes)
    downward = len(sizes) > 1
    if ladder is None:
        n = smallest / 2 if downward else 2 * largest
        return Rung(depth=-1, n=n, flops_per_token=6 * n)
    below = [rung for rung in rungs(ladder, params) if rung.n < smallest]
    above = [rung for rung in rungs(ladder, params) if rung.n > largest]
    if downward and below:
        return min(below, key=lambda rung: abs(np.log(rung.n / (smallest / 2))))
    return min(above, key=lambda rung: abs(np.log(rung.n / (2 * largest))))
