"""How a sweep stands, from any shell that reaches its storage: python -m sweeps.status demo"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import dataclass
from typing import Annotated

import tyro
from rich.console import Console

from sweeps.board import Board, PlannedCell
from sweeps.ledger import LEDGER_FILE
from tinyllm import record, storage

SWEEP_FILE = "sweep.json"
STALE_S = 30.0  # a ledger that was not written for so long is nobody's: the sweep was killed
STARTING_S = 120.0  # nor is one of a sweep whose Ray has not come up for so long


@dataclass(frozen=True, kw_only=True)
class Status:
    """Print how a sweep stands: by depth and budget, what runs, what is done, best loss and LR, and the cost so far."""

    name: Annotated[str, tyro.conf.Positional]
    """Name of the sweep."""
    storage: str = "out"
    """Where it lies."""


def read_board(root: str) -> tuple[Board, str]:
    """The board of the sweep under `root` as storage knows it, and a line about it.

    Raises ValueError when there is no sweep.
    """
    path = storage.join(root, SWEEP_FILE)
    if not storage.exists(path):
        raise ValueError(f"no sweep at {root}: it has no {SWEEP_FILE}; give its name and --storage")
    sweep = json.loads(storage.read_bytes(path))
    board = Board([PlannedCell(**c) for c in sweep["cells"]], record.read(root))
    ledger_path = storage.join(root, LEDGER_FILE)
    if not storage.exists(ledger_path):
        return board, f"{board.share_done:.0%} of the FLOPs; nothing has run yet"
    ledger = json.loads(storage.read_bytes(ledger_path))
    age = time.time() - ledger["written_at"]
    board.running = set(ledger["running"]) if age < STALE_S else set()
    starting = ledger["open"] and not ledger["running"] and age < STARTING_S
    hours = ledger["spent_device_seconds"] / 3600
    price = ledger["price_per_device_hour"]
    cost = f", cost {hours * price:,.2f}" if price is not None else ""
    state = "running" if board.running else "starting" if starting else "not running"
    line = f"{state}, {board.share_done:.0%} of the FLOPs, {hours:.3g} device-hours{cost}; as of {age:.0f} s ago"
    return board, line if board.running or starting else f"{line}\nTo go on: {sweep['command']}"


def main() -> None:
    options = tyro.cli(Status, description=Status.__doc__)
    try:
        board, line = read_board(storage.absolute(storage.join(options.storage, options.name)))
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    console = Console()
    console.print(board.table(), line, sep="\n", highlight=False, soft_wrap=True)


if __name__ == "__main__":
    main()
