"""Which rows can be points of a fit, and what must be said about those that are."""

from __future__ import annotations

import json
from collections.abc import Mapping

import numpy as np
import pandas as pd

from analysis import table as tables
from analysis.result import Caveat, Reason, Warn
from tinyllm.plan import FEW_DECAY_STEPS

FAR_BELOW = 0.3
"""A loss lower by this share than that of every larger and longer run is no measurement of the same thing."""
FAR_BELOW_ALL = 0.4
"""The same for a run that none is larger and longer than, beside all others."""
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
    low = far_below(table[usable])
    detail = (
        f"loss(es) far below those of larger and longer runs ({', '.join(low[:3])}): check these rows, or remove "
        "them, before anything else is read here"
    )
    warn(Caveat.OUTLIER_LOSS, low, detail)
    if table["lr"].isna().all():
        again = usable & table.where(usable).duplicated(["n", "d"], keep=False)
        detail = (
            "rows share size and tokens with another, and no column lr tells them apart: each counts as a run at its "
            "best LR, so that the law is too high and its intervals too narrow if they differ in LR: add lr and seed"
        )
        warn(Caveat.REPEATS, tuple(table["id"][again]), detail)
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


def far_below(table: pd.DataFrame) -> tuple[str, ...]:
    """Ids of the rows whose loss is so far below all others that it cannot be one of the same law.

    A run as large and as long, or more so, has a lower loss at the best LR; one row that undercuts all of them by
    `FAR_BELOW` is an error of the table.
    """
    found: list[str] = []
    rows = table.sort_values("loss", kind="stable")
    n, d, loss, ids = (rows[name].to_numpy() for name in ("n", "d", "loss", "id"))
    left = np.ones(len(rows), bool)
    count = -1
    # One such row hides another that is smaller: look again without it.
    while count < len(found):
        count = len(found)
        for i in np.flatnonzero(left):
            others = left.copy()
            others[i] = False
            beyond = others & (n >= n[i]) & (d >= d[i])
            another = beyond & ((n > n[i]) | (d > d[i]))
            among, share = (beyond, FAR_BELOW) if another.any() else (others, FAR_BELOW_ALL)
            if among.any() and loss[i] < (1 - share) * loss[among].min():
                found.append(str(ids[i]))
                left[i] = False
    return tuple(found)
