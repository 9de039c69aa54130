"""The lowest of several losses is low by its own error too (the winner's curse): by how much, at each point."""

from __future__ import annotations

import numpy as np

from analysis.laws import FloatArray

NEIGHBOURS = 2
"""LRs on each side of the best whose losses show its shape and the noise; farther ones are no rivals."""
MIN_SPARE = 8
"""Degrees of freedom below which the scatter about the fitted shape is no estimate of the noise."""
DRAWS = 1000
CLOSE = 0.01
"""LRs nearer than this may be as good as the best, where nothing shows the noise."""
MATTERS = 5e-4
"""A bias of log loss that is worth a warning."""


def shape(
    cell: np.ndarray, gap: FloatArray, lr: FloatArray, seeds: FloatArray, n: FloatArray, d: FloatArray
) -> tuple[FloatArray, float | None]:
    """(mu, noise): log loss of each candidate above a level of its cell, (candidates,), and the noise of one seed.

    cell, gap, lr, seeds: one a candidate; gap is its log loss above the lowest of the cell; seeds, how many it is the
    mean of. n, d: one a cell. mu is a cubic in log LR, whose place may shift with log n and log d and whose width with
    log n, common to all cells: that pools what each says of it. Candidates too far from the best to be rivals keep
    their gap, and so does every one where there are too few to fit; then noise is None.
    """
    near = _near(cell, gap, lr)
    x, log_n, log_d = np.log(lr / np.exp(np.log(lr[near]).mean())), np.log(n)[cell], np.log(d)[cell]
    log_n, log_d = log_n - log_n.mean(), log_d - log_d.mean()
    features = np.column_stack([x, x**2, x**3, x * log_n, x * log_d, x**2 * log_n])
    # A level a cell: cells of fewer than two rivals say nothing.
    levels = (cell[:, None] == np.unique(cell[near])[None]).astype(float)
    design = np.column_stack([features, levels])[near] * np.sqrt(seeds[near])[:, None]
    coef, _, rank, _ = np.linalg.lstsq(design, gap[near] * np.sqrt(seeds[near]), rcond=None)
    spare = int(near.sum()) - rank
    if spare < MIN_SPARE:
        return gap, None
    left = gap[near] * np.sqrt(seeds[near]) - design @ coef
    mu = np.where(near, features @ coef[: features.shape[1]] + levels @ coef[features.shape[1] :], gap)
    return mu, float(np.sqrt(left @ left / spare))


def _near(cell: np.ndarray, gap: FloatArray, lr: FloatArray) -> np.ndarray:
    """True for the candidates at most `NEIGHBOURS` LRs away from the best of their cell, (candidates,)."""
    near = np.zeros(len(cell), bool)
    for k in np.unique(cell):
        rows = np.flatnonzero(cell == k)
        rows = rows[np.argsort(lr[rows], kind="stable")]
        best = int(np.argmin(gap[rows]))
        near[rows[max(0, best - NEIGHBOURS) : best + NEIGHBOURS + 1]] = True
    return near


def bias(cell: np.ndarray, mu: FloatArray, sd: FloatArray) -> FloatArray:
    """By how much the lowest log loss of each cell is on average below that of its best candidate, (cells,): 0 or less.

    That is E[min(mu + error)] - min(mu). mu, sd: log loss of each candidate above a level of its cell, and the standard
    deviation of its error.
    """
    rng = np.random.default_rng(0)
    out = np.zeros(int(cell.max()) + 1)
    for k in range(len(out)):
        rows = np.flatnonzero(cell == k)
        if len(rows) < 2:
            continue
        # Each error with its opposite, so that a single candidate far ahead has exactly no bias.
        errors = sd[rows] * rng.standard_normal((DRAWS // 2, len(rows)))
        losses = mu[rows] + np.concatenate([errors, -errors])
        out[k] = min(0.0, float(losses.min(axis=1).mean() - mu[rows].min()))
    return out
