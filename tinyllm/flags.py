"""How fields of a config look as flags, beyond their docstrings; read by tyro alone."""

from __future__ import annotations

from typing import Annotated, TypeVar

import tyro

T = TypeVar("T")


def _default(label: str) -> str:
    """What --help says of a default: nothing where the flag is simply not given, which its text explains."""
    return "" if label in ("", "None") else f"(default: {label})"


# A setting that is absent unless given: its docstring says what happens then.
Absent = Annotated[T | None, tyro.conf.arg(help_behavior_hint=_default)]
# A dataclass whose fields are flags without its name before them.
Lifted = Annotated[T, tyro.conf.arg(name="")]
# Several quantities such as 200k 1.5M 3e17, read by `tinyllm.horizon.parse_quantity`.
Quantities = Annotated[tuple[str, ...], tyro.conf.arg(metavar="N [N ...]", help_behavior_hint=_default)]
