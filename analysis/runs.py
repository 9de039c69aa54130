"""From run records, or any table with the documented columns, to the points of a fit.

A plain table (csv, Parquet, DataFrame) has one row a measured loss and the columns
  n_params (or n_params_with_head, n_params_total, n_params_non_embedding)   parameters
  tokens (or planned_tokens)                                                 training tokens
  flops and / or flops_6nd                                                   training FLOPs; absent: 6 N D
  loss (or val_loss)                                                         nats per token, at the end of the run
and, where known, run_id, lr, seed, depth, status, fully_decayed, decay_steps, epochs: absent ones are taken as fine;
and corpus, vocab_size, seq_len: losses of several values are refused, as they cannot be compared.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd

from analysis import choice, quality
from analysis import table as tables
from analysis.laws import FloatArray
from analysis.result import Caveat, Reason, Warn
from tinyllm import record

Params = Literal["with_head", "total", "non_embedding"]
Flops = Literal["exact", "6nd"]
LrChoice = Literal["lowest", "interpolated"]


@dataclass(frozen=True, kw_only=True, eq=False)
class Points:
    """The points of a surface: one a (size, tokens), the best LR of each. Arrays have shape (points,).

    n: parameters. d: tokens. flops. loss: nats per token, mean over seeds. lr: peak LR. depth: -1 where unknown.
    clusters: the trunk each loss comes from. weights: seeds averaged, relative to the mean. noise: standard
    deviation of log loss between seeds, pooled over all settings with repeats; None without any. choice_bias: by how
    much the log loss is low on average because the lowest of several LRs was chosen (`analysis.choice`); 0 or less.
    """

    ids: tuple[str, ...]
    n: FloatArray
    d: FloatArray
    flops: FloatArray
    loss: FloatArray
    lr: FloatArray
    depth: np.ndarray
    clusters: np.ndarray
    weights: FloatArray
    noise: float | None
    choice_bias: FloatArray
    left_out: Mapping[str, Reason]
    warnings: tuple[Warn, ...]
    rivals: Rivals

    @property
    def corrected_loss(self) -> FloatArray:
        """What is fitted: the loss without the bias of its choice, (points,)."""
        return self.loss * np.exp(-self.choice_bias)

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(frozen=True, kw_only=True, eq=False)
class Rivals:
    """Every LR that was in the running, so that a bootstrap can repeat the choice. Arrays have shape (candidates,).

    cell: index of the point it competes for. gap: log loss above that point's. cluster: its trunk. lr, seeds: its peak
    LR (nan where unknown), and how many seeds its loss is the mean of.
    """

    cell: np.ndarray
    gap: FloatArray
    cluster: np.ndarray
    lr: FloatArray
    seeds: FloatArray

    @classmethod
    def none(cls, clusters: Sequence[object] | np.ndarray) -> Rivals:
        """No choice: each point, of the trunk `clusters` (points,), is the only candidate for its place."""
        count = len(clusters)
        return cls(
            cell=np.arange(count),
            gap=np.zeros(count),
            cluster=np.asarray(clusters),
            lr=np.full(count, np.nan),
            seeds=np.ones(count),
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class Runs:
    """What was measured, in one convention of N and FLOPs.

    table: one row a (trial, horizon), all of them, with columns id, run_id, cell (number of the (size, tokens)
    pair), setting (what may be averaged over seeds), n, d, flops, loss, lr, seed, depth, status. left_out: id ->
    why a row can never be a point. records: the rows as they were read.
    """

    source: str
    params: Params
    flops: Flops
    table: pd.DataFrame
    left_out: Mapping[str, Reason]
    warnings: tuple[Warn, ...]
    records: pd.DataFrame

    @property
    def measured(self) -> pd.DataFrame:
        """The rows that hold a fully decayed loss."""
        return self.table[~self.table["id"].isin(list(self.left_out))]

    @property
    def seed_means(self) -> pd.DataFrame:
        """One row a (cell, setting) with its mean loss over seeds; columns cell, setting, n, d, flops, loss, lr,
        depth, id, seeds.
        """
        first = {name: (name, "first") for name in ("n", "d", "flops", "lr", "depth", "id")}
        grouped = self.measured.groupby(["cell", "setting"], sort=True)
        return grouped.agg(loss=("loss", "mean"), seeds=("id", "size"), **first).reset_index()

    @property
    def noise(self) -> float | None:
        """Standard deviation of log loss between seeds of one setting, pooled over settings; None without repeats."""
        rows = self.measured
        spread = np.log(rows["loss"]).groupby([rows["cell"], rows["setting"]]).agg(["var", "size"])
        spread = spread[spread["size"] > 1]
        if spread.empty:
            return None
        spare = spread["size"] - 1
        return float(np.sqrt((spread["var"] * spare).sum() / spare.sum()))

    def best(self, lr_choice: LrChoice = "lowest") -> Points:
        """Per (size, tokens): the lowest loss over LR of the mean over seeds; the others are `not_best_lr`.

        "interpolated" takes the vertex of the parabola in log LR through the lowest and its two neighbours instead,
        where there are two. ValueError when no row holds a loss.
        """
        rows = self.measured
        if rows.empty:
            counts = self.table["status"].value_counts().to_dict()
            raise ValueError(f"no fully decayed loss in {self.source} (rows by status: {counts}): nothing to fit yet")
        means = self.seed_means
        noise = self.noise
        picked = means.loc[means.groupby("cell", sort=True)["loss"].idxmin()].reset_index(drop=True)
        cell = np.searchsorted(picked["cell"], means["cell"])
        gap = np.log(means["loss"].to_numpy() / picked["loss"].to_numpy()[cell])
        won = pd.MultiIndex.from_frame(picked[["cell", "setting"]])
        lost = rows["id"][~pd.MultiIndex.from_frame(rows[["cell", "setting"]]).isin(won)]
        left_out = {**self.left_out, **dict.fromkeys(lost, Reason.NOT_BEST_LR)}
        rivals = Rivals(
            cell=cell,
            gap=gap,
            cluster=means["setting"].to_numpy(str),
            lr=means["lr"].to_numpy(float),
            seeds=means["seeds"].to_numpy(float),
        )
        low, chosen = _choice_bias(picked, rivals, noise)
        warnings = [*self.warnings, *self._edges(picked), *_within_noise(picked, cell, gap, noise), *chosen]
        loss, lr = picked["loss"].to_numpy(float), picked["lr"].to_numpy(float)
        if lr_choice == "interpolated":
            loss, lr = _interpolated(picked, means)
        return Points(
            ids=tuple(picked["id"]),
            n=picked["n"].to_numpy(float),
            d=picked["d"].to_numpy(float),
            flops=picked["flops"].to_numpy(float),
            loss=loss,
            lr=lr,
            depth=picked["depth"].to_numpy(int),
            clusters=picked["setting"].to_numpy(str),
            weights=(picked["seeds"] / picked["seeds"].mean()).to_numpy(float),
            noise=noise,
            choice_bias=low,
            left_out=left_out,
            warnings=tuple(warnings),
            rivals=rivals,
        )

    @property
    def lrs_tried(self) -> dict[Any, FloatArray]:
        """Cell -> its LRs, ascending. One that was stopped or diverged there was tried."""
        tried = self.table[self.table["status"].isin(["done", "stopped", "diverged"])].dropna(subset=["lr"])
        return {cell: np.unique(lrs) for cell, lrs in tried.groupby("cell")["lr"]}

    def _edges(self, picked: pd.DataFrame) -> list[Warn]:
        """Points whose best LR has no tried LR on one side."""
        tried, found = self.lrs_tried, []
        for row in picked.to_dict("records"):
            lrs = tried.get(row["cell"], np.empty(0))
            if len(lrs) > 1 and not lrs[0] < row["lr"] < lrs[-1]:
                found.append(str(row["id"]))
        if not found:
            return []
        return [
            Warn(
                kind=Caveat.LR_AT_EDGE,
                detail=f"the best LR of {len(found)} of {len(picked)} points is at the edge of the grid: widen --lrs",
                points=tuple(found),
            )
        ]


def _within_noise(picked: pd.DataFrame, cell: np.ndarray, gap: FloatArray, noise: float | None) -> list[Warn]:
    if not noise:
        return []
    seeds = picked["seeds"].to_numpy()
    # 1.64 sqrt(2 / seeds) noise: a one-sided 95 % test of the difference of two means.
    close = (gap > 0) & (gap < 1.645 * noise * np.sqrt(2 / seeds[cell]))
    unsure = sorted({str(picked["id"][i]) for i in cell[close]})
    if not unsure:
        return []
    detail = f"for {len(unsure)} points another LR is within seed noise (log loss {noise:.2g}) of the best"
    return [Warn(kind=Caveat.WITHIN_SEED_NOISE, detail=detail, points=tuple(unsure))]


def _choice_bias(picked: pd.DataFrame, rivals: Rivals, noise: float | None) -> tuple[FloatArray, list[Warn]]:
    """How low the lowest loss of each point is by its choice, and a warning where that matters."""
    unbiased = np.zeros(len(picked))
    if len(rivals.cell) == len(picked) or np.isnan(rivals.lr).any():
        return unbiased, []
    n, d = picked["n"].to_numpy(float), picked["d"].to_numpy(float)
    mu, scatter = choice.shape(rivals.cell, rivals.gap, rivals.lr, rivals.seeds, n, d)
    sigma = noise or scatter
    if sigma is None:
        close = np.unique(rivals.cell[(rivals.gap > 0) & (rivals.gap < choice.CLOSE)])
        if not len(close):
            return unbiased, []
        detail = (
            f"for {len(close)} of {len(picked)} points another LR is within {choice.CLOSE:.0%} of the best: the lowest "
            "is low by its own error, and nothing shows that error: run 4 LRs a size, or a second seed"
        )
        points = tuple(str(picked["id"][i]) for i in close)
        return unbiased, [Warn(kind=Caveat.CHOICE_BIAS, detail=detail, points=points)]
    low = choice.bias(rivals.cell, mu, sigma / np.sqrt(rivals.seeds))
    points = tuple(str(picked["id"][i]) for i in np.flatnonzero(low < -choice.MATTERS))
    if not points:
        return low, []
    detail = (
        f"for {len(points)} of {len(low)} points other LRs are as good as the best within the noise (log loss "
        f"{sigma:.2g}): the lowest is low by its own error, {-low.mean():.2%} on average, and the fit takes that off"
    )
    return low, [Warn(kind=Caveat.CHOICE_BIAS, detail=detail, points=points)]


def _interpolated(picked: pd.DataFrame, means: pd.DataFrame) -> tuple[FloatArray, FloatArray]:
    """Loss and LR at the vertex of the parabola through each best LR and its neighbours; at an edge the lowest."""
    losses, lrs = picked["loss"].to_numpy(float).copy(), picked["lr"].to_numpy(float).copy()
    for i, row in enumerate(picked.to_dict("records")):
        curve = means[means["cell"] == row["cell"]].groupby("lr")["loss"].min()
        k = int(np.searchsorted(curve.index.to_numpy(float), row["lr"]))
        if 0 < k < len(curve) - 1:
            near = curve.iloc[k - 1 : k + 2]
            c2, c1, c0 = np.polyfit(np.log(near.index.to_numpy()), near.to_numpy(), 2)
            losses[i], lrs[i] = c0 - c1**2 / (4 * c2), np.exp(-c1 / (2 * c2))
    return losses, lrs


def load(path_or_frame: str | Path | pd.DataFrame, *, params: Params = "with_head", flops: Flops = "exact") -> Runs:
    """Read a sweep's directory (or URI), a csv or Parquet table, or a DataFrame; see the top of this module for
    columns.

    Raises ValueError for a missing column, a value that cannot be what its column says (a text, a count in millions,
    a loss of 0), an unknown convention, losses of several corpora, vocabularies or context lengths, or a place that
    holds no row.
    """
    if params not in ("with_head", "total", "non_embedding"):
        raise ValueError(f"params={params!r}: take with_head, total or non_embedding")
    if flops not in ("exact", "6nd"):
        raise ValueError(f"flops={flops!r}: take exact or 6nd")
    source, raw = tables.read(path_or_frame)
    table = _canonical(raw, params, flops, source)
    left_out = quality.left_out(table, raw, source)
    quality.refuse_mixture(table, raw, left_out, source)
    return Runs(
        source=source,
        params=params,
        flops=flops,
        table=table,
        left_out=left_out,
        warnings=tuple(quality.warnings(table, raw, left_out, source)),
        records=raw,
    )


def _canonical(raw: pd.DataFrame, params: Params, flops: Flops, source: str) -> pd.DataFrame:
    n = tables.counts(raw, (f"n_params_{params}", "n_params"), source)
    d = tables.counts(raw, ("planned_tokens", "tokens"), source)
    known = [name for name in (("flops",) if flops == "exact" else ()) + ("flops_6nd",) if name in raw]
    compute = tables.column(raw, known, source, positive=True) if known else 6 * n * d
    tables.refuse_units(n, d, compute, source, with_head=params != "non_embedding")
    loss = tables.column(raw, ("val_loss", "loss"), source)
    tables.refuse(loss, loss <= 0, source, "is not positive: a loss in nats per token is")
    lr = tables.column(raw, ("lr",), source) if "lr" in raw else pd.Series(np.nan, index=raw.index)
    tables.refuse(lr, lr <= 0, source, "is no learning rate: leave it empty where it is not known")
    status = raw["status"].astype(str) if "status" in raw else pd.Series("done", index=raw.index, name="status")
    tables.refuse(status, ~status.isin(record.STATUS_ORDER), source, f"is none of {', '.join(record.STATUS_ORDER)}")
    run_id = raw["run_id"].astype(str) if "run_id" in raw else pd.Series([f"row {i}" for i in range(len(raw))])
    ids = run_id + "@" + d.map("{:.0f}".format) if "run_id" in raw else run_id
    if ids.duplicated().any():
        ids = ids + "#" + raw.index.astype(str)
    seed = tables.whole_numbers(raw, "seed", source, 0)
    # Without LRs and repeats there is nothing to choose or to average: each row is a point of its own.
    repeated = bool((seed.groupby([n, d]).transform("min") < seed).any())
    cell = pd.Series(pd.factorize(pd.MultiIndex.from_arrays([n, d]), sort=True)[0], index=raw.index)
    return pd.DataFrame(
        {
            "id": ids,
            "run_id": run_id,
            "cell": cell if repeated or lr.notna().any() else raw.index,
            "setting": _settings(raw, n, lr, run_id, repeated),
            "n": n,
            "d": d,
            "flops": compute,
            "loss": loss,
            "lr": lr,
            "seed": seed,
            "depth": tables.whole_numbers(raw, "depth", source, -1),
            "status": status,
        }
    )


def _settings(raw: pd.DataFrame, n: pd.Series, lr: pd.Series, run_id: pd.Series, repeated: bool) -> pd.Series:
    """A name for what is averaged over seeds: all of the config but the seed, the budgets and the data's path."""
    if "config" in raw:
        codes = pd.factorize(raw["config"].map(_without_seed))[0]
        return pd.Series([f"setting {code}" for code in codes], index=raw.index)
    if repeated or lr.notna().any():
        return n.map(str) + " lr " + lr.map(str)  # astype(str) would keep an unknown LR as NaN, which groups drop
    return run_id


def _without_seed(config: str) -> str:
    parsed = json.loads(config)
    del parsed["seed"], parsed["horizons"], parsed["data"]["data"]
    return json.dumps(parsed, sort_keys=True)
