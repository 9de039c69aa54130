"""`path=value` on the command line: any field of a trial's config, fixed (`--set`) or as an axis (`--axis`)."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from types import NoneType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from tinyllm.config import DataConfig, ModelConfig, OptimConfig, TrainConfig
from tinyllm.horizon import Unit, parse_quantity

# Swept by flags of their own, or derived.
RESERVED = {
    "model.depth": "--depths",
    "optim.lr": "--lrs",
    "seed": "--seeds",
    "horizons": "--budgets",
    "corpus": "--data",
    "data.data": "--data",
}


@dataclass(frozen=True, kw_only=True)
class Axis:
    """One more dimension of a grid: a field of the config and the values it takes."""

    path: str
    """Dotted path of a field of TrainConfig, e.g. optim.weight_decay."""
    values: tuple[Any, ...]


def parse_setting(text: str) -> tuple[str, Any]:
    """'optim.weight_decay=0.1' -> ("optim.weight_decay", 0.1). Raises ValueError naming what is wrong with it."""
    path, values = _split(text)
    return path, _value(path, values)


def parse_axis(text: str) -> Axis:
    """'optim.weight_decay=0.1,0.2' -> Axis. Raises ValueError naming what is wrong with it."""
    path, values = _split(text)
    return Axis(path=path, values=tuple(_value(path, v) for v in values.split(",")))


def in_a_sweep(text: str) -> str:
    """A message about a config, whose flags are those of `tinyllm train`, in the flags of a sweep.

    '--warmup-tokens 2048' -> '--set optim.warmup_tokens=2048', '--depth' -> '--depths'.
    """

    def there(found: re.Match[str]) -> str:
        flag, value = found[1], found[2]
        if flag not in _FLAGS:
            return found[0]
        joint = "" if value is None else "=" if _FLAGS[flag].startswith("--set") else " "
        return f"{_FLAGS[flag]}{joint}{value or ''}"

    # A value begins with a digit, as of all flags that messages give values to.
    return re.sub(r"--([a-z][a-z0-9-]*)(?: (\d[\w.]*))?", there, text)


def _flags() -> dict[str, str]:
    units = dict.fromkeys((unit.replace("_", "-") for unit in get_args(Unit)), "--budgets")
    found = {**units, "seed": "--seeds", "precision": "--set precision"}
    for section, kind in (("model", ModelConfig), ("optim", OptimConfig), ("data", DataConfig)):
        for f in fields(kind):
            path = f"{section}.{f.name}"
            found[f.name.replace("_", "-")] = RESERVED.get(path, f"--set {path}")
    return found


# By flag of `tinyllm train`, without its dashes.
_FLAGS = _flags()


def _split(text: str) -> tuple[str, str]:
    path, equals, values = text.partition("=")
    if not equals or not path or not values:
        raise ValueError(f"{text!r} is not PATH=VALUE, e.g. optim.weight_decay=0.1")
    if path in RESERVED:
        raise ValueError(f"{path} is set by {RESERVED[path]}, not here")
    return path, values


def _value(path: str, text: str) -> Any:
    """The text as what the field at `path` holds."""
    cls: Any = TrainConfig
    *parents, last = path.split(".")
    for name in (*parents, last):
        known = [f.name for f in fields(cls)] if hasattr(cls, "__dataclass_fields__") else []
        if name not in known:
            raise ValueError(
                f"{path}: {getattr(cls, '__name__', cls)} has no field {name!r}; it has {', '.join(known)}"
            )
        cls = get_type_hints(cls)[name]
    options = [t for t in get_args(cls) if t is not NoneType] if NoneType in get_args(cls) else [cls]
    if NoneType in get_args(cls) and text.lower() == "none":
        return None
    return _convert(path, text, options[0])


def _convert(path: str, text: str, kind: Any) -> Any:
    if get_origin(kind) is Literal:
        if text not in get_args(kind):
            raise ValueError(f"{path}={text}: take one of {', '.join(get_args(kind))}")
        return text
    if kind is bool:
        if text.lower() not in ("true", "false"):
            raise ValueError(f"{path}={text}: write true or false")
        return text.lower() == "true"
    if kind is str:
        return text
    if kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            value = 0.0 if text == "0" else parse_quantity(text)
        if kind is int and value != int(value):
            raise ValueError(f"{path}={text}: a whole number is needed")
        return kind(value)
    raise ValueError(f"{path} is a whole section: set one of its fields, e.g. {path}.{next(iter(fields(kind))).name}")
