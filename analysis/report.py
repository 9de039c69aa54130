"""The report: one self-contained HTML page, the same in Markdown, and the fits at full precision."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
import pandas as pd

from analysis import place, plots, svg
from analysis.advise import lowest_loss
from analysis.axes import axes, by_value
from analysis.lr import optima
from analysis.result import Caveat, Fit
from analysis.runs import Points, Runs
from analysis.spending import spending
from analysis.study import Study, left_out_counts
from analysis.trials import commands, known_sweep
from analysis.wording import (
    best_lr,
    compute,
    formula,
    loss_words,
    lr_short,
    lr_words,
    number,
    sentence,
    span,
    verdict,
    why,
)
from tinyllm import storage
from tinyllm.plan import FEW_DECAY_STEPS

MOST_LR_FIGURES = 6
"""More combinations of settings than this share one figure of their lowest losses."""


@dataclass(frozen=True, kw_only=True)
class Written:
    """Where the report lies: paths or URIs."""

    html: str
    markdown: str
    fits: str


def write(study: Study, directory: str | Path) -> Written:
    """Write report.html, report.md and fit.json under `directory` (a path or URI), each whole or not at all.

    ValueError where it cannot be written, or where a file of such a name is not the analysis's own.
    """
    root, page = str(directory), context(study)
    place.refuse_foreign(root)
    texts = {
        "fit.json": fits_json(study),
        # A section that is not there leaves its blank lines behind.
        "report.md": re.sub(r"\n{3,}", "\n\n", _render("report.md.j2", page)),
        "report.html": _render("report.html.j2", {**page, "figures": figures(study)}),
    }
    paths = {name: storage.join(root, name) for name in texts}
    try:
        for name, text in texts.items():
            storage.write_bytes(paths[name], text.encode())
    except OSError as error:
        raise place.unwritable(root, error) from error
    return Written(html=paths["report.html"], markdown=paths["report.md"], fits=paths["fit.json"])


def fits_json(study: Study) -> str:
    """Every fit at full precision, by approach; `headline` names the one the advice comes from."""
    fits: dict[str, Fit[Any]] = {**study.fits, **({"lr": study.lr} if study.lr else {})}
    return json.dumps(
        {
            "source": study.runs.source,
            "params": study.runs.params,
            "flops": study.runs.flops,
            "headline": study.headline,
            "refusals": study.refusals,
            "fits": {name: json.loads(fit.to_json()) for name, fit in fits.items()},
        },
        indent=1,
        allow_nan=False,
    )


def _render(template: str, values: Mapping[str, Any]) -> str:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("analysis"),
        autoescape=template.endswith(".html.j2"),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    filters = (best_lr, number, compute, span, formula, sentence, lr_words, lr_short, loss_words, why)
    environment.filters.update({found.__name__: found for found in filters})
    return environment.get_template(template).render(**values)


def context(study: Study) -> dict[str, Any]:
    """What the templates show."""
    table = study.runs.table
    return {
        "study": study,
        "title": Path(study.runs.source).name if "/" in study.runs.source else study.runs.source,
        "largest": float(study.points.flops.max()),
        "level": 90,
        "verdict": verdict(study),
        "measured": measured(study.runs),
        "commands": commands(study.next_trials, study.runs),
        "known_sweep": known_sweep(study.runs.source),
        "sizes": len(np.unique(study.points.n)),
        "budgets": len(np.unique(study.points.d)),
        "statuses": table["status"].value_counts().to_dict(),
        "params_label": plots.N_LABEL[study.runs.params],
        "flops_label": plots.FLOPS_LABEL[study.runs.flops],
        "warnings": all_warnings(study),
        "left_out": left_out_counts(study.fits["surface"]),
        "law_rows": law_rows(study),
        "lr_rows": optima(study.runs).sort_values(["n", "d"]).to_dict("records"),
        "axes": axes(study.runs),
        "noise_words": "within seed noise" if study.points.noise else "nothing shows the noise",
        "size_names": plots.size_labels(study.points),
        "cost": cost(study.runs.records),
        "spending": spending(study.runs.source, study.runs.records),
        "rows": run_rows(study),
        "residual_sd": study.fits["surface"].noise,
    }


def measured(runs: Runs) -> str:
    """How many losses there are, those after a decay too short to count as whole told apart."""
    total = len(runs.measured)
    short = sum(len(warn.points) for warn in runs.warnings if warn.kind == Caveat.FEW_DECAY_STEPS)
    if not short:
        return f"{total} fully decayed losses"
    return f"{total} decayed losses, {short} of them over fewer than {FEW_DECAY_STEPS} steps"


def all_warnings(study: Study) -> list[tuple[str, Any]]:
    """(where it was raised, warning), each once."""
    found = [(name, warn) for name, fit in study.fits.items() for warn in fit.warnings]
    found += [("learning rate", warn) for warn in (study.lr.warnings if study.lr else ())]
    found += [("advice", warn) for advice in study.advice for warn in advice.warnings]
    found += [("comparison", warn) for warn in study.warnings]
    return list({(name, str(warn)): (name, warn) for name, warn in found}.values())


def law_rows(study: Study) -> list[dict[str, Any]]:
    """One row an approach: law, status, exponents of N* and D* with intervals, N* and lowest loss at 10x."""
    target = 10 * float(study.points.flops.max())
    sizes = study.sizes
    rows = []
    for name, fit in study.fits.items():
        known = fit.determined
        rows.append(
            {
                "name": name,
                "fit": fit,
                "a": fit.law.a if known else None,
                "a_interval": fit.intervals.get("a", fit.intervals.get("n_exponent")),
                "n": fit.law.n_opt(target) if known else None,
                "n_interval": fit.interval(lambda law: law.n_opt(target)),
                "loss": lowest_loss(fit.law, target, sizes) if known else None,
                "loss_interval": fit.interval(lambda law: lowest_loss(law, target, sizes)),
                "floor": fit.intervals.get("E"),
            }
        )
    return rows


def cost(records: pd.DataFrame) -> dict[str, float] | None:
    """What the sweep took: device hours, FLOPs that ended in a loss, and the share spent on runs without one."""
    if "device_seconds" not in records:
        return None
    seconds = records["device_seconds"].astype(float).fillna(0.0)
    done = records["status"] == "done"
    return {
        "device_hours": float(seconds.sum() / 3600),
        "share_without_loss": float(seconds[~done].sum() / seconds.sum()) if seconds.sum() else 0.0,
        "flops": float(records.loc[done, "flops"].sum()),
        "rows": float(len(records)),
    }


def run_rows(study: Study) -> list[dict[str, Any]]:
    """One row a (trial, horizon): what it was, what came out, and whether it is a point of the fit."""
    runs, fit = study.runs, study.fits["surface"]
    used = set(fit.used)
    rows = []
    columns = ["id", "run_id", "n", "d", "flops", "lr", "seed", "loss", "status"]
    for row, raw in zip(runs.table.to_dict("records"), runs.records.to_dict("records"), strict=True):
        config, point = raw.get("config"), str(row["id"])
        rows.append(
            {
                **{name: row[name] for name in columns},
                "anchor": svg.anchor(point),
                "size": f"d{row['depth']}" if row["depth"] >= 0 else number(row["n"]),
                "role": "in the fit" if point in used else str(fit.left_out.get(point, "averaged over seeds")),
                "config": json.dumps(json.loads(config), indent=1, sort_keys=True) if config else "",
                "commit": raw.get("git_commit") or "not recorded",
                "log": raw.get("log_path") or "not recorded",
                "reason": raw.get("reason") or "",
            }
        )
    return rows


def figures(study: Study) -> list[dict[str, str]]:
    """The page's figures in order: title, caption, svg."""
    points, runs = study.points, study.runs
    hover = {
        row["id"]: f"{row['id']}\n{row['size']}, N {number(row['n'])}, D {number(row['d'])}, lr {number(row['lr'])}"
        f"\nloss {row['loss']:.4f}"
        for row in run_rows(study)
    }
    surface = study.fits["surface"]
    found: list[dict[str, str]] = []

    def add(title: str, caption: str, draw: Any, **options: Any) -> None:
        image = svg.render(draw, hover=hover, prefix=f"fig{len(found)}", **options)
        found.append({"title": title, "caption": caption, "svg": image})

    add(
        "Loss against compute",
        "Each point is the best LR of one size and token count. "
        + (
            f"The line is the {study.headline} fit carried to 10 times the largest run, with its 90 % interval."
            if study.fit.determined
            else "They identify no law, so there is no line."
        ),
        lambda ax: plots.loss_vs_compute(
            ax, points, study.fit if study.fit.determined else None, sizes=study.sizes, flops=runs.flops
        ),
        size=(8.2, 4.4),
        left=0.09,
    )
    add(
        "Loss against tokens",
        f"One series a size{'; lines are the fitted surface' if surface.determined else ''}.",
        lambda ax: plots.loss_by_tokens(ax, points, surface if surface.determined else None),
    )
    if surface.determined:
        add(
            "The surface L(N, D)",
            "Contours of the fitted loss, the points measured, and the compute-optimal path under C = 6 N D.",
            lambda ax: plots.surface_contours(ax, points, surface, params=runs.params),
        )
    if study.lr is not None:
        lr = study.lr
        for title, part in lr_curves(runs).items():
            add(
                title,
                "A marker a size, a dash a token count; circles mark each best LR.",
                partial(plots.lr_optimum, runs=part),
            )
        add(
            "Best LR by size and budget",
            "Hollow: the best LR is not bracketed by worse ones, so only a bound is known.",
            lambda ax: plots.lr_path(ax, runs, lr),
        )
    if "isoflop" in study.fits:
        add(
            "isoFLOP curves",
            "Hollow circles are the minima.",
            lambda ax: plots.isoflop_curves(ax, points, params=runs.params),
        )
    if study.backtest is not None:
        held_out = study.backtest
        add(
            "Held-out check",
            f"The largest budget, predicted by the {held_out.approach} fit of the smaller ones.",
            lambda ax: plots.predicted_vs_measured(ax, held_out),
        )
    if surface.determined:
        add(
            "Residuals",
            "Where the surface is off: a pattern here is a law that does not hold.",
            lambda ax: plots.residuals(ax, points, surface, flops=runs.flops),
        )
    if study.influence is not None:
        carried = study.influence
        add(
            "Influence",
            "What leaving out a point does to N* at 10 times the largest compute; filled: those that do most together.",
            lambda ax: plots.influence(ax, carried),
            # Their labels' length in a font of 7 points, on a page 6.4 inches wide.
            left=0.04 + 0.0093 * min(plots.LONGEST_ID, max(map(len, carried.ids))),
        )
    largest = float(points.flops.max())
    fits = {name: fit for name, fit in study.fits.items() if fit.determined}
    if fits:
        add(
            "Tokens per parameter",
            "What each approach holds to be compute-optimal, up to 10 times the largest run.",
            lambda ax: plots.tokens_per_param(ax, fits, float(points.flops.min()), 10 * largest, flops=runs.flops),
        )
    if "curve" in runs.records:
        add(
            "Training curves",
            "Of the points of the fit with most tokens. Thin: trunk at constant LR; thick: decay to the budget.",
            lambda ax: plots.curves(ax, runs, longest(points)),
        )
    return found


def lr_curves(runs: Runs) -> dict[str, Runs]:
    """Title -> runs of one LR figure: one a value where a setting beside size and LR was tried, else one of all."""
    parts = {"Learning rates": runs}
    for axis in axes(runs):
        parts = {
            f"{title}, {axis.name} {value}": some
            for title, part in parts.items()
            for value, some in by_value(part, axis).items()
            if some.measured["lr"].notna().any()
        }
    return parts if len(parts) <= MOST_LR_FIGURES else {"Learning rates": runs}


def longest(points: Points, count: int = 8) -> list[str]:
    """Ids of the points with most tokens, by size."""
    rows = np.lexsort((points.n, -points.d))[:count]
    return [points.ids[i] for i in rows[np.argsort(points.n[rows], kind="stable")]]
