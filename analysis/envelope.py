"""Approach 1's lower envelope of loss against compute: which points lie on it, and what another sample would give."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from scipy.spatial import ConvexHull

from analysis.laws import FloatArray

MIN_POINTS, MIN_SIZES = 3, 3
"""Points and model sizes on the envelope; two sizes give a line by construction."""


def lower_hull(flops: FloatArray, loss: FloatArray) -> np.ndarray:
    """Indices of the lower convex hull of (log flops, log loss), sorted by flops, losses strictly falling.

    One far corner (2 max flops, 2 max loss) closes the hull above, as in Gemstones (McLeish et al. 2025), and is
    dropped. With two points or fewer distinct flops than 2 the lowest loss alone.
    """
    if len(np.unique(flops)) < 2:
        return np.array([int(np.argmin(loss))])
    points = np.column_stack([np.log(np.append(flops, 2 * flops.max())), np.log(np.append(loss, 2 * loss.max()))])
    hull = ConvexHull(points).vertices
    hull = hull[hull != len(flops)]
    hull = hull[np.argsort(flops[hull], kind="stable")]
    lowest_before = np.minimum.accumulate(np.append(np.inf, loss[hull]))[:-1]
    return hull[loss[hull] < lowest_before]


def too_few(n: FloatArray, d: FloatArray) -> str:
    """Why the points on the envelope (their sizes and tokens) cannot give exponents; empty where they can."""
    if len(n) < MIN_POINTS:
        return f"only {len(n)} points on the envelope, {MIN_POINTS} are the least"
    sizes, horizons = len(np.unique(n)), len(np.unique(d))
    if sizes < MIN_SIZES:
        return (
            f"the envelope holds {sizes} model size{'s' if sizes > 1 else ''}, {MIN_SIZES} are the least: it cannot "
            "tell how to share compute between size and tokens"
        )
    if horizons < 2:
        return "the envelope holds one token count: it cannot tell how to share compute between size and tokens"
    return ""


def at_edge(n: FloatArray, d: FloatArray) -> np.ndarray:
    """True for the points of the smallest or largest size or token count, (points,).

    Such a point may lie on the envelope for want of a better one beyond, which bends the lines through it: simulated
    sweeps of 60 points and more (`benchmarks.coverage`) overestimate the exponent of N* by .05 with them, .01 without.
    """
    return np.isin(n, [n.min(), n.max()]) | np.isin(d, [d.min(), d.max()])


def resample(
    flops: FloatArray, values: Mapping[str, FloatArray], cluster: np.ndarray, draws: int, seed: int
) -> dict[str, FloatArray]:
    """Lines through the envelopes of resampled clusters: `name`_intercept and `name`_exponent -> (draws,).

    values: n, d and loss, each (points,). cluster: (points,) integers from 0. Every other resample goes without the
    points of its envelope that are at an edge of the grid, where enough others are left: whether they belong to the
    law is not known. A resample whose envelope is a single point has no line and is drawn anew.
    """
    rng = np.random.default_rng(seed)
    log_c, logs = np.log(flops), np.log(np.column_stack(list(values.values())))
    edge = at_edge(values["n"], values["d"])
    members = [np.flatnonzero(cluster == g) for g in range(cluster.max() + 1)]
    lines = np.empty((draws, 2, logs.shape[1]))
    for k in range(draws):
        hull = np.empty(0, int)
        while len(hull) < 2:
            # A hull does not change when a point is drawn twice.
            rows = np.concatenate([members[g] for g in np.unique(rng.integers(0, len(members), len(members)))])
            hull = rows[lower_hull(flops[rows], values["loss"][rows])]
        inner = hull[~edge[hull]]
        if k % 2 and len(inner) >= MIN_POINTS:
            hull = inner
        x = log_c[hull] - log_c[hull].mean()
        slope = x @ logs[hull] / (x @ x)
        lines[k] = logs[hull].mean(0) - slope * log_c[hull].mean(), slope
    return {
        f"{name}_{part}": lines[:, j, i]
        for i, name in enumerate(values)
        for j, part in enumerate(("intercept", "exponent"))
    }
