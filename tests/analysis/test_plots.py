"""Each figure takes Axes, gives them back, states its conventions, and draws what was measured."""

import io

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure

from analysis import plots, report, sample
from analysis.runs import load
from analysis.study import study
from tinyllm import record


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


def table(n, d, lr, loss):
    return load(pd.DataFrame({"n_params": n, "tokens": d, "lr": lr, "loss": loss}))


GRID = np.array(np.meshgrid([1e5, 1e6], [1e7, 2e7], [0.01, 0.02, 0.04], indexing="ij")).reshape(3, -1)
DEGENERATE = {
    "one size": lambda: load(record.frame(sample.records(depths=(3,)))),
    "one budget": lambda: load(record.frame(sample.records(budgets=(1_000_000,)))),
    "one LR": lambda: load(record.frame(sample.records(depths=(2, 3, 4), lrs=(0.03,)))),
    "LR at the edge": lambda: load(record.frame(sample.records(depths=(2, 3), lrs=(0.005, 0.01)))),
    "equal best LRs": lambda: table(*GRID, 3 + 0.01 * np.abs(np.log2(GRID[2] / 0.02)) + 1e4 / GRID[0] + 1e6 / GRID[1]),
    "three points": lambda: table([1e5, 2e5, 4e5], [1e7] * 3, [0.01] * 3, [3.0, 2.9, 2.85]),
}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("case", DEGENERATE)
def test_every_figure_of_a_poor_sweep_can_be_read(case, monkeypatch):
    """Each axis spans something, names at least one value of it, and shows every point inside its frame."""
    drawn = []

    def draw_only(draw, **options):
        figure = Figure()
        drawn.append(draw(figure.add_subplot()))
        figure.savefig(io.BytesIO(), format="svg")
        return ""

    monkeypatch.setattr(report.svg, "render", draw_only)
    report.figures(study(DEGENERATE[case](), bootstrap=20))
    assert len(drawn) >= 4
    for ax in drawn:
        for axis in (ax.xaxis, ax.yaxis):
            low, high = axis.get_view_interval()
            assert high / low > 1.1 if axis.get_scale() == "log" else high - low > 1e-3
            shown = [label.get_text() for label in axis.get_ticklabels() if label.get_text()]
            assert shown and len(set(shown)) == len(shown), (ax.get_ylabel(), shown)
        (x_low, x_high), (y_low, y_high) = ax.get_xlim(), ax.get_ylim()
        for dots in ax.collections:
            if dots.get_offsets().any():
                x, y = np.asarray(dots.get_offsets()).T
                assert (x_low <= x).all() and (x <= x_high).all() and (y_low <= y).all() and (y <= y_high).all()


def test_every_lr_tried_has_its_tick(ax):
    plots.lr_optimum(ax, DEGENERATE["equal best LRs"]())
    assert [label.get_text() for label in ax.get_xticklabels()] == ["0.01", "0.02", "0.04"]
    assert list(ax.get_xticks()) == [0.01, 0.02, 0.04]


def test_a_law_that_the_points_leave_open_is_not_drawn(ax):
    poor = study(DEGENERATE["one size"](), bootstrap=20)
    assert not any(fit.determined for fit in poor.fits.values())
    titles = [figure["title"] for figure in report.figures(poor)]
    assert not {"The surface L(N, D)", "Residuals", "Tokens per parameter"} & set(titles)
    assert report.figures(poor)[0]["caption"].endswith("They identify no law, so there is no line.")
