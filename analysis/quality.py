"""Which rows can be points of a fit, and what must be said about those that are."""

from __future__ import annotations

import json
from collections.abc import Mapping

import numpy as np
import pandas as pd

from analysis import table as tables
from analysis.result import Caveat, Reason, Warn
from tinyllm.plan import FEW_DECAY_STEPS

MAX_EPOCHS = 4.0
"""Beyond about 4 passes repeated tokens are worth visibly less than fresh ones (Muennighoff et al. 2023)."""


def left_out(table: pd.DataFrame, raw: pd.DataFrame, source: str) -> dict[str, Reason]:
    """Id of each row that can never be a point -> why."""
    decayed = tables.flags(raw, "fully_decayed", source) if "fully_decayed" in raw else pd.Series(True, index=raw.index)
    # One measurement written twice would count as two; a run of its own differs in some digit of its loss.
    again = table.duplicated(["n", "d", "loss", "lr", "seed", *(["run_id"] if "run_id" in raw else [])])
    found = {}
    rows = zip(table["id"], table["status"], table["loss"], decayed, again, strict=True)
    for point, status, loss, whole, repeated in rows:
        if status == "diverged":
            found[point] = Reason.DIVERGED
        elif status != "done":
            found[point] = Reason.NOT_DONE
        elif not np.isfinite(loss):
            found[point] = Reason.NO_LOSS
        elif not whole:
            found[point] = Reason.NOT_FULLY_DECAYED
        elif repeated:
            found[point] = Reason.DUPLICATE
    return found


def refuse_mixture(table: pd.DataFrame, raw: pd.DataFrame, left_out: Mapping[str, Reason], source: str) -> None:
    """ValueError where the losses that would be fitted are of several corpora, vocabularies or context lengths."""
    usable = ~table["id"].isin(list(left_out))
    corpus = [name for name in ("corpus_digest", "corpus") if name in raw][:1]
    groups = raw[[*corpus, *(name for name in ("vocab_size", "seq_len") if name in raw)]]
    if "config" in raw:
        models = raw["config"].map(lambda text: json.loads(text)["model"])
        groups = groups.assign(**{name: models.map(lambda m, k=name: m[k]) for name in ("vocab_size", "seq_len")})
    tables.refuse_mixture(groups[usable], source)


def warnings(table: pd.DataFrame, raw: pd.DataFrame, left_out: Mapping[str, Reason], source: str) -> list[Warn]:
    """Warnings about the runs themselves."""
    found = []

    def warn(kind: Caveat, points: tuple[str, ...], detail: str) -> None:
        if points:
            found.append(Warn(kind=kind, detail=f"{len(points)} {detail}", points=points))

    def because(reason: Reason) -> tuple[str, ...]:
        return tuple(point for point, why in left_out.items() if why == reason)

    usable = ~table["id"].isin(list(left_out))
    detail = "losses were measured before their decay ended: never points of a fit"
    warn(Caveat.NOT_FULLY_DECAYED, because(Reason.NOT_FULLY_DECAYED), detail)
    detail = "done rows hold no finite loss: left out"
    warn(Caveat.NO_LOSS, because(Reason.NO_LOSS), detail)
    detail = "rows repeat another in size, tokens, LR, seed and every digit of the loss: counted once"
    warn(Caveat.DUPLICATE_ROWS, because(Reason.DUPLICATE), detail)
    if "decay_steps" in raw:
        short = usable & (tables.column(raw, ("decay_steps",), source) < FEW_DECAY_STEPS)
        detail = f"losses decayed over fewer than {FEW_DECAY_STEPS} steps: higher than a full decay gives"
        warn(Caveat.FEW_DECAY_STEPS, tuple(table["id"][short]), detail)
    if "epochs" in raw:
        repeated = usable & (tables.column(raw, ("epochs",), source) > MAX_EPOCHS)
        detail = f"runs saw their corpus more than {MAX_EPOCHS:g} times: repeated tokens are worth less"
        warn(Caveat.MANY_EPOCHS, tuple(table["id"][repeated]), detail)
    ratio = tables.doubtful_ratio(table["n"], table["d"])
    if ratio is not None:
        detail = f"{ratio:.2g} tokens a parameter (median): is one of the two counts in another unit?"
        found.append(Warn(kind=Caveat.UNITS, detail=detail))
    return found
