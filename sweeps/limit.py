"""The hard stop of a sweep as its user gave it: in device-hours, in money, or both."""

from __future__ import annotations

import math
import shlex
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Limit:
    """Raises ValueError for what is not positive and finite, and for money without a price."""

    gpu_hours: float | None = None
    """--max-gpu-hours."""
    cost: float | None = None
    """--max-cost."""
    price: float | None = None
    """--price, of a device for an hour."""

    def __post_init__(self) -> None:
        for flag, value in (("--max-gpu-hours", self.gpu_hours), ("--max-cost", self.cost), ("--price", self.price)):
            if value is not None and not 0 < value < math.inf:
                raise ValueError(f"{flag} {value:g}: must be positive and finite; leave it out for none")
        if self.cost is not None and self.price is None:
            raise ValueError(f"--max-cost {self.cost:g} needs the price of a device for an hour: --price")

    @property
    def hours(self) -> float | None:
        """The lower of the two, in device-hours."""
        given = [self.gpu_hours, None if self.cost is None or self.price is None else self.cost / self.price]
        return min((limit for limit in given if limit is not None), default=None)

    def raised(self, hours: float) -> list[str]:
        """The flags, with values, that must be higher before a sweep may take so many device-hours."""
        found = []
        if self.gpu_hours is not None and self.gpu_hours < hours:
            found += ["--max-gpu-hours", _up(hours)]
        if self.cost is not None and self.price is not None and self.cost < hours * self.price:
            found += ["--max-cost", _up(hours * self.price)]
        return found

    def command(self, command: str, hours: float) -> str:
        """A sweep's command with the limits that so many device-hours need."""
        raised, words = self.raised(hours), shlex.split(command)
        for flag in raised[::2]:
            for i in reversed(range(len(words))):
                if words[i].replace("_", "-") == flag:
                    del words[i : i + 2]
                elif words[i].replace("_", "-").startswith(f"{flag}="):
                    del words[i]
        return shlex.join([*words, *raised]) if raised else command

    def refuse(self, spent: float, missing: list[float]) -> None:
        """Raise ValueError, with the remedy, where not even the cheapest segment fits.

        Args:
            spent: device-hours so far.
            missing: device-hours of each trial's next segment, with its start-up.
        """
        if self.hours is None or not missing or spent + min(missing) <= self.hours:
            return
        given = [f"--max-gpu-hours {self.gpu_hours:g}"] if self.gpu_hours is not None else []
        given += [f"--max-cost {self.cost:g} at --price {self.price:g}"] if self.cost is not None else []
        used = f"{spent:.3g} of {self.hours:.3g} device-hours are spent"
        raise ValueError(
            f"{', '.join(given)}: {used if spent else f'that is {self.hours:.3g} device-hours'}, and the cheapest "
            f"segment to be run is quoted at {min(missing):.3g}, start-up included: nothing would be trained; give "
            f"{' '.join(self.raised(spent + min(missing)))} or more"
        )


def _up(value: float) -> str:
    """Rounded up to three digits: what the number is to hold does fit."""
    scale = 10.0 ** (math.floor(math.log10(value)) - 2)
    return f"{math.ceil(value / scale - 1e-9) * scale:.6g}"
