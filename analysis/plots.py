"""One function a figure. Each takes Axes and returns them; units and conventions stand in the labels.

Readable in grey: series differ in marker or dash as well as in colour. Points carry their id, so that `analysis.svg` can
make them hover and link.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from analysis.isoflop import fit_levels
from analysis.laws import FloatArray, OptimalPath
from analysis.lr import optima
from analysis.result import Fit
from analysis.runs import Points, Runs

MARKERS = "osD^vP*Xhd<>"
DASHES = ("-", "--", "-.", ":", (0, (5, 1)), (0, (1, 1)))
DARK, ACCENT, FAINT = "#1b2a41", "#c8553d", "#9aa5b1"
N_LABEL = {
    "with_head": "parameters N, output head included",
    "total": "parameters N, all",
    "non_embedding": "parameters N, without embedding and head",
}
FLOPS_LABEL = {"exact": "training FLOPs, exact", "6nd": "training FLOPs, 6 N D"}


def shades(count: int) -> list[Any]:
    """`count` colours whose lightness falls steadily, so that they keep their order in grey."""
    from matplotlib import colormaps

    return [colormaps["viridis"](x) for x in np.linspace(0.85, 0.1, count)]


def size_labels(points: Points) -> dict[float, str]:
    """Each size's name: its depth where known, else its parameters."""
    return {
        n: f"d{depth}" if depth >= 0 else f"{n:.3g}"
        for n, depth in sorted(zip(points.n.tolist(), points.depth.tolist(), strict=True))
    }


def _by_size(ax: Axes, points: Points, x: FloatArray, y: FloatArray) -> None:
    """Scatter with one colour and marker a size; each point keeps its id as a url."""
    labels = size_labels(points)
    for colour, marker, (n, label) in zip(shades(len(labels)), cycle(MARKERS), labels.items(), strict=False):
        rows = np.flatnonzero(points.n == n)
        dots = ax.scatter(
            x[rows], y[rows], s=34, color=colour, marker=marker, edgecolor="white", lw=0.6, label=label, zorder=3
        )
        dots.set_urls([f"#{points.ids[i]}" for i in rows])


def loss_vs_compute(ax: Axes, points: Points, fit: Fit[Any] | None, *, reach: float = 10.0, level: float = 0.9) -> Axes:
    """Every point's loss against its compute, and the fitted lowest loss with its band, `reach` times beyond the data."""
    _by_size(ax, points, points.flops, points.loss)
    if fit is not None:
        c = np.geomspace(points.flops.min(), reach * points.flops.max(), 80)
        ax.plot(c, lowest_loss(fit.law, c), color=DARK, lw=1.5, label=fit_label(fit))
        drawn = fit.law_draws
        if drawn is not None:
            curves = np.array([np.asarray(lowest_loss(drawn, value)) for value in c])
            low, high = np.quantile(curves, [(1 - level) / 2, (1 + level) / 2], axis=1)
            ax.fill_between(c, low, high, color=DARK, alpha=0.15, lw=0, label=f"{level:.0%} interval of the fit")
        ax.axvline(points.flops.max(), color=FAINT, lw=0.8, ls=":")
        ax.annotate(
            "largest run", (points.flops.max(), 1), xycoords=("data", "axes fraction"), xytext=(4, -10),
            textcoords="offset points", fontsize=8, color="#5b6770",
        )  # fmt: skip
    ax.set(xscale="log", yscale="log", ylabel="validation loss (nats per token)")
    _plain_ticks(ax)
    ax.legend(fontsize=8, frameon=False)
    return ax


def lowest_loss(law: Any, c: Any) -> Any:
    """Loss at the law's own optimum of `c` FLOPs (for a surface under C = 6 N D)."""
    return law.loss(c) if isinstance(law, OptimalPath) else law.loss(law.n_opt(c), law.d_opt(c))


def fit_label(fit: Fit[Any]) -> str:
    """One line of the law for a legend."""
    law = fit.law
    if isinstance(law, OptimalPath):
        return f"envelope: L ∝ C^{law.loss_exponent:.3f}"
    if hasattr(law, "E"):
        return f"surface at its optimum (E = {law.E:.3g}, {fit.status.lower().replace('_', ' ')})"
    return f"{law.form} at its optimum"


def _plain_ticks(ax: Axes) -> None:
    """A log axis of losses spans less than a decade: plain numbers, a few of them."""
    from matplotlib.ticker import LogLocator, NullFormatter, ScalarFormatter

    ax.yaxis.set_major_locator(LogLocator(subs=(1, 1.5, 2, 2.5, 3, 4, 5, 6, 8)))
    ax.yaxis.set_major_formatter(ScalarFormatter())
    ax.yaxis.set_minor_formatter(NullFormatter())


def loss_by_tokens(ax: Axes, points: Points, fit: Fit[Any] | None) -> Axes:
    """Loss against tokens, one series a size, with the surface through them."""
    _by_size(ax, points, points.d, points.loss)
    if fit is not None:
        d = np.geomspace(points.d.min() / 1.2, points.d.max() * 1.2, 60)
        for colour, n in zip(shades(len(size_labels(points))), size_labels(points), strict=True):
            ax.plot(d, fit.law.loss(n, d), color=colour, lw=1.1, zorder=2)
    ax.set(xscale="log", yscale="log", xlabel="training tokens D", ylabel="validation loss (nats per token)")
    _plain_ticks(ax)
    ax.legend(fontsize=8, frameon=False, title="size", title_fontsize=8)
    return ax


def isoflop_curves(ax: Axes, points: Points, *, params: str = "with_head") -> Axes:
    """Loss against size at each FLOPs budget with 3 or more sizes: points, parabola, minimum (hollow)."""
    levels = [item for item in fit_levels(points.flops, points.n, points.d, points.loss) if len(item.points) >= 3]
    for colour, marker, dash, item in zip(shades(len(levels)), cycle(MARKERS), cycle(DASHES), levels, strict=False):
        n = points.n[item.points]
        dots = ax.scatter(n, points.loss[item.points], color=colour, marker=marker, s=30, zorder=3, label=f"{item.flops:.2g}")
        dots.set_urls([f"#{points.ids[i]}" for i in item.points])
        if item.curve is not None:
            grid = np.geomspace(n.min(), n.max(), 60)
            ax.plot(grid, item.curve(grid), color=colour, ls=dash, lw=1.2)
        if item.reason is None:
            ax.scatter([item.n_opt], [item.loss_opt], s=70, facecolor="none", edgecolor=DARK, marker="o", zorder=4)
    ax.set(xscale="log", xlabel=N_LABEL[params], ylabel="validation loss (nats per token)")
    if levels:
        ax.legend(fontsize=8, frameon=False, title="FLOPs", title_fontsize=8)
    return ax


def surface_contours(ax: Axes, points: Points, fit: Fit[Any], *, params: str = "with_head") -> Axes:
    """Contours of the fitted L(N, D), the points measured, and the compute-optimal path (under C = 6 N D)."""
    n = np.geomspace(points.n.min() / 2, points.n.max() * 4, 80)
    d = np.geomspace(points.d.min() / 2, points.d.max() * 4, 80)
    heights = np.asarray(fit.law.loss(n[None, :], d[:, None]))
    lines = ax.contour(n, d, heights, levels=12, colors=FAINT, linewidths=0.8)
    ax.clabel(lines, fontsize=7, fmt="%.2f")
    c = np.geomspace(6 * n[0] * d[0], 6 * n[-1] * d[-1], 100)
    ax.plot(fit.law.n_opt(c), fit.law.d_opt(c), color=ACCENT, lw=1.8, label="compute-optimal path")
    _by_size(ax, points, points.n, points.d)
    ax.set(
        xscale="log", yscale="log", xlim=(n[0], n[-1]), ylim=(d[0], d[-1]), xlabel=N_LABEL[params], ylabel="training tokens D"
    )
    ax.legend(fontsize=8, frameon=False)
    return ax


def lr_optimum(ax: Axes, runs: Runs) -> Axes:
    """Loss above the cell's lowest against peak LR, one series a (size, tokens); hollow markers where it is the best."""
    means = runs.seed_means.dropna(subset=["lr"])
    cells = optima(runs)
    groups = list(means.groupby("cell"))
    names = {row.id: (row.n, row.d) for row in cells.itertuples()}
    for colour, marker, dash, (_, cell), row in zip(
        shades(len(groups)), cycle(MARKERS), cycle(DASHES), groups, cells.itertuples(), strict=False
    ):
        curve = cell.groupby("lr")["loss"].min()
        label = f"N {names[row.id][0]:.2g}, D {names[row.id][1]:.2g}"
        ax.plot(curve.index, curve - curve.min(), color=colour, marker=marker, ls=dash, ms=4, lw=1, label=label)
        ax.scatter([row.lr], [0], s=60, facecolor="none", edgecolor=colour, zorder=4)
    ax.set(xscale="log", xlabel="peak LR of the hidden matrices", ylabel="loss above the lowest (nats per token)")
    ax.legend(fontsize=6.5, frameon=False, ncols=2)
    return ax


def lr_path(ax: Axes, runs: Runs, fit: Fit[Any]) -> Axes:
    """Best LR against size, one series a token count, and the fitted law; hollow where only a bound is known."""
    cells = optima(runs)
    budgets = sorted(cells["d"].unique())
    for colour, marker, dash, d in zip(shades(len(budgets)), cycle(MARKERS), cycle(DASHES), budgets, strict=False):
        rows = cells[cells["d"] == d]
        known = rows["reason"].isna()
        ax.scatter(rows["n"][known], rows["lr"][known], color=colour, marker=marker, s=34, label=f"{d:.2g}", zorder=3)
        ax.scatter(rows["n"][~known], rows["lr"][~known], edgecolor=colour, facecolor="none", marker=marker, s=34)
        n = np.geomspace(cells["n"].min(), cells["n"].max(), 40)
        ax.plot(n, fit.law(n, d), color=colour, ls=dash, lw=1)
    ax.set(xscale="log", yscale="log", xlabel="parameters N", ylabel="best peak LR")
    ax.legend(fontsize=8, frameon=False, title="tokens", title_fontsize=8)
    return ax


def curves(ax: Axes, runs: Runs, ids: Sequence[str]) -> Axes:
    """Training loss of the given runs (ids of points) over tokens; the decay branch is drawn thicker."""
    if "curve" not in runs.records:
        ax.text(0.5, 0.5, "no curves in these records", ha="center", va="center", transform=ax.transAxes)
        return ax
    rows = runs.table.index[runs.table["id"].isin(list(ids))]
    for colour, dash, i in zip(shades(len(rows)), cycle(DASHES), rows, strict=False):
        steps = [point for point in runs.records["curve"][i] if point["train_loss"] is not None]
        for trunk, width in ((True, 0.8), (False, 1.8)):
            part = [point for point in steps if (point["segment"] == "trunk") == trunk]
            ax.plot(
                [p["tokens"] for p in part], [p["train_loss"] for p in part], color=colour, ls=dash, lw=width,
                label=runs.table["id"][i] if trunk else None,
            )  # fmt: skip
    ax.set(xscale="log", xlabel="training tokens", ylabel="training loss (nats per token)")
    ax.legend(fontsize=7, frameon=False)
    return ax


def residuals(ax: Axes, points: Points, fit: Fit[Any]) -> Axes:
    """Measured over fitted loss, in percent, against compute."""
    error = 100 * (points.loss / np.asarray(fit.law.loss(points.n, points.d)) - 1)
    ax.axhline(0, color=FAINT, lw=0.8)
    _by_size(ax, points, points.flops, error)
    ax.set(xscale="log", ylabel="measured over fitted loss − 1 (%)")
    ax.legend(fontsize=8, frameon=False)
    return ax


def tokens_per_param(ax: Axes, fits: dict[str, Fit[Any]], flops_low: float, flops_high: float) -> Axes:
    """Compute-optimal tokens per parameter against compute, one line an approach, with its 90 % band where known."""
    c = np.geomspace(flops_low, flops_high, 50)
    for dash, colour, (name, fit) in zip(DASHES, (DARK, ACCENT, "#3d7ea6"), fits.items(), strict=False):
        ax.plot(c, fit.law.d_opt(c) / fit.law.n_opt(c), ls=dash, color=colour, lw=1.5, label=name)
        drawn: Any = fit.law_draws
        if drawn is not None:
            ratio = np.array([np.asarray(drawn.d_opt(x) / drawn.n_opt(x)) for x in c])
            ax.fill_between(c, *np.quantile(ratio, [0.05, 0.95], axis=1), color=colour, alpha=0.12, lw=0)
    ax.set(xscale="log", yscale="log", ylabel="compute-optimal tokens per parameter")
    ax.legend(fontsize=8, frameon=False)
    return ax
