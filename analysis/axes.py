"""Settings beside size, LR, seed and budget that a sweep tried several values of, and which value won."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from analysis.runs import Runs

FREE = ("seed", "horizons", "data.data", "model.depth", "optim.lr")
"""What the points, the LR curves and the seeds tell apart already; the data's path is where it lay."""


@dataclass(frozen=True, kw_only=True)
class Axis:
    """A field of the config, by its dotted name, of which some (size, tokens, LR) was trained with several values.

    table: one row a (size, tokens) with several values and value of it, the best LR and other settings of each, with
    columns n, d, depth, value, lr, loss (nats per token, mean over seeds), seeds, won; and unsure: within the noise
    of the winner by a one-sided 95 % test, True too where nothing shows the noise.
    """

    name: str
    table: pd.DataFrame

    @property
    def values(self) -> list[str]:
        """Its values in the order of the table's first (size, tokens)."""
        return list(dict.fromkeys(self.table["value"]))

    @property
    def wins(self) -> dict[str, int]:
        """Value -> at how many (size, tokens) it won."""
        won = self.table.loc[self.table["won"], "value"].tolist()
        return {value: won.count(value) for value in self.values}


def axes(runs: Runs) -> list[Axis]:
    """The axes of these runs, by name; none for a table without configs."""
    if "config" not in runs.records:
        return []
    means = runs.seed_means
    fields = _fields(runs, means)
    found = []
    for name in fields:
        rows = means.assign(value=fields[name])
        if rows.groupby(["cell", "lr"], dropna=False)["value"].nunique().max() > 1:
            found.append(Axis(name=str(name), table=_table(rows, runs.noise)))
    return found


def by_value(runs: Runs, axis: Axis) -> dict[str, Runs]:
    """Value -> the runs that have it."""
    fields = _fields(runs, runs.table)[axis.name]
    return {value: dataclasses.replace(runs, table=runs.table[fields == value]) for value in axis.values}


def _fields(runs: Runs, rows: pd.DataFrame) -> pd.DataFrame:
    """The fields of each row's config as texts, in the index of `rows`; those in `FREE` are left out."""
    config = dict(zip(runs.table["id"], runs.records["config"].loc[runs.table.index], strict=True))
    flat = [dict(_flat(json.loads(config[point]))) for point in rows["id"]]
    named = pd.DataFrame(flat, index=rows.index)
    return named.drop(columns=[name for name in FREE if name in named])


def _flat(config: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for key, value in config.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield prefix + key, str(value)


def _table(rows: pd.DataFrame, noise: float | None) -> pd.DataFrame:
    best = rows.loc[rows.groupby(["cell", "value"])["loss"].idxmin()].sort_values(["n", "d", "loss"])
    cells = best.groupby("cell")
    best = best.assign(won=cells.cumcount() == 0)[cells["value"].transform("size") > 1]
    first = best.groupby("cell")[["loss", "seeds"]].transform("first")
    gap = np.log(best["loss"] / first["loss"])
    # The difference of two means, as for the LRs of a point.
    allowed = 1.645 * (np.inf if noise is None else noise) * np.sqrt(1 / best["seeds"] + 1 / first["seeds"])
    columns = ["n", "d", "depth", "value", "lr", "loss", "seeds", "won", "unsure"]
    return best.assign(unsure=~best["won"] & (gap < allowed))[columns].reset_index(drop=True)
