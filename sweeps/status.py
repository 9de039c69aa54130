"""How a sweep stands, from any shell that reaches its storage: python -m sweeps.status demo"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import tyro

from sweeps import lock
from sweeps.board import Board, CellStatus, PlannedCell
from sweeps.ledger import LEDGER_FILE, read_entry
from sweeps.view import new_console
from tinyllm import record, storage

SWEEP_FILE = "sweep.json"


@dataclass(frozen=True, kw_only=True)
class Status:
    """Print how a sweep stands: by depth and budget, what runs, what is done, best loss and LR, and the cost so far."""

    name: Annotated[str, tyro.conf.Positional]
    """Name of the sweep."""
    storage: str = "out"
    """Where it lies."""


def read_board(root: str) -> tuple[Board, str]:
    """The board of the sweep under `root` as storage knows it, and lines about it.

    Raises ValueError when there is no sweep.
    """
    held = lock.is_held(root)
    path = storage.join(root, SWEEP_FILE)
    if not storage.exists(path):
        if held:
            return Board([]), "starting: what is to be run is being worked out"
        raise ValueError(f"no sweep at {root}: it has no {SWEEP_FILE}; give its name and --storage")
    sweep = json.loads(storage.read_bytes(path))
    board = Board([PlannedCell(**c) for c in sweep["cells"]], record.read(root))
    ledger = read_entry(root) if storage.exists(storage.join(root, LEDGER_FILE)) else None
    if held and ledger is not None and ledger["open"]:
        board.running = set(ledger["running"])
    state, over = _state(board, held, ledger)
    spent = ""
    if ledger is not None:
        hours, price = ledger["spent_device_seconds"] / 3600, ledger["price_per_device_hour"]
        cost = f", cost {hours * price:,.2f}" if price is not None else ""
        spent = f", {hours:.3g} device-hours{cost}; as of {time.time() - ledger['written_at']:.0f} s ago"
    lines = [f"{state}, {board.share_done:.0%} of the FLOPs{spent}"]
    if over:
        found = [f"{n} {what}" for status, what in WORDS.items() if (n := board.count(status))]
        lines += [f"Missing: {', '.join(found)}. To go on: {sweep['command']}"] if found else []
    return board, "\n".join(lines)


# What is missing of a sweep that has ended.
WORDS: dict[CellStatus, str] = {"waiting": "not run", "failed": "failed", "budget": "over the limit"}


def _state(board: Board, held: bool, ledger: Mapping[str, Any] | None) -> tuple[str, bool]:
    """In words, and whether nothing goes on by itself.

    `held`: a process runs the sweep. `ledger`: of the last session that began.
    """
    is_open = ledger is not None and ledger["open"]
    if held:
        quiet = "running, no trial at this moment" if ledger and is_open and ledger["begun"] else "starting"
        return "running" if board.running else quiet, False
    if ledger is None or is_open:
        return "broken off: its process is no more, and came to no end", True
    if not board.count(*WORDS):
        return "ended: complete", True
    return "ended at its limit" if board.count("budget") else "ended: not complete", True


def main() -> None:
    options = tyro.cli(Status, prog="python -m sweeps.status", description=Status.__doc__)
    try:
        board, line = read_board(storage.absolute(storage.join(options.storage, options.name)))
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    new_console().print(board.table(), line, sep="\n", highlight=False, soft_wrap=True)


if __name__ == "__main__":
    main()
