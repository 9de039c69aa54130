"""What a sweep spent beside what its user was quoted, as the ledger says that `sweeps` keeps beside the records."""

from __future__ import annotations

import json
from dataclasses import dataclass

import pandas as pd

from tinyllm import storage

LEDGER_FILE = "ledger.json"
REACHED = ("done", "diverged")


@dataclass(frozen=True, kw_only=True)
class Spending:
    """Device-hours (GPU, else trial slot): start-up, evaluation, saving and retries included."""

    spent: float
    quoted: float
    """For all budgets, each when it was first planned."""
    reached: float
    """Of that, for the budgets that were run to their end: early stopping leaves the others out."""


def spending(source: str, records: pd.DataFrame) -> Spending | None:
    """The ledger under a sweep's directory; None where there is none. records: run_id, planned_tokens, status."""
    path = storage.join(source, LEDGER_FILE)
    if not {"run_id", "planned_tokens", "status"} <= set(records) or not storage.exists(path):
        return None
    ledger = json.loads(storage.read_bytes(path))
    quotes = {
        (r, int(t)): seconds / 3600 for r, found in ledger.get("quotes", {}).items() for t, seconds in found.items()
    }
    ended = records[records["status"].isin(REACHED)]
    keys = set(zip(ended["run_id"], ended["planned_tokens"], strict=True))
    return Spending(
        spent=ledger["spent_device_seconds"] / 3600,
        quoted=sum(quotes.values()),
        reached=sum(hours for key, hours in quotes.items() if key in keys),
    )
