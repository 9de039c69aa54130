"""What a sweep has spent and may still spend: device-seconds, on storage, across restarts.

Unit: device-hours (GPU, else trial slot), start-up, evaluation, saving and retries included.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Mapping
from typing import Any, Literal

from tinyllm import storage

LEDGER_FILE = "ledger.json"
WRITE_EVERY_S = 5.0
# What a killed sweep may have spent after its last entry; charged in full when it goes on.
GAP_S = 10.0


KEYS = {
    "open",
    "begun",
    "spent_device_seconds",
    "quotes",
    "holding_devices",
    "running",
    "price_per_device_hour",
    "limit_device_seconds",
    "written_at",
}


def read_entry(root: str) -> dict[str, Any]:
    """The ledger under a sweep's directory. Raises ValueError, with the remedy, on one of another version."""
    path = storage.join(root, LEDGER_FILE)
    try:
        entry = json.loads(storage.read_bytes(path))
        lacks = KEYS - entry.keys()
    except (ValueError, AttributeError):
        lacks = KEYS
    if lacks:
        raise ValueError(
            f"{path} is no ledger of this version (it lacks {', '.join(sorted(lacks))}): go on with the version that "
            "wrote it, or remove the file: what was spent until now is then not counted"
        )
    return entry


class Ledger:
    """Counts while trials hold devices, and says whether a segment still fits under the limit.

    A segment starts only if spent + reserved for all that runs + its own quote is within the limit.
    """

    def __init__(
        self,
        root: str,
        *,
        limit_hours: float | None = None,
        price: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`price`: of a device for an hour. `clock`: seconds, for tests."""
        self._path = storage.join(root, LEDGER_FILE)
        self._limit = None if limit_hours is None else limit_hours * 3600
        self.price, self._clock = price, clock
        self.spent = 0.0
        """Device-seconds, of earlier sessions as well."""
        self._quotes: dict[tuple[str, int], float] = {}
        self._reserved: dict[str, float] = {}
        self._asked: dict[str, float] = {}
        self._holding: dict[str, float] = {}
        if storage.exists(self._path):
            entry = read_entry(root)
            self.spent = entry["spent_device_seconds"] + GAP_S * entry["holding_devices"]
            self._quotes = {(r, int(t)): s for r, found in entry["quotes"].items() for t, s in found.items()}
        self._open = self._begun = False
        self._ticked = self._written = clock()

    @property
    def hours(self) -> float:
        """Device-hours spent so far."""
        return self.spent / 3600

    @property
    def exhausted(self) -> bool:
        return self._limit is not None and self.spent >= self._limit

    def tick(self, holding: Mapping[str, float]) -> None:
        """These trials (by run_id) hold so many devices from now on; what was held until now is charged."""
        now = self._clock()
        elapsed, self._ticked = now - self._ticked, now
        for run_id, devices in self._holding.items():
            self.spent += elapsed * devices
            if run_id in self._reserved:
                self._reserved[run_id] = max(0.0, self._reserved[run_id] - elapsed * devices)
        changed = set(holding) != set(self._holding)
        self._holding = dict(holding)
        self._begun = self._begun or bool(holding)
        if changed or now - self._written >= WRITE_EVERY_S:
            self.write()

    def charge(self, device_seconds: float) -> None:
        """Devices were held outside of a trial's time: its start-up."""
        self.spent += device_seconds

    def reserve(self, run_id: str, device_seconds: float) -> bool:
        """Set aside what the next segment of a trial is quoted at; False, and nothing happens, when it does not fit.

        Trials that have not started yet give way.
        """
        others = sum(left for other, left in self._reserved.items() if other != run_id)
        if not self._fits(others + device_seconds):
            return False
        self._asked.pop(run_id, None)
        self._reserved[run_id] = device_seconds
        return True

    def ask(self, run_id: str, device_seconds: float) -> Literal["go", "wait", "stop"]:
        """The same for a trial that is to wait for a slot, its start-up included; until it reserves or is released.

        "wait" = it may fit when what others have set aside is known to be less; "stop" = it never will.
        """
        others = sum(left for asked in (self._reserved, self._asked) for r, left in asked.items() if r != run_id)
        if not self._fits(others + device_seconds):
            return "wait" if others and self._fits(device_seconds) else "stop"
        self._asked[run_id] = device_seconds
        return "go"

    def _fits(self, device_seconds: float) -> bool:
        return self._limit is None or self.spent + device_seconds <= self._limit

    def release(self, run_id: str) -> None:
        """The trial's segment is over."""
        self._reserved.pop(run_id, None)
        self._asked.pop(run_id, None)

    def open(self, quotes: Mapping[tuple[str, int], float]) -> None:
        """A session begins.

        `quotes`: device-seconds that its user was shown for each budget, by run_id and planned tokens. The first
        quote of a budget is kept, so that what was spent is held against what was promised.
        """
        self._quotes = {**quotes, **self._quotes}
        self._open = True
        self.write()

    def write(self) -> None:
        """Put the state on storage, whole."""
        self._written = self._clock()
        quotes: dict[str, dict[int, float]] = {}
        for (run_id, tokens), seconds in self._quotes.items():
            quotes.setdefault(run_id, {})[tokens] = seconds
        entry = {
            "open": self._open,
            "begun": self._begun,
            "spent_device_seconds": self.spent,
            "quotes": quotes,
            "holding_devices": sum(self._holding.values()),
            "running": sorted(self._holding),
            "price_per_device_hour": self.price,
            "limit_device_seconds": self._limit,
            "written_at": time.time(),
        }
        storage.write_bytes(self._path, json.dumps(entry, indent=1).encode())

    def close(self) -> None:
        """The session is over: nothing is held any more."""
        self._open = False
        self.tick({})
        self._reserved.clear()
        self._asked.clear()
        self.write()

    def quoted(self, cells: Collection[tuple[str, int]] | None = None) -> float:
        """Device-hours that these budgets, or all, were quoted at before they ran."""
        return sum(s for cell, s in self._quotes.items() if cells is None or cell in cells) / 3600

    def account(self, reached: Collection[tuple[str, int]]) -> str:
        """What was spent beside what was quoted at first; `reached`: the budgets that were run to their end."""
        quoted = {f"all {len(self._quotes)} budgets": self.quoted()}
        if len(reached) < len(self._quotes):
            quoted[f"the {len(reached)} that were reached"] = self.quoted(reached)
        parts = [f"{hours:.3g} for {what} ({self.hours / hours:.2f} x)" for what, hours in quoted.items() if hours]
        return f"Spent: {self}. Quoted at first: {', '.join(parts)}."

    def __str__(self) -> str:
        cost = "" if self.price is None else f", cost {self.hours * self.price:,.2f}"
        return f"{self.hours:.3g} device-hours{cost}"
