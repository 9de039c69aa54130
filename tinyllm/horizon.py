"""How long to train: a value and its unit, and the quantities that people write."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

if TYPE_CHECKING:
    from tinyllm.config import ModelConfig

Unit = Literal["tokens", "tokens_per_param", "flops", "steps"]

_SUFFIX = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9, "g": 10**9, "t": 10**12, "p": 10**15, "e": 10**18}


def parse_count(text: str) -> int:
    """A whole number with an optional suffix: '-1' -> -1, '512k' -> 512000. Raises ValueError on anything else."""
    try:
        return int(text)
    except ValueError:
        value = parse_quantity(text)
    if value != int(value):
        raise ValueError(f"{text!r} is no whole number: write e.g. 40, 512k or 1.5M")
    return int(value)


def parse_quantity(text: str) -> float:
    """'200k' -> 200000.0, '1.5B' -> 1.5e9, '3e17' -> 3e17. Raises ValueError on anything else or not positive."""
    stripped = text.strip().replace("_", "").replace(",", "")
    suffix = stripped[-1:].lower()
    number, factor = (stripped[:-1], _SUFFIX[suffix]) if suffix in _SUFFIX and suffix else (stripped, 1)
    try:
        value = float(number) * factor
    except ValueError:
        raise ValueError(f"{text!r} is no quantity: write e.g. 200k, 1.5M, 2B or 3e17") from None
    if not 0 < value < float("inf"):
        raise ValueError(f"{text!r} is not positive and finite: write e.g. 200k, 1.5M, 2B or 3e17")
    return value


@dataclass(frozen=True, kw_only=True)
class Horizon:
    """How long to train: a value and its unit."""

    value: float
    unit: Unit = "tokens"

    def __post_init__(self) -> None:
        if self.unit not in get_args(Unit):
            raise ValueError(f"horizon unit {self.unit!r}: take one of {get_args(Unit)}")
        if not 0 < self.value < float("inf"):
            raise ValueError(f"horizon of {self.value} {self.unit}: must be positive and finite")
        if self.unit == "steps" and self.value != int(self.value):
            raise ValueError(f"horizon of {self.value:g} steps: give a whole number, e.g. {round(self.value)}")

    def tokens(self, model: ModelConfig, batch_tokens: int) -> float:
        """The horizon in tokens, before rounding to whole steps."""
        match self.unit:
            case "tokens":
                return self.value
            case "tokens_per_param":
                return self.value * model.counts.with_head
            case "flops":
                return self.value / model.flops_per_token
            case "steps":
                return self.value * batch_tokens

    def steps(self, model: ModelConfig, batch_tokens: int) -> int:
        """Whole steps that fit; the tolerance keeps a multiple of the batch from losing a step to rounding."""
        return int(self.tokens(model, batch_tokens) / batch_tokens + 1e-9)

    def __str__(self) -> str:
        return f"{self.value:g} {self.unit.replace('_', ' ')}"
