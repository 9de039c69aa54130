"""Timing by turns: contenders run one after the other, round by round, so that a busy moment hits all alike."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Ratio:
    """Median of the ratios of pairs, with a 90 % interval of that median."""

    median: float
    low: float
    high: float
    least: float
    greatest: float
    n_pairs: int

    @staticmethod
    def of(above: list[float], below: list[float]) -> Ratio:
        """Ratios above / below of pairs taken in the same round."""
        ratios = sorted(a / b for a, b in zip(above, below, strict=True))
        low, high = median_interval(len(ratios))
        return Ratio(
            median=statistics.median(ratios),
            low=ratios[low],
            high=ratios[high],
            least=ratios[0],
            greatest=ratios[-1],
            n_pairs=len(ratios),
        )

    def __str__(self) -> str:
        return (
            f"{self.median:.3f} (90 % interval {self.low:.3f} to {self.high:.3f}; "
            f"pairs {self.least:.3f} to {self.greatest:.3f}, n = {self.n_pairs})"
        )

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def median_interval(n: int, coverage: float = 0.9) -> tuple[int, int]:
    """Indices into n sorted values between which the median lies with at least this probability.

    Distribution-free: the number of values below the median is Binomial(n, 1/2). With so few values that even the
    least and the greatest do not reach the coverage, these are returned.
    """
    below = 0.0  # probability that at most k values lie below the median
    for k in range(n):
        below += math.comb(n, k) / 2**n
        if 2 * below > 1 - coverage:
            break
    outer = max(k - 1, 0)
    return outer, n - 1 - outer


@dataclass(frozen=True, kw_only=True)
class Times:
    """Seconds of each turn of one contender."""

    cpu: list[float]
    """Of all threads of this process."""
    wall: list[float]


def timed(step: Callable[[], None]) -> tuple[float, float]:
    """CPU and wall seconds of a call."""
    wall, cpu = time.perf_counter(), time.process_time()
    step()
    return time.process_time() - cpu, time.perf_counter() - wall


def take_turns(steps: Mapping[str, Callable[[], None]], rounds: int) -> dict[str, Times]:
    """Run every step once a round, in an order that is reversed in every other round. Warm them up before."""
    times = {name: Times(cpu=[], wall=[]) for name in steps}
    for i in range(rounds):
        for name in list(steps) if i % 2 == 0 else reversed(list(steps)):
            cpu, wall = timed(steps[name])
            times[name].cpu.append(cpu)
            times[name].wall.append(wall)
    return times
