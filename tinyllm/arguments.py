"""Command-line arguments that more than one entry point takes: a TrainConfig, its horizons, and presets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, make_dataclass, replace
from typing import Any, TypeVar, get_args, get_type_hints

import tyro
from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo

from tinyllm.config import DataConfig, ModelConfig, OptimConfig, Precision, TrainConfig
from tinyllm.flags import Absent, Lifted, Quantities
from tinyllm.horizon import Horizon, Unit, parse_count, parse_quantity
from tinyllm.presets import on_corpus

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class HorizonArguments:
    """How long to train: quantities of one kind (200k, 1.5M, 2B, 3e17). Default: 20 tokens a parameter."""

    tokens: Quantities = ()
    """In tokens, e.g. 200k 400k."""
    tokens_per_param: Quantities = ()
    """In tokens per parameter (parameters counted with the head, without embeddings)."""
    flops: Quantities = ()
    """In FLOPs."""
    steps: Quantities = ()
    """In optimizer steps."""

    def horizons(self) -> tuple[Horizon, ...]:
        """Raises ValueError for horizons of two kinds, and for what is no quantity."""
        kinds: list[Unit] = [unit for unit in get_args(Unit) if getattr(self, unit)]
        if len(kinds) > 1:
            flags = ", ".join(map(_flag, kinds))
            raise ValueError(f"{flags}: how long to train is said in one unit; keep one of them")
        return tuple(_horizon(unit, text) for unit in kinds for text in getattr(self, unit))


@dataclass(frozen=True, kw_only=True)
class ConfigArguments:
    """What is trained and for how long, as flags."""

    preset: Absent[str] = None
    """Start from a named preset: smoke, base or adamw (tinyllm/presets.py); flags override it."""
    seed: int = 0
    """Seeds the weights and the order of the data."""
    precision: Precision = "auto"
    """auto = bf16 where the chip computes it, else fp32."""
    horizon: Lifted[HorizonArguments] = field(default_factory=HorizonArguments)
    model: Lifted[ModelConfig] = field(default_factory=ModelConfig)
    optim: Lifted[OptimConfig] = field(default_factory=OptimConfig)
    data: Lifted[DataConfig] = field(default_factory=DataConfig)

    def config(self) -> TrainConfig:
        """The TrainConfig asked for. Raises ValueError as `HorizonArguments.horizons`, and for a seed that is none."""
        return TrainConfig(
            model=self.model,
            optim=self.optim,
            data=self.data,
            horizons=self.horizon.horizons(),
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


def _horizon(unit: Unit, text: str) -> Horizon:
    try:
        value = parse_quantity(text)
    except ValueError as error:
        raise ValueError(f"{_flag(unit)} {error}") from None
    return Horizon(value=value, unit=unit)


def parse(arguments: type[T], argv: Sequence[str], *, prog: str, presets: Mapping[str, Callable[[], TrainConfig]]) -> T:
    """Parse flags into a dataclass; where it has a `preset`, its values are the defaults of the other flags.

    Whole numbers take the suffixes of horizons: 512k. Raises ValueError for a preset that is not there and for a flag
    that is given twice. Flags that do not parse end the process, as usual.
    """
    given = Counter(word.partition("=")[0].replace("_", "-") for word in argv if word.startswith("--"))
    if twice := [flag for flag, count in given.items() if count > 1]:
        raise ValueError(f"{', '.join(twice)} is given twice: keep one (several values follow one flag, with spaces)")
    default: T | None = None
    names = {f.name for f in fields(arguments)}  # type: ignore[arg-type]
    if "preset" in names and (name := _value_of("--preset", argv)) is not None:
        if name not in presets:
            raise ValueError(f"--preset {name}: there is none of that name; take one of {', '.join(presets)}")
        default = _from_preset(arguments, on_corpus(presets[name](), _value_of("--data", argv)), name)
    if {"-h", "--help"} & set(argv):
        arguments, default = _titled(arguments, default)
    with _WHOLE_NUMBERS:
        return tyro.cli(  # type: ignore[return-value]
            arguments,
            args=list(argv),
            prog=prog,
            default=default,
            config=(tyro.conf.OmitArgPrefixes, tyro.conf.FlagConversionOff, tyro.conf.DisallowNone),
        )


def _titled(arguments: type[T], default: T | None) -> tuple[type[T], T | None]:
    """The same flags, those of each nested dataclass under a title of their own, which makes a help of 60 readable.

    Not for parsing: under a title, tyro puts the one line that a dataclass raises into a box.
    """
    hints = get_type_hints(arguments)  # without the annotations that lift
    nested = [
        (f.name, hints[f.name], field(default_factory=f.default_factory))
        for f in fields(arguments)  # type: ignore[arg-type]
        if is_dataclass(hints[f.name])
    ]
    about = {"__doc__": arguments.__doc__}
    titled = make_dataclass(arguments.__name__, nested, bases=(arguments,), namespace=about, frozen=True, kw_only=True)
    if default is None:
        return titled, None
    return titled, titled(**{f.name: getattr(default, f.name) for f in fields(titled)})


_WHOLE_NUMBERS = ConstructorRegistry()


@_WHOLE_NUMBERS.primitive_rule
def _whole_number(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[int] | None:
    if info.type is not int:
        return None
    return PrimitiveConstructorSpec(
        nargs=1,
        metavar="INT",
        instance_from_str=lambda words: parse_count(words[0]),
        is_instance=lambda value: isinstance(value, int),
        str_from_instance=lambda value: [str(value)],
    )


def _from_preset(arguments: type[T], preset: TrainConfig, name: str) -> T:
    horizons: dict[str, Any] = {}
    for horizon in preset.horizons:
        horizons[horizon.unit] = (*horizons.get(horizon.unit, ()), repr(horizon.value))
    return replace(  # type: ignore[type-var]
        arguments(),
        preset=name,
        horizon=HorizonArguments(**horizons),
        model=preset.model,
        optim=preset.optim,
        data=preset.data,
        seed=preset.seed,
        precision=preset.precision,
    )


def _value_of(flag: str, argv: Sequence[str]) -> str | None:
    for i, word in enumerate(argv):
        if word == flag and i + 1 < len(argv):
            return argv[i + 1]
        if word.startswith(flag + "="):
            return word.removeprefix(flag + "=")
    return None
