"""How a sweep goes on with what is missing: its own command, with a higher limit where the limit ended it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sweeps.board import Board
from sweeps.limit import Limit
from sweeps.quote import Quote


@dataclass(frozen=True, kw_only=True)
class Remedy:
    """What to say of what is missing, and the command."""

    command: str
    why: str = "The same command goes on with them:"
    """Ends with a colon: the command follows."""


def remedy(command: str, limit: Limit, board: Board, quotes: Sequence[Quote], spent: float) -> Remedy:
    """For a sweep that has ended.

    Args:
        quotes: of what is left to do, by what the sweep has measured.
        spent: device-hours.
    """
    left = [q for q in quotes if q.device_seconds]
    if limit.hours is None or not left:
        return Remedy(command=command)
    at_next = spent + min(q.first_hours for q in left)
    if not board.count("budget") and at_next <= limit.hours:
        return Remedy(command=command)
    all_hours = spent + sum(q.device_hours for q in left)
    least = " ".join(limit.raised(at_next))
    return Remedy(
        command=limit.command(command, all_hours),
        why="The limit ended the sweep. "
        + (f"The next segment needs {least} or more, all of them at most this:" if least else "All of them need:"),
    )
