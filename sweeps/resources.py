"""What a trial asks of the cluster, and how many fit at once."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

# What each node of a cluster has.
Nodes = Sequence[Mapping[str, float]]

# A custom resource of each node (`ray start --resources`), taken by the driver of a multi-worker trial: with CPUs
# instead, as many drivers as there are CPUs would wait for ever for workers.
TRIAL_SLOT = "trial_slot"


@dataclass(frozen=True, kw_only=True)
class Resources:
    """Of one trial."""

    workers: int = 1
    cpus: float = 1
    """A worker."""
    gpus: float = 0
    """A worker."""

    def __post_init__(self) -> None:
        if self.workers < 1 or not 0 < self.cpus < math.inf or not 0 <= self.gpus < math.inf:
            raise ValueError(
                f"{self}: a trial needs at least one worker with more than 0 CPUs, and 0 or more GPUs "
                "(--workers, --cpus-per-worker, --gpus-per-worker)"
            )
        if self.cpus > 1 and self.cpus != int(self.cpus):
            raise ValueError(f"{self}: above 1, Ray gives whole CPUs only")
        if self.gpus > 1 or (self.gpus not in (0, 1) and self.workers > 1):
            raise ValueError(
                f"{self}: a worker computes on one GPU, or on a part of one where it is alone: for more GPUs a trial "
                "take more --workers with --gpus-per-worker 1"
            )

    def __str__(self) -> str:
        return f"{self.workers} worker(s) with {self.cpus:g} CPUs and {self.gpus:g} GPUs"

    @property
    def devices(self) -> float:
        """What is paid for: GPUs, else the slot itself, a worker each."""
        return self.workers * (self.gpus or 1)

    @property
    def device_share(self) -> float:
        """Part of a GPU's memory that a worker has."""
        return self.gpus or 1.0

    @property
    def bundle(self) -> dict[str, float]:
        """Of the trial's actor."""
        if self.workers > 1:
            return {TRIAL_SLOT: 1}
        return self._worker

    @property
    def total(self) -> dict[str, float]:
        """Of all its workers, and of the driver they have."""
        found = {name: self.workers * amount for name, amount in self._worker.items()}
        return found | ({TRIAL_SLOT: 1} if self.workers > 1 else {})

    @property
    def _worker(self) -> dict[str, float]:
        return {"CPU": self.cpus, **({"GPU": self.gpus} if self.gpus else {})}

    def slots(self, nodes: Nodes) -> int:
        """How many such trials a cluster of these nodes runs at once. A worker lies on one node."""
        held = sum(min(_times(node, name, amount) for name, amount in self._worker.items()) for node in nodes)
        held //= self.workers
        return held if self.workers == 1 else min(held, sum(_times(node, TRIAL_SLOT, 1) for node in nodes))


def _times(node: Mapping[str, float], name: str, amount: float) -> int:
    return int(node.get(name, 0) / amount + 1e-9)


def sum_of(nodes: Nodes) -> Counter[str]:
    """What a cluster has in all."""
    found: Counter[str] = Counter()
    for node in nodes:
        found.update(node)
    return found


def all_fit(trials: Iterable[Resources], nodes: Nodes) -> bool:
    """Whether a cluster of these nodes runs all these trials at once."""
    asked: Counter[str] = Counter()
    for trial in trials:
        asked.update(trial.total)
    have = sum_of(nodes)
    return all(amount <= have[name] + 1e-9 for name, amount in asked.items())
