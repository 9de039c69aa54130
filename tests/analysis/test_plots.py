"""Each figure takes Axes, gives them back, states its conventions, and draws what was measured."""

import numpy as np
import pytest
from matplotlib.figure import Figure

from analysis import plots
from analysis.study import study


@pytest.fixture(scope="module")
def result(sample_runs):
    return study(sample_runs, bootstrap=50)


@pytest.fixture
def ax():
    return Figure().add_subplot()


def test_each_figure_returns_its_axes_with_units(result, ax):
    figures = {
        "loss_vs_compute": lambda a: plots.loss_vs_compute(a, result.points, result.fit, sizes=result.sizes),
        "loss_by_tokens": lambda a: plots.loss_by_tokens(a, result.points, result.fits["surface"]),
        "isoflop_curves": lambda a: plots.isoflop_curves(a, result.points),
        "surface_contours": lambda a: plots.surface_contours(a, result.points, result.fits["surface"]),
        "lr_optimum": lambda a: plots.lr_optimum(a, result.runs),
        "lr_path": lambda a: plots.lr_path(a, result.runs, result.lr),
        "curves": lambda a: plots.curves(a, result.runs, result.points.ids[:3]),
        "residuals": lambda a: plots.residuals(a, result.points, result.fits["surface"]),
        "influence": lambda a: plots.influence(a, result.influence),
        "predicted_vs_measured": lambda a: plots.predicted_vs_measured(a, result.backtest),
        "tokens_per_param": lambda a: plots.tokens_per_param(a, result.fits, 1e12, 1e14),
    }
    for name, draw in figures.items():
        axes = Figure().add_subplot()
        assert draw(axes) is axes, name
        assert axes.get_xlabel(), name


def test_points_keep_their_place_and_their_run(result, ax):
    plots.loss_vs_compute(ax, result.points, result.fit, sizes=result.sizes)
    drawn = {url: tuple(xy) for dots in ax.collections if dots.get_urls() != [None]
             for url, xy in zip(dots.get_urls(), dots.get_offsets(), strict=False)}  # fmt: skip
    assert len(drawn) == len(result.points)
    for point, flops, loss in zip(result.points.ids, result.points.flops, result.points.loss, strict=True):
        assert drawn[f"#{point}"] == (flops, loss)


def test_fitted_line_runs_ten_times_beyond_the_data(result, ax):
    plots.loss_vs_compute(ax, result.points, result.fit, sizes=result.sizes)
    x, y = ax.lines[0].get_data()
    assert x[-1] == pytest.approx(10 * result.points.flops.max())
    assert (np.diff(y) < 0).all()
    # No measured loss lies far below the lowest loss the law allows.
    lowest = np.interp(np.log(result.points.flops), np.log(x), y)
    assert (result.points.loss > 0.99 * lowest).all()


def test_conventions_name_the_axes(result, ax):
    plots.loss_vs_compute(ax, result.points, None, flops="6nd")
    assert ax.get_xlabel() == "training FLOPs, 6 N D"
    plots.isoflop_curves(ax, result.points, params="non_embedding")
    assert ax.get_xlabel() == "parameters N, without embedding and head"


def test_series_differ_in_marker_as_well_as_colour(result, ax):
    plots.loss_by_tokens(ax, result.points, None)
    outlines = {dots.get_paths()[0].vertices.tobytes() for dots in ax.collections}
    assert len(outlines) == len(np.unique(result.points.n))
    lightness = [0.2126 * r + 0.7152 * g + 0.0722 * b for r, g, b, _ in plots.shades(5)]
    assert lightness == sorted(lightness, reverse=True)


def test_short_tick_labels():
    assert [plots.short(x) for x in (0.02, 3.25, 250_000, 1.5e6, 2e9)] == ["0.02", "3.25", "250k", "1.5M", "2B"]
