"""The best learning rate as a law of size and tokens."""

from __future__ import annotations

from typing import Literal

import numpy as np
import pandas as pd

from analysis.laws import FloatArray, LrLaw
from analysis.linear import least_squares
from analysis.result import Caveat, Fit, Interval, Reason, Status, Warn
from analysis.runs import Runs

Bound = Literal["", "at least", "at most", "only"]
"""What an LR at the edge of those tried says of the best one; "" where others were tried on both sides, or differ."""


def optima(runs: Runs) -> pd.DataFrame:
    """The best LR of each (size, tokens): columns id, n, d, lr, loss, n_lrs, reason (None where the minimum is
    bracketed), bound (what an edge says of the best LR).

    A parabola of loss in log LR through the lowest loss and up to two neighbours on each side gives lr and loss;
    without a bracketed minimum they are those of the lowest loss measured.
    """
    rows = []
    tried = runs.lrs_tried
    for number, cell in runs.seed_means.dropna(subset=["lr"]).groupby("cell"):
        curve = cell.groupby("lr").agg(loss=("loss", "min"), id=("id", "first"), n=("n", "first"), d=("d", "first"))
        lrs, losses = curve.index.to_numpy(float), curve["loss"].to_numpy(float)
        k = int(np.argmin(losses))
        lr, loss, reason = float(lrs[k]), float(losses[k]), None
        if len(lrs) < 3 or k in (0, len(lrs) - 1):
            reason = Reason.OUTSIDE_GRID
        else:
            near = slice(max(0, k - 2), k + 3)
            centre = np.log(lrs[k])
            c2, c1, c0 = np.polyfit(np.log(lrs[near]) - centre, losses[near], 2)
            vertex = -c1 / (2 * c2) if c2 > 0 else np.inf
            if np.log(lrs[k - 1]) - centre <= vertex <= np.log(lrs[k + 1]) - centre:
                lr, loss = float(np.exp(centre + vertex)), float(c0 - c1**2 / (4 * c2))
            else:
                reason = Reason.CONCAVE if c2 <= 0 else Reason.OUTSIDE_GRID
        bound = _bound(lr, tried[number]) if reason else ""
        first = curve.iloc[k]
        rows.append(
            {
                "id": first["id"],
                "n": first["n"],
                "d": first["d"],
                "lr": lr,
                "loss": loss,
                "n_lrs": len(lrs),
                "reason": reason,
                "bound": bound,
            }
        )
    return pd.DataFrame(rows, columns=["id", "n", "d", "lr", "loss", "n_lrs", "reason", "bound"])


def _bound(lr: float, tried: FloatArray) -> Bound:
    """What the best of the LRs `tried` (ascending) says, where it is the first or the last of them."""
    if len(tried) == 1:
        return "only"
    if lr in (tried[0], tried[-1]):
        return "at most" if lr == tried[0] else "at least"
    return ""


def fit_lr_optimum(runs: Runs, *, level: float = 0.9, draws: int = 1000, seed: int = 0) -> Fit[LrLaw]:
    """lr*(N, D) = coef N^p D^q by least squares of the log of each (size, tokens)'s best LR.

    Only bracketed minima count; the others are left out as `optimum_outside_grid`. A size or token count that does
    not vary gets exponent 0, and so do both where there are too few minima to tell: then status is NOT_IDENTIFIED
    and the law is the geometric mean of what there is; `settings["bound"]` says what that is where none is bracketed.
    `draws` samples of the law serve the intervals of an LR; 0: none. ValueError when no row states its LR.
    """
    cells = optima(runs)
    if cells.empty:
        raise ValueError(f"no loss with a known LR in {runs.source}: a table needs the column lr")
    kept = cells[cells["reason"].isna()]
    warnings: list[Warn] = []
    edge = cells[cells["reason"].notna()]
    if len(edge):
        detail = (
            f"{len(edge)} of {len(cells)} best LRs are not bracketed by worse ones on both sides: only a bound is known"
        )
        warnings.append(Warn(kind=Caveat.LR_AT_EDGE, detail=detail, points=tuple(edge["id"])))
    source = kept if len(kept) else cells
    log_n, log_d = np.log(source["n"].to_numpy(float)), np.log(source["d"].to_numpy(float))
    y = np.log(source["lr"].to_numpy(float))
    columns = [np.ones_like(y)]
    names = ["mean"]
    for name, values in (("n_exponent", log_n), ("d_exponent", log_d)):
        trial = np.column_stack([*columns, values - values.mean()])
        if len(source) > trial.shape[1] and np.linalg.matrix_rank(trial) == trial.shape[1]:
            columns.append(values - values.mean())
            names.append(name)
    line = least_squares(np.column_stack(columns), y, np.ones_like(y))
    identified = len(kept) > 0 and len(names) == 3
    drawn = identified and line.spare and draws
    if not identified:
        missing = [name for name in ("n_exponent", "d_exponent") if name not in names]
        detail = f"{len(kept)} bracketed minima do not show {' and '.join(missing) or 'the exponents'}: taken as 0"
        warnings.append(Warn(kind=Caveat.FEW_SIZES, detail=detail))
    fitted = dict(zip(names, line.coef, strict=True))
    sampled = _draws(names, line.draws(draws, seed), log_n.mean(), log_d.mean()) if drawn else {}
    return Fit(
        law=LrLaw(**{k: float(v[0]) for k, v in _draws(names, line.coef[None], log_n.mean(), log_d.mean()).items()}),
        status=Status.CONVERGED if identified else Status.NOT_IDENTIFIED,
        objective=line.objective,
        intervals={
            name: line.interval(names.index(name), level) if name in fitted else Interval.unbounded(level)
            for name in ("n_exponent", "d_exponent")
        },
        used=tuple(source["id"]),
        left_out=dict(zip(edge["id"], edge["reason"], strict=True)) if len(kept) else {},
        warnings=tuple(warnings),
        draws=sampled,
        domain={"n": (source["n"].min(), source["n"].max()), "d": (source["d"].min(), source["d"].max())},
        noise=line.noise,
        settings={"bound": edge["bound"].iloc[0] if not len(kept) and len(set(edge["bound"])) == 1 else ""},
    )


def _draws(names: list[str], coef: FloatArray, n0: float, d0: float) -> dict[str, FloatArray]:
    """Law parameters from coefficients (draws, k) of the centred line; an exponent that was not fitted is 0."""
    by_name = dict(zip(names, coef.T, strict=True))
    zero = np.zeros(len(coef))
    p, q = by_name.get("n_exponent", zero), by_name.get("d_exponent", zero)
    return {"intercept": by_name["mean"] - p * n0 - q * d0, "n_exponent": p, "d_exponent": q}
