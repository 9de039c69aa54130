"""Command-line arguments that more than one entry point takes: a TrainConfig, its horizons, and presets."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Annotated, Any, TypeVar

import tyro

from tinyllm.config import DataConfig, ModelConfig, OptimConfig, Precision, TrainConfig
from tinyllm.horizon import Horizon, Unit, parse_quantity

T = TypeVar("T")

# A count with an optional suffix: 200k, 1.5M, 2B, 3e17. Read by `parse_quantity`, whose errors tyro would not show.
Quantity = Annotated[str, tyro.conf.arg(metavar="N|Nk|NM|NB")]


@dataclass(frozen=True, kw_only=True)
class ConfigArguments:
    """What is trained and for how long, as flags."""

    preset: str | None = None
    """Start from a named preset: smoke, base or adamw (tinyllm/presets.py); flags override it."""
    model: Annotated[ModelConfig, tyro.conf.arg(name="")] = field(default_factory=ModelConfig)
    optim: Annotated[OptimConfig, tyro.conf.arg(name="")] = field(default_factory=OptimConfig)
    data: Annotated[DataConfig, tyro.conf.arg(name="")] = field(default_factory=DataConfig)
    tokens: tuple[Quantity, ...] = ()
    """Horizon(s) in tokens, e.g. 200k 400k. One kind of horizon is given, or none: 20 tokens a parameter."""
    tokens_per_param: tuple[Quantity, ...] = ()
    """Horizon(s) in tokens per parameter (parameters counted with the head, without embeddings)."""
    flops: tuple[Quantity, ...] = ()
    """Horizon(s) in FLOPs."""
    steps: tuple[Quantity, ...] = ()
    """Horizon(s) in optimizer steps."""
    seed: int = 0
    """Seeds the weights and the order of the data."""
    precision: Precision = "auto"
    """auto = bf16 where the chip computes it, else fp32."""

    def config(self) -> TrainConfig:
        """The TrainConfig asked for. Raises ValueError for horizons of two kinds, and for what is no quantity."""
        given: dict[Unit, tuple[str, ...]] = {
            "tokens": self.tokens,
            "tokens_per_param": self.tokens_per_param,
            "flops": self.flops,
            "steps": self.steps,
        }
        kinds = [unit for unit, values in given.items() if values]
        if len(kinds) > 1:
            flags = ", ".join(map(_flag, kinds))
            raise ValueError(f"{flags}: how long to train is said in one unit; keep one of them")
        horizons = tuple(Horizon(value=_quantity(_flag(u), text), unit=u) for u in kinds for text in given[u])
        return TrainConfig(
            model=self.model,
            optim=self.optim,
            data=self.data,
            horizons=horizons,
            seed=self.seed,
            precision=self.precision,
        )

    def planned_precision(self) -> str:
        """The precision that training here would take, without waking a GPU: bf16 where there is one."""
        if self.precision != "auto":
            return self.precision
        import torch

        from tinyllm.hardware import computed_precision

        return "bf16" if torch.cuda.is_available() else computed_precision(torch.device("cpu"))


def _flag(field_name: str) -> str:
    return f"--{field_name.replace('_', '-')}"


def _quantity(flag: str, text: str) -> float:
    try:
        return parse_quantity(text)
    except ValueError as error:
        raise ValueError(f"{flag} {error}") from None


def parse(arguments: type[T], argv: Sequence[str], *, prog: str, presets: Mapping[str, Callable[[], TrainConfig]]) -> T:
    """Parse flags into a dataclass; where it has a `preset`, its values are the defaults of the other flags.

    Raises ValueError for a preset that is not there. Flags that do not parse end the process, as usual.
    """
    default: T | None = None
    names = {f.name for f in fields(arguments)}  # type: ignore[arg-type]
    if "preset" in names and (name := _value_of("--preset", argv)) is not None:
        if name not in presets:
            raise ValueError(f"--preset {name}: there is none of that name; take one of {', '.join(presets)}")
        default = _from_preset(arguments, presets[name](), name)
    return tyro.cli(  # type: ignore[return-value]
        arguments,
        args=list(argv),
        prog=prog,
        default=default,
        config=(tyro.conf.OmitArgPrefixes, tyro.conf.FlagConversionOff),
    )


def _from_preset(arguments: type[T], preset: TrainConfig, name: str) -> T:
    horizons: dict[str, Any] = {}
    for horizon in preset.horizons:
        horizons[horizon.unit] = (*horizons.get(horizon.unit, ()), repr(horizon.value))
    return replace(  # type: ignore[type-var]
        arguments(),
        preset=name,
        model=preset.model,
        optim=preset.optim,
        data=preset.data,
        seed=preset.seed,
        precision=preset.precision,
        **horizons,
    )


def _value_of(flag: str, argv: Sequence[str]) -> str | None:
    for i, word in enumerate(argv):
        if word == flag and i + 1 < len(argv):
            return argv[i + 1]
        if word.startswith(flag + "="):
            return word.removeprefix(flag + "=")
    return None
