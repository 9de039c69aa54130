"""Points that carry the answer, on the data that made the question famous."""

import numpy as np
import pandas as pd
import pytest

from analysis.fit import fit_envelope, fit_surface
from analysis.influence import influence
from analysis.laws import LossSurface
from analysis.result import Caveat
from analysis.runs import load

LAW = LossSurface(A=406.4, B=410.7, E=1.69, alpha=0.34, beta=0.28)


def as_points(n, d, loss):
    return load(pd.DataFrame({"n_params": n, "tokens": d, "loss": loss})).best()


def fitted(points):
    return fit_surface(points.n, points.d, points.loss, ids=points.ids)


def grid(seed=0):
    n, d = (g.ravel() for g in np.meshgrid(np.geomspace(1e6, 1e8, 8), np.geomspace(1e8, 1e10, 8)))
    return n, d, LAW.loss(n, d) * np.exp(0.002 * np.random.default_rng(seed).standard_normal(64))


def test_the_five_outliers_of_chinchilla_carry_the_answer(published, chinchilla):
    table = published("chinchilla_epoch")
    n = table["Model Size"].to_numpy()
    points = as_points(n, table["Training FLOP"].to_numpy() / (6 * n), table["loss"].to_numpy())
    found = influence(points, fitted(points))
    assert [warn.kind for warn in found.warnings] == [Caveat.INFLUENTIAL_POINTS]
    outliers = {f"row {i}" for i in table["loss"].nlargest(5).index}
    assert len(outliers & set(found.carriers)) >= 4
    without = as_points(*chinchilla)
    assert influence(without, fitted(without)).warnings == ()


@pytest.mark.parametrize("seed", range(3))
def test_clean_grid_has_no_carriers(seed):
    points = as_points(*grid(seed))
    assert influence(points, fitted(points)).warnings == ()


def test_shift_is_that_of_a_fit_without_the_point():
    points = as_points(*grid())
    fit = fitted(points)
    found = influence(points, fit)
    i = int(np.argmax(np.abs(found.shift)))
    keep = np.arange(64) != i
    c = 10 * float(points.flops.max())
    alone = fit_surface(points.n[keep], points.d[keep], points.loss[keep])
    assert found.shift[i] == pytest.approx(np.log(alone.law.n_opt(c) / fit.law.n_opt(c)), abs=1e-4)


def test_only_a_surface_has_influence():
    points = as_points(*grid())
    with pytest.raises(ValueError, match="not for a OptimalPath"):
        influence(points, fit_envelope(points.flops, points.n, points.d, points.loss))
