"""Figures as inline SVG, whose points hover with a label and link to their row."""

from __future__ import annotations

import html
import io
import re
from collections.abc import Callable, Mapping
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

STYLE: dict[str, Any] = {
    "svg.fonttype": "none",  # text stays text: it scales, can be searched and takes the page's font
    "font.family": "sans-serif",
    "font.size": 9.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e6e9ec",
    "grid.linewidth": 0.6,
    "axes.edgecolor": "#5b6770",
    "axes.labelcolor": "#1b2a41",
    "xtick.color": "#5b6770",
    "ytick.color": "#5b6770",
}


def anchor(point: str) -> str:
    """A point's id as the name of an element of the page."""
    return "run-" + re.sub(r"[^A-Za-z0-9_-]", "-", point)


def render(
    draw: Callable[[Axes], object],
    *,
    hover: Mapping[str, str],
    prefix: str,
    size: tuple[float, float] = (6.4, 4.0),
    left: float = 0.12,
) -> str:
    """The figure that `draw` makes, as an <svg> element that scales with the page.

    hover: point id -> text shown over it. prefix: makes the element ids of several figures on one page distinct,
    and the same from one run to the next. left: share of the width kept for the labels of the vertical axis (a
    layout that measures them draws every figure twice).
    """
    settings: Any = {**STYLE, "svg.hashsalt": prefix}
    with mpl.rc_context(settings):
        figure = Figure(figsize=size)
        figure.subplots_adjust(left=left, right=0.985, bottom=0.13, top=0.97)
        FigureCanvasSVG(figure)
        draw(figure.add_subplot())
        out = io.StringIO()
        figure.savefig(out, format="svg", metadata={"Date": None})
    text = out.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r'(<svg [^>]*?)width="[^"]*" height="[^"]*"', r"\1", text, count=1)
    # Groups are named figure_1, axes_1, ... in every figure, and nothing refers to them.
    text = re.sub(r'<g id="[^"]*"', "<g", text)

    def link(match: re.Match[str]) -> str:
        point = html.unescape(match.group(1))
        return f'<a href="#{anchor(point)}"><title>{html.escape(hover.get(point, point))}</title>'

    return re.sub(r'<a xlink:href="#([^"]+)"[^>]*>', link, text)
