"""Resampling against the moments it must have."""

import dataclasses

import numpy as np
import pandas as pd
import pytest

from analysis import bootstrap as boot
from analysis.fit import fit_points
from analysis.laws import LossSurface
from analysis.runs import Rivals, load


def test_row_weights_count_n_draws_of_n_rows():
    counts = boot.row_weights(50, 4000, np.random.default_rng(0))
    assert (counts.sum(1) == 50).all()
    # Binomial(50, 1/50): mean 1, variance .98.
    assert counts.mean(0) == pytest.approx(np.ones(50), abs=0.08)
    assert counts.var() == pytest.approx(0.98, abs=0.02)


def test_webb_weights_have_mean_0_variance_1_and_no_skew():
    w = boot.webb_weights(10, 20_000, np.random.default_rng(0))
    assert w.mean() == pytest.approx(0, abs=0.01)
    assert w.var() == pytest.approx(1, abs=0.01)
    assert (w**3).mean() == pytest.approx(0, abs=0.03)


def test_hat_matrix_is_the_projection():
    rng = np.random.default_rng(0)
    jacobian, weights, y = rng.normal(size=(12, 3)), rng.uniform(0.5, 2, 12), rng.normal(size=12)
    hat = boot.hat_matrix(jacobian, weights)
    root = np.sqrt(weights)
    coef = np.linalg.lstsq(root[:, None] * jacobian, root * y, rcond=None)[0]
    np.testing.assert_allclose(hat @ (root * y), root * (jacobian @ coef), atol=1e-12)


def test_cluster_correction_gives_the_residuals_of_a_fit_without_the_cluster():
    rng = np.random.default_rng(1)
    jacobian, y, cluster = rng.normal(size=(15, 3)), rng.normal(size=15), np.repeat(np.arange(5), 3)
    hat = boot.hat_matrix(jacobian, np.ones(15))
    corrected = boot.inflate_by_cluster(y - hat @ y, hat, cluster)
    for g in range(5):
        out = cluster == g
        coef = np.linalg.lstsq(jacobian[~out], y[~out], rcond=None)[0]
        np.testing.assert_allclose(corrected[out], y[out] - jacobian[out] @ coef, atol=1e-10)


def test_trunk_noise_is_unbiased_under_its_own_model():
    rng = np.random.default_rng(2)
    cluster = np.repeat(np.arange(4), 3)
    jacobian = rng.normal(size=(12, 5))
    hat = boot.hat_matrix(jacobian, np.ones(12))
    errors = boot.correlated_noise(cluster, np.full(12, 0.003), 0.5, 4000, rng)
    variances = [boot.trunk_noise(e - hat @ e, hat, cluster, 0.5)[0] ** 2 for e in errors]
    assert np.mean(variances) == pytest.approx(0.003**2, rel=0.05)


def test_correlated_noise_has_the_stated_correlation():
    errors = boot.correlated_noise(
        np.array([0, 0, 1]), np.array([1.0, 2.0, 1.0]), 0.3, 50_000, np.random.default_rng(0)
    )
    assert np.corrcoef(errors.T) == pytest.approx(np.array([[1, 0.3, 0], [0.3, 1, 0], [0, 0, 1]]), abs=0.02)
    assert errors.std(0) == pytest.approx([1, 2, 1], rel=0.02)
    with pytest.raises(ValueError, match=r"trunk_share=1\.5"):
        boot.correlated_noise(np.array([0]), np.ones(1), 1.5, 1, np.random.default_rng(0))


def test_the_lowest_of_each_cell_is_chosen():
    values = np.array([[3.0, 1.0, 2.0, 5.0], [1.0, 3.0, 5.0, 2.0]])
    np.testing.assert_array_equal(boot.choose(values, np.array([0, 0, 1, 1]), 2), [[1, 2], [0, 3]])


def test_student_scale_gives_students_t():
    rng = np.random.default_rng(0)
    t = boot.student_scale(5, 200_000, rng)[:, 0] * rng.standard_normal(200_000)
    # Student's t with 5 degrees of freedom: 95th percentile 2.015.
    assert np.quantile(t, 0.95) == pytest.approx(2.015, abs=0.03)


def test_a_repeated_choice_neither_moves_nor_shrinks_what_was_chosen():
    """Of five LRs that hardly differ the lowest is picked; resamples pick again, around the estimate and as wide."""
    law = LossSurface(A=28.0, B=120.0, E=1.8, alpha=0.34, beta=0.37)
    grids = np.meshgrid(np.geomspace(5e4, 2e6, 8), np.geomspace(1e6, 2e7, 5), np.arange(-2, 3), indexing="ij")
    n, d, k = (g.ravel() for g in grids)
    errors = 0.003 * np.random.default_rng(0).standard_normal(len(n))
    loss = law.loss(n, d) * np.exp(0.0006 * k**2 + errors)
    points = load(pd.DataFrame({"n_params": n, "tokens": d, "loss": loss, "lr": 0.02 * 1.4**k})).best()
    alone = Rivals.none(points.clusters)
    chosen = fit_points(points, bootstrap=400)
    fixed = fit_points(dataclasses.replace(points, rivals=alone), bootstrap=400)
    for quantity in (lambda law: np.log(law.loss(1e6, 1e7)), lambda law: law.alpha):
        draws, still = quantity(chosen.law_draws), quantity(fixed.law_draws)
        assert not np.array_equal(draws, still)
        assert abs(draws.mean() - quantity(chosen.law)) < 0.5 * draws.std()
        assert 0.6 < draws.std() / still.std() < 1.6
