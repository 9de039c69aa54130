"""How long what is next of a trial takes: as quoted until this sweep has measured its own."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace

from sweeps.grid import Trial
from sweeps.quote import Speed, Startup, evaluation_flops, segment_flops, segment_seconds
from sweeps.resources import Resources
from tinyllm.record import RunRecord


class Pace:
    """Speed by depth, evaluation and saving included, and start-up, re-estimated with all that ends in this session."""

    def __init__(self, speed: Speed, startup: Startup, resources: Mapping[str, Resources]) -> None:
        """`resources`: of each trial, by run_id."""
        self._speed, self._startup, self.resources = speed, startup, resources
        self._begun: dict[str, tuple[Trial, int, float, bool]] = {}
        self._flops: defaultdict[int, float] = defaultdict(float)
        self._seconds: defaultdict[int, float] = defaultdict(float)
        self._starts: dict[str, list[float]] = {"slot": [], "trial": [], "group": []}

    @property
    def speed(self) -> Speed:
        """Of one device."""
        found = {depth: self._flops[depth] / self._seconds[depth] / 1e12 for depth in self._seconds}
        # What was expected of other depths was as far off.
        off = statistics.geometric_mean(found[d] / self._speed.of(d) for d in found) if found else 1.0
        expected = {depth: tflops * off for depth, tflops in self._speed.by_depth.items()}
        return replace(self._speed, by_depth={**expected, **found})

    @property
    def measured(self) -> bool:
        """Whether a segment has ended."""
        return bool(self._seconds)

    @property
    def startup(self) -> Startup:
        """Seconds."""
        return replace(self._startup, **{what: sum(s) / len(s) for what, s in self._starts.items() if s})

    def device_seconds(self, trial: Trial, rung: int, *, starts: bool) -> float:
        """Of the segment after `rung` budgets, for a trial that has its process; `starts`: that has not trained yet."""
        resources = self.resources[trial.run_id]
        group = resources.devices * self.startup.group if starts and resources.workers > 1 else 0.0
        return group + segment_seconds(trial, rung, self.speed)

    def start_seconds(self, trial: Trial, *, new_process: bool) -> float:
        """Device-seconds before a trial asks whether it may train."""
        startup = self.startup
        return self.resources[trial.run_id].devices * (startup.slot if new_process else startup.trial)

    def started(self, seconds: float, *, new_process: bool) -> None:
        """So long it took until a trial asked whether it may train."""
        self._starts["slot" if new_process else "trial"].append(seconds)

    def began(self, trial: Trial, rung: int, now: float, *, starts: bool) -> None:
        """A segment. `now`: seconds of a monotonic clock. `starts`: the first one since the trial has its process."""
        self._begun[trial.run_id] = trial, rung, now, starts

    def elapsed(self, run_id: str, now: float) -> float:
        """Seconds since a trial's segment began; 0 where none runs."""
        return now - self._begun[run_id][2] if run_id in self._begun else 0.0

    def ended(self, run_id: str, now: float, *, group_start: float, tokens_per_second: float | None) -> None:
        """The segment that began last was trained to its end. Nothing is learnt of one that began elsewhere.

        A first segment pays for what later and longer ones do not, and may have been trained in part by a process
        before: of it the speed of training alone counts.

        Args:
            group_start: seconds of it that passed before the first of several workers trained.
            tokens_per_second: of training alone, all workers together.
        """
        if run_id not in self._begun:
            return
        trial, rung, started, first = self._begun.pop(run_id)
        devices = self.resources[run_id].devices
        if group_start:
            self._starts["group"].append(group_start)
        flops = segment_flops(trial, rung) + evaluation_flops(trial)
        seconds = (now - started - group_start) * devices
        if first and tokens_per_second is not None:
            seconds = _training_seconds(trial, flops, tokens_per_second) * devices
        self._seconds[trial.depth] += seconds
        self._flops[trial.depth] += flops

    def forget(self, run_id: str) -> None:
        """Its segment was not trained to its end."""
        self._begun.pop(run_id, None)


def _training_seconds(trial: Trial, flops: float, tokens_per_second: float) -> float:
    """Of all workers together."""
    return flops / (tokens_per_second * trial.plan.flops_per_token)


def on_record(records: Iterable[RunRecord], trials: Iterable[Trial], device_share: float) -> dict[int, float]:
    """TFLOP/s of a device by depth, evaluation and saving included, as earlier sessions of a sweep recorded it.

    `device_share`: of a GPU, that a worker has.
    """
    flops: defaultdict[int, float] = defaultdict(float)
    seconds: defaultdict[int, float] = defaultdict(float)
    rows = {r.key: r for r in records}
    for trial in trials:
        for rung, budget in enumerate(trial.plan.budgets):
            row = rows.get((trial.run_id, budget.tokens))
            if row is None or row.device_seconds is None or row.world_size is None:
                continue
            work = segment_flops(trial, rung) + evaluation_flops(trial)
            spent = row.device_seconds
            if row.tokens_per_second is not None:
                training = _training_seconds(trial, work, row.tokens_per_second) * row.world_size
                # The first one as in `Pace.ended`. A process that died took its part of a later one with it.
                spent = training if rung == 0 else max(spent, training)
            flops[trial.depth] += work
            seconds[trial.depth] += spent * device_share
    return {depth: flops[depth] / seconds[depth] / 1e12 for depth in seconds}
