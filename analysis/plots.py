"""One function a figure. Each takes Axes and returns them; units and conventions stand in the labels.

Readable in grey: series differ in marker or dash as well as in colour. Points carry their id, so that
`analysis.svg` can make them hover and link.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter, NullLocator

from analysis.advise import lowest_loss
from analysis.backtest import Backtest
from analysis.influence import Influence
from analysis.isoflop import fit_levels
from analysis.ladder import Rung
from analysis.laws import FloatArray, OptimalPath
from analysis.lr import optima
from analysis.result import Fit, Status
from analysis.runs import Points, Runs

MARKERS = "osD^vP*Xhd<>"
DASHES = ("-", "--", "-.", ":", (0, (5, 1)), (0, (1, 1)))
MOST_TICKS = 9
"""More LRs than this are not named one by one."""
LONGEST_ID = 40
"""Letters of a point's id on an axis."""
DARK, ACCENT, FAINT = "#1b2a41", "#c8553d", "#9aa5b1"
N_LABEL = {
    "with_head": "parameters N, output head included",
    "total": "parameters N, all",
    "non_embedding": "parameters N, without embedding and head",
}
FLOPS_LABEL = {"exact": "training FLOPs, exact", "6nd": "training FLOPs, 6 N D"}


def shades(count: int) -> list[Any]:
    """`count` colours whose lightness falls steadily, so that they keep their order in grey."""
    return [colormaps["viridis"](x) for x in np.linspace(0.85, 0.1, count)]


def size_labels(points: Points) -> dict[float, str]:
    """Each size's name: its depth where known, else its parameters."""
    return {
        n: f"d{depth}" if depth >= 0 else short(n)
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


def loss_vs_compute(
    ax: Axes,
    points: Points,
    fit: Fit[Any] | None,
    *,
    sizes: Sequence[Rung] = (),
    reach: float = 10.0,
    level: float = 0.9,
    flops: str = "exact",
) -> Axes:
    """Every point's loss against its compute, and the fitted lowest loss with its band, `reach` times beyond the data.

    With `sizes` a surface's lowest loss is over these models and their exact FLOPs; without, under C = 6 N D.
    """
    _by_size(ax, points, points.flops, points.loss)
    largest = float(points.flops.max())
    if fit is not None:
        c = np.geomspace(points.flops.min(), reach * largest, 80)
        ax.plot(c, lowest_loss(fit.law, c, sizes), color=DARK, lw=1.5, label=fit_label(fit), zorder=2)
        drawn = fit.law_draws
        if drawn is not None:
            low, high = np.quantile(
                [lowest_loss(drawn, x, sizes) for x in c], [(1 - level) / 2, (1 + level) / 2], axis=1
            )
            ax.fill_between(c, low, high, color=DARK, alpha=0.15, lw=0, label=f"{level:.0%} interval of the fit")
    ax.axvline(largest, color=FAINT, lw=0.8, ls=":")
    ax.annotate(
        "largest run",
        (largest, 1),
        xycoords=("data", "axes fraction"),
        xytext=(4 if fit is not None else -4, -10),
        ha="left" if fit is not None else "right",
        textcoords="offset points",
        fontsize=8,
        color="#5b6770",
    )
    ax.set(xscale="log", yscale="log", xlabel=FLOPS_LABEL[flops], ylabel="validation loss (nats per token)")
    _flops_ticks(ax.xaxis)
    _few_ticks(ax.yaxis)
    ax.legend(fontsize=8, frameon=False)
    return ax


def _with_status(name: str, fit: Fit[Any]) -> str:
    return name if fit.status == Status.CONVERGED else f"{name} ({fit.status.lower().replace('_', ' ')})"


def fit_label(fit: Fit[Any]) -> str:
    """One line of the law for a legend."""
    law = fit.law
    if isinstance(law, OptimalPath):
        return _with_status(f"L ∝ C^{law.loss_exponent:.3f}", fit)
    return _with_status(f"{law.form} surface at its optimum", fit)


def _widen(axis: Axis, least: float) -> None:
    """At least `least` between the ends of an axis: their ratio on a log axis, else their difference.

    Values that are equal, or equal up to rounding, would be drawn on a range of 1e-14 or of nothing.
    """
    low, high = axis.get_view_interval()
    if axis.get_scale() == "log":
        middle, half = np.sqrt(low * high), np.sqrt(max(least, high / low))
        ends = middle / half, middle * half
    else:
        middle, half = (low + high) / 2, max(least, high - low) / 2
        ends = middle - half, middle + half
    axis.set_view_interval(*ends, ignore=True)


def _few_ticks(axis: Axis) -> None:
    """Plain numbers on a log axis that spans two decades at most, where powers of ten alone would be too few."""
    _widen(axis, 1.2)
    low, high = axis.get_view_interval()
    if high / low > 100:
        axis.set_minor_formatter(NullFormatter())
        return
    axis.set_major_locator(MaxNLocator(6, steps=[1, 2, 2.5, 5, 10]) if high / low < 4 else LogLocator(subs=(1, 2, 5)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: short(value)))
    axis.set_minor_locator(NullLocator())


def _flops_ticks(axis: Axis) -> None:
    """1e12, 2e12, 5e12 where the data span little; whole decades where they span more."""
    _widen(axis, 4.0)
    low, high = axis.get_view_interval()
    axis.set_major_locator(LogLocator(subs=(1,) if high / low > 100 else (1, 2, 5), numticks=12))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0e}".replace("e+", "e")))
    axis.set_minor_formatter(NullFormatter())


def short(value: float, digits: int = 3) -> str:
    """A finite number for people: 250k, 1.5M, 2B, 0.02, 3.2; powers of ten from a trillion on."""
    for factor, suffix in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if factor <= abs(value) < 1e12:
            return f"{value / factor:.{digits}g}{suffix}"
    return f"{value:.{digits}g}"


def loss_by_tokens(ax: Axes, points: Points, fit: Fit[Any] | None) -> Axes:
    """Loss against tokens, one series a size, with the surface through them."""
    _by_size(ax, points, points.d, points.loss)
    if fit is not None:
        d = np.geomspace(points.d.min() / 1.2, points.d.max() * 1.2, 60)
        for colour, n in zip(shades(len(size_labels(points))), size_labels(points), strict=True):
            ax.plot(d, fit.law.loss(n, d), color=colour, lw=1.1, zorder=2)
    ax.set(xscale="log", yscale="log", xlabel="training tokens D", ylabel="validation loss (nats per token)")
    _few_ticks(ax.xaxis)
    _few_ticks(ax.yaxis)
    ax.legend(fontsize=8, frameon=False, title="size", title_fontsize=8)
    return ax


def isoflop_curves(ax: Axes, points: Points, *, params: str = "with_head") -> Axes:
    """Loss against size at each FLOPs budget with 3 or more sizes: points, parabola, minimum (hollow)."""
    levels = [item for item in fit_levels(points.flops, points.n, points.d, points.loss) if len(item.points) >= 3]
    for colour, marker, dash, item in zip(shades(len(levels)), cycle(MARKERS), cycle(DASHES), levels, strict=False):
        n = points.n[item.points]
        dots = ax.scatter(
            n, points.loss[item.points], color=colour, marker=marker, s=30, zorder=3, label=f"{item.flops:.2g}"
        )
        dots.set_urls([f"#{points.ids[i]}" for i in item.points])
        if item.curve is not None:
            grid = np.geomspace(n.min(), n.max(), 60)
            ax.plot(grid, item.curve(grid), color=colour, ls=dash, lw=1.2)
        if item.reason is None:
            ax.scatter([item.n_opt], [item.loss_opt], s=70, facecolor="none", edgecolor=DARK, marker="o", zorder=4)
    ax.set(xscale="log", xlabel=N_LABEL[params], ylabel="validation loss (nats per token)")
    _few_ticks(ax.xaxis)
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
        xscale="log",
        yscale="log",
        xlim=(n[0], n[-1]),
        ylim=(d[0], d[-1]),
        xlabel=N_LABEL[params],
        ylabel="training tokens D",
    )
    _few_ticks(ax.xaxis)
    _few_ticks(ax.yaxis)
    ax.legend(fontsize=8, frameon=False)
    return ax


def lr_optimum(ax: Axes, runs: Runs) -> Axes:
    """Loss above the cell's lowest against peak LR: a marker a size, a dash a token count; circles at each best LR."""
    means = runs.seed_means.dropna(subset=["lr"])
    cells = optima(runs).set_index(["n", "d"])
    sizes, budgets = sorted(means["n"].unique()), sorted(means["d"].unique())
    for colour, marker, n in zip(shades(len(sizes)), cycle(MARKERS), sizes, strict=False):
        for dash, d in zip(cycle(DASHES), budgets, strict=False):
            curve = means[(means["n"] == n) & (means["d"] == d)].groupby("lr")["loss"].min()
            if curve.empty:
                continue
            label = f"N {short(n)}" if d == budgets[-1] else None
            ax.plot(curve.index, curve - curve.min(), color=colour, marker=marker, ls=dash, ms=4, lw=1, label=label)
            ax.scatter([cells.loc[(n, d), "lr"]], [0], s=60, facecolor="none", edgecolor=colour, zorder=4)
    ax.set(xscale="log", xlabel="peak LR of the hidden matrices", ylabel="loss above the lowest (nats per token)")
    _few_ticks(ax.xaxis)
    _widen(ax.yaxis, 0.01)
    tried = np.unique(means["lr"])
    if len(tried) <= MOST_TICKS:
        ax.set_xticks(tried, [short(lr) for lr in tried])
    ax.legend(fontsize=8, frameon=False)
    return ax


def lr_path(ax: Axes, runs: Runs, fit: Fit[Any]) -> Axes:
    """Best LR against size, one series a token count, and the fitted law; hollow where only a bound is known."""
    cells = optima(runs)
    n = np.geomspace(cells["n"].min(), cells["n"].max(), 40)
    budgets = sorted(cells["d"].unique())
    for colour, marker, dash, d in zip(shades(len(budgets)), cycle(MARKERS), cycle(DASHES), budgets, strict=False):
        rows = cells[cells["d"] == d]
        known = rows["reason"].isna()
        ax.scatter(rows["n"][known], rows["lr"][known], color=colour, marker=marker, s=34, label=short(d), zorder=3)
        ax.scatter(rows["n"][~known], rows["lr"][~known], edgecolor=colour, facecolor="none", marker=marker, s=34)
        ax.plot(n, fit.law(n, d), color=colour, ls=dash, lw=1)
    # First the limits, then the scales: of LRs that are equal up to rounding an axis would make a range of nothing.
    heights = np.concatenate([cells["lr"], *(fit.law(n, d) for d in budgets)])
    low, high = heights.min() / 1.1, heights.max() * 1.1
    ax.set(ylim=(low, high), xscale="log", yscale="log", xlabel="parameters N", ylabel="best peak LR")
    _few_ticks(ax.xaxis)
    _few_ticks(ax.yaxis)
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
    _few_ticks(ax.xaxis)
    ax.legend(fontsize=7, frameon=False)
    return ax


def residuals(ax: Axes, points: Points, fit: Fit[Any], *, flops: str = "exact") -> Axes:
    """Measured over fitted loss, in percent, against compute."""
    error = 100 * (points.loss / np.asarray(fit.law.loss(points.n, points.d)) - 1)
    ax.axhline(0, color=FAINT, lw=0.8)
    _by_size(ax, points, points.flops, error)
    ax.set(xscale="log", xlabel=FLOPS_LABEL[flops], ylabel="measured over fitted loss − 1 (%)")
    _flops_ticks(ax.xaxis)
    _widen(ax.yaxis, 0.01)
    ax.legend(fontsize=8, frameon=False)
    return ax


def tokens_per_param(
    ax: Axes, fits: dict[str, Fit[Any]], flops_low: float, flops_high: float, *, flops: str = "exact"
) -> Axes:
    """Compute-optimal tokens per parameter against compute, one line an approach, with its 90 % band where known."""
    c = np.geomspace(flops_low, flops_high, 50)
    for dash, colour, (name, fit) in zip(DASHES, (DARK, ACCENT, "#3d7ea6"), fits.items(), strict=False):
        ax.plot(c, fit.law.d_opt(c) / fit.law.n_opt(c), ls=dash, color=colour, lw=1.5, label=_with_status(name, fit))
        drawn: Any = fit.law_draws
        if drawn is not None:
            with np.errstate(over="ignore", under="ignore", divide="ignore"):
                log_ratio = np.array([np.log(drawn.d_opt(x)) - np.log(drawn.n_opt(x)) for x in c])
            low, high = np.exp(np.clip(np.quantile(log_ratio, [0.05, 0.95], axis=1), -50, 50))
            ax.fill_between(c, low, high, color=colour, alpha=0.12, lw=0)
    ax.set(xscale="log", yscale="log", xlabel=FLOPS_LABEL[flops], ylabel="compute-optimal tokens per parameter")
    _flops_ticks(ax.xaxis)
    _few_ticks(ax.yaxis)
    ax.legend(fontsize=8, frameon=False)
    return ax


def _end(point: str) -> str:
    """The end of a long id, which tells points apart."""
    return point if len(point) <= LONGEST_ID else "…" + point[1 - LONGEST_ID :]


def influence(ax: Axes, measured: Influence, *, most: int = 15) -> Axes:
    """The points whose removal moves log N* at 10x most; those that carry it together are filled."""
    order = np.argsort(np.abs(measured.shift))[-most:]
    for row, i in enumerate(order):
        together = measured.ids[i] in measured.carriers
        ax.barh(row, 100 * np.expm1(measured.shift[i]), color=ACCENT if together else "none", edgecolor=DARK, lw=0.8)
    ax.set_yticks(range(len(order)), [_end(measured.ids[i]) for i in order], fontsize=7)
    ax.axvline(0, color=DARK, lw=0.8)
    ax.set(xlabel="change of N* at 10x the largest compute without the point (%)")
    return ax


def predicted_vs_measured(ax: Axes, held_out: Backtest) -> Axes:
    """Held-out losses against their prediction from the smaller budgets, with 90 % predictive intervals."""
    finite = np.isfinite(held_out.high) & (held_out.low > 0)
    below = np.where(finite, held_out.predicted - held_out.low, 0)
    above = np.where(finite, held_out.high - held_out.predicted, 0)
    ax.errorbar(
        held_out.measured, held_out.predicted, yerr=[below, above], fmt="none", ecolor=FAINT, elinewidth=1.2, capsize=3
    )
    dots = ax.scatter(held_out.measured, held_out.predicted, color=ACCENT, s=34, zorder=3)
    dots.set_urls([f"#{point}" for point in held_out.ids])
    ends = [held_out.measured.min() * 0.99, held_out.measured.max() * 1.01]
    ax.plot(ends, ends, color=DARK, lw=1, ls="--", label="predicted = measured")
    ax.set(xlabel="measured loss (nats per token)", ylabel="predicted from smaller budgets")
    ax.legend(fontsize=8, frameon=False)
    return ax
