"""How long the next segment of a trial takes: the quoted speed until this sweep has measured its own."""

from __future__ import annotations

from collections.abc import Mapping

from sweeps.grid import Trial
from sweeps.quote import Speed, segment_flops, segment_seconds


class Pace:
    """Device-seconds a FLOP by depth, evaluation and saving included, re-estimated with every segment that ends."""

    def __init__(self, speed: Speed, startup: Mapping[str, float]) -> None:
        """`startup`: device-seconds before a trial trains, by run_id; nothing for those that find a warm process."""
        self._speed, self.startup = speed, startup
        self._begun: dict[str, tuple[Trial, int, float, float]] = {}
        self._measured: dict[int, tuple[float, float]] = {}

    def device_seconds(self, trial: Trial, rung: int) -> float:
        """Of the segment after `rung` budgets."""
        flops = segment_flops(trial, rung)
        seconds, measured = self._measured.get(trial.depth, (0.0, 0.0))
        startup = self.startup.get(trial.run_id, 0.0) if rung == 0 else 0.0
        return startup + (flops * seconds / measured if measured else segment_seconds(trial, rung, self._speed))

    def began(self, trial: Trial, rung: int, devices: float, now: float) -> None:
        """`now`: seconds of a monotonic clock."""
        self._begun[trial.run_id] = trial, rung, devices, now

    def ended(self, run_id: str, now: float, device_seconds: float | None = None) -> None:
        """The segment that began last was trained to its end. Nothing is learnt of one that began elsewhere.

        `device_seconds`: without start-up, where it is known; else all time since it began.
        """
        if run_id not in self._begun:
            return
        trial, rung, devices, started = self._begun.pop(run_id)
        spent = (now - started) * devices if device_seconds is None else device_seconds
        seconds, flops = self._measured.get(trial.depth, (0.0, 0.0))
        self._measured[trial.depth] = seconds + spent, flops + segment_flops(trial, rung)
