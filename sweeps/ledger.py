"""What a sweep has spent and may still spend: device-seconds, on storage, across restarts.

Unit: device-hours (GPU, else trial slot), start-up, evaluation, saving and retries included.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping

from tinyllm import storage

LEDGER_FILE = "ledger.json"
WRITE_EVERY_S = 5.0
# What a killed sweep may have spent after its last entry; charged in full when it goes on.
GAP_S = 10.0


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
        self._quoted = 0.0
        self._reserved: dict[str, float] = {}
        self._holding: dict[str, float] = {}
        if storage.exists(self._path):
            entry = json.loads(storage.read_bytes(self._path))
            self.spent, self._quoted = entry["spent_device_seconds"], entry["quoted_device_seconds"]
            self.spent += GAP_S * entry["holding_devices"]
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
        if changed or now - self._written >= WRITE_EVERY_S:
            self.write()

    def charge(self, device_seconds: float) -> None:
        """Devices were held outside of a trial's time: its start-up."""
        self.spent += device_seconds

    def reserve(self, run_id: str, device_seconds: float) -> bool:
        """Set aside what the next segment of a trial is quoted at; False, and nothing happens, when it does not fit."""
        others = sum(left for other, left in self._reserved.items() if other != run_id)
        if self._limit is not None and self.spent + others + device_seconds > self._limit:
            return False
        self._reserved[run_id] = device_seconds
        self._quoted += device_seconds
        return True

    def release(self, run_id: str) -> None:
        """The trial's segment is over."""
        self._reserved.pop(run_id, None)

    def write(self) -> None:
        """Put the state on storage, whole."""
        self._written = self._clock()
        entry = {
            "spent_device_seconds": self.spent,
            "quoted_device_seconds": self._quoted,
            "holding_devices": sum(self._holding.values()),
            "running": sorted(self._holding),
            "price_per_device_hour": self.price,
            "limit_device_seconds": self._limit,
            "written_at": time.time(),
        }
        storage.write_bytes(self._path, json.dumps(entry, indent=1).encode())

    def close(self) -> None:
        """Nothing is held any more."""
        self.tick({})
        self._reserved.clear()
        self.write()

    @property
    def over_quoted(self) -> float | None:
        """Spent / quoted, over all sessions; None before anything was quoted."""
        return self.spent / self._quoted if self._quoted else None

    def __str__(self) -> str:
        cost = "" if self.price is None else f", cost {self.hours * self.price:,.2f}"
        return f"{self.hours:.3g} device-hours{cost}"
