"""What a sweep lacks before any law of it is identified."""

from __future__ import annotations

import numpy as np

from analysis.bootstrap import MIN_CLUSTERS
from analysis.ladder import Rung, rungs
from analysis.laws import LrLaw
from analysis.result import Caveat, Fit
from analysis.runs import Params, Points
from analysis.trials import Trial
from tinyllm.config import ModelConfig
from tinyllm.plan import FEW_DECAY_STEPS

NEED = 3
"""Sizes, and token counts, that separate a term from the floor."""


def missing(points: Points, lr: Fit[LrLaw] | None) -> list[str]:
    """What runs that do not identify an optimum lack, in words: sizes, token counts, LRs beyond the edge, a seed."""
    found = []
    for name, values in (("sizes", points.n), ("token counts", points.d)):
        count = len(np.unique(values))
        if count < NEED:
            found.append(
                f"{NEED - count} more {name if NEED - count > 1 else name[:-1]} ({count} measured, {NEED} needed)"
            )
    if not found:
        spans = [
            f"{name} over a factor of {x.max() / x.min():.2g}"
            for name, x in (("sizes", points.n), ("token counts", points.d))
        ]
        found.append(f"sizes and token counts further apart ({' and '.join(spans)} so far)")
    if lr is not None and (bound := lr.settings["bound"]):
        value = f"{float(lr.law(points.n.max(), points.d.max())):.2g}"
        found.append(
            {
                "at least": f"LRs above {value}, the highest tried, which was the best",
                "at most": f"LRs below {value}, the lowest tried, which was the best",
                "only": f"LRs beside {value}, the only one tried",
            }[bound]
        )
    short = sum(len(warn.points) for warn in points.warnings if warn.kind == Caveat.FEW_DECAY_STEPS)
    if short:
        found.append(f"token counts whose decay takes {FEW_DECAY_STEPS} steps or more ({short} losses had fewer)")
    if points.noise is None and len(set(points.clusters.tolist())) < MIN_CLUSTERS:
        found.append("a second seed, to see the noise")
    return found


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
