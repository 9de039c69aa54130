"""What a trial asks of the cluster, and how many fit at once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

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
        if self.workers < 1 or self.cpus <= 0 or self.gpus < 0:
            raise ValueError(
                f"{self.workers} worker(s) with {self.cpus:g} CPUs and {self.gpus:g} GPUs: a trial needs at least one "
                "worker with more than 0 CPUs"
            )

    @property
    def devices(self) -> float:
        """What is paid for: GPUs, else the slot itself, a worker each."""
        return self.workers * (self.gpus or 1)

    @property
    def bundle(self) -> dict[str, float]:
        """Of the trial's actor."""
        if self.workers > 1:
            return {TRIAL_SLOT: 1}
        return {"CPU": self.cpus, **({"GPU": self.gpus} if self.gpus else {})}

    @property
    def total(self) -> dict[str, float]:
        """Of all its workers, and of the driver they have."""
        found = {"CPU": self.workers * self.cpus, "GPU": self.workers * self.gpus}
        return found | ({TRIAL_SLOT: 1} if self.workers > 1 else {})

    def slots(self, cluster: Mapping[str, float]) -> int:
        """How many such trials a cluster with these resources runs at once."""
        return min(int(cluster.get(name, 0) / amount + 1e-9) for name, amount in self.total.items() if amount)


def all_fit(trials: Iterable[Resources], cluster: Mapping[str, float]) -> bool:
    """Whether a cluster with these resources runs all these trials at once."""
    asked: Counter[str] = Counter()
    for trial in trials:
        asked.update(trial.total)
    return all(amount <= cluster.get(name, 0) + 1e-9 for name, amount in asked.items())
