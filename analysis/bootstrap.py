"""Resampling: what the same experiment might have given instead.

Published tables are resampled by row, as their authors did. A sweep of this product is not a set of independent
rows: the horizons of one trunk share its initialisation and its data, so their errors move together, and the
residuals are resampled by trunk (wild cluster bootstrap).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from analysis.laws import FloatArray

MIN_CLUSTERS = 6
"""Fewer clusters than this cannot show their own scatter: 2^5 sign patterns are too few for a 90 % interval."""

WEBB = np.sqrt([0.5, 1.0, 1.5])
"""Magnitudes of the six-point weights (mean 0, variance 1) of Webb 2023, Reworking wild bootstrap-based inference."""


def row_weights(n_points: int, draws: int, rng: np.random.Generator) -> FloatArray:
    """How often each row is drawn in each of `draws` resamples with replacement, shape (draws, n_points)."""
    drawn = rng.integers(0, n_points, (draws, n_points)) + n_points * np.arange(draws)[:, None]
    return np.bincount(drawn.ravel(), minlength=draws * n_points).reshape(draws, n_points).astype(float)


def cluster_index(clusters: Sequence[object] | np.ndarray) -> np.ndarray:
    """Cluster labels as integers 0..G-1, shape (n,)."""
    return np.unique(np.asarray(clusters).astype(str), return_inverse=True)[1]


def hat_matrix(jacobian: FloatArray, weights: FloatArray) -> FloatArray:
    """Projection of residuals on the k directions the fit can follow, (n, n), symmetric in sqrt(weight) units."""
    scaled = np.sqrt(weights)[:, None] * jacobian
    u, s, _ = np.linalg.svd(scaled, full_matrices=False)
    u = u[:, s > 1e-10 * s.max()]
    return u @ u.T


def inflate_by_cluster(residuals: FloatArray, hat: FloatArray, cluster: np.ndarray) -> FloatArray:
    """Residuals as if each cluster had not taken part in its own fit: (I - H_gg)^(-1) r_g.

    This is the CR3 (jackknife) correction, advised for few clusters (MacKinnon, Nielsen and Webb 2023): the fit absorbs
    most of a cluster's common error, and the usual square root of it (CR2) puts too little back. How well the intervals
    cover: `python -m benchmarks.coverage`. A direction that a cluster determines alone cannot be put back.
    """
    out = np.empty_like(residuals)
    for g in range(cluster.max() + 1):
        rows = np.flatnonzero(cluster == g)
        values, vectors = np.linalg.eigh(np.eye(len(rows)) - hat[np.ix_(rows, rows)])
        inverse = np.where(values > 1e-6, 1 / np.maximum(values, 1e-6), 0.0)
        out[rows] = vectors @ (inverse * (vectors.T @ residuals[rows]))
    return out


def webb_weights(n_clusters: int, draws: int, rng: np.random.Generator) -> FloatArray:
    """One weight a cluster and draw, (draws, n_clusters): +-sqrt(1/2), +-1, +-sqrt(3/2), equally likely."""
    sign = rng.choice([-1.0, 1.0], size=(draws, n_clusters))
    return sign * rng.choice(WEBB, size=(draws, n_clusters))


def correlated_noise(
    cluster: np.ndarray, sd: FloatArray, trunk_share: float, draws: int, rng: np.random.Generator
) -> FloatArray:
    """Gaussian errors (draws, n) of standard deviation `sd` (n,), of whose variance `trunk_share` is common to a
    cluster.
    """
    if not 0 <= trunk_share <= 1:
        raise ValueError(f"trunk_share={trunk_share} is a share of the variance: between 0 and 1")
    common = rng.standard_normal((draws, cluster.max() + 1))[:, cluster]
    own = rng.standard_normal((draws, len(cluster)))
    return sd * (np.sqrt(trunk_share) * common + np.sqrt(1 - trunk_share) * own)


def choose(values: FloatArray, cell: np.ndarray, n_cells: int) -> np.ndarray:
    """Per row of `values` (draws, candidates) the index of the lowest of each cell's candidates: (draws, n_cells)."""
    out = np.empty((len(values), n_cells), int)
    for k in range(n_cells):
        members = np.flatnonzero(cell == k)
        out[:, k] = members[values[:, members].argmin(1)]
    return out


def student_scale(spare: float, draws: int, rng: np.random.Generator) -> FloatArray:
    """Factors (draws, 1) that turn Gaussian errors of an estimated scale into Student's t with `spare` degrees of
    freedom.
    """
    return np.sqrt(spare / rng.chisquare(spare, size=(draws, 1)))


def trunk_noise(residual: FloatArray, hat: FloatArray, cluster: np.ndarray, trunk_share: float) -> tuple[float, float]:
    """Standard deviation of an error, and its effective degrees of freedom, from least-squares residuals.

    With M = I - hat and V the correlation of errors (1 on the diagonal, `trunk_share` within a trunk), E[r'r] =
    sd^2 tr(MV); Satterthwaite's degrees of freedom are tr(MV)^2 / tr(MVMV).
    """
    correlation = np.where(cluster[:, None] == cluster[None], trunk_share, 0.0)
    np.fill_diagonal(correlation, 1.0)
    spread = (np.eye(len(residual)) - hat) @ correlation
    expected = float(np.trace(spread))
    # With no residual left (as many parameters as points) both are 0 up to rounding.
    if expected < 1e-9:
        return float("nan"), 0.0
    return float(np.sqrt(residual @ residual / expected)), expected**2 / float(np.trace(spread @ spread))
