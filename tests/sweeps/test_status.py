"""How a sweep stands, as read from its storage alone."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path

import pytest

from sweeps.board import Board, PlannedCell
from sweeps.ledger import Ledger
from sweeps.status import read_board
from sweeps.summary import EXIT_DONE, EXIT_INTERRUPTED, EXIT_MISSING, last_lines
from sweeps.view import duration

CELLS = [
    PlannedCell(run_id=f"d2-{lr}", tokens=tokens, depth=2, lr=lr, flops=float(tokens), budget_index=i)
    for lr in (0.01, 0.02)
    for i, tokens in enumerate((100, 300))
]


def board() -> Board:
    found = Board(CELLS)
    found.mark("d2-0.01", 100, "done", 3.0)
    found.mark("d2-0.01", 300, "done", 2.5)
    found.mark("d2-0.02", 100, "done", 2.9)
    return found


def test_lines_count_each_cell_once_and_name_the_best_lr() -> None:
    b = board()
    b.running = {"d2-0.02"}
    at_100, at_300 = b.lines()
    assert (at_100.done, at_100.running, at_100.waiting, at_100.best_lr) == (2, 0, 0, 0.02)
    assert (at_300.done, at_300.running, at_300.waiting, at_300.best_lr) == (1, 1, 0, 0.01)
    assert b.share_done == pytest.approx(500 / 800)


@pytest.mark.parametrize(
    ("status", "interrupted", "code"),
    [
        ("done", False, EXIT_DONE),
        ("stopped", False, EXIT_DONE),
        ("diverged", False, EXIT_DONE),
        ("failed", False, EXIT_MISSING),
        ("budget", False, EXIT_MISSING),
        ("waiting", True, EXIT_INTERRUPTED),
        ("done", True, EXIT_DONE),
    ],
)
def test_the_exit_code_says_whether_something_is_missing(status: str, interrupted: bool, code: int) -> None:
    b = board()
    b.mark("d2-0.02", 300, status, reason="why")  # type: ignore[arg-type]
    lines, found = last_lines("/r", b, "the command", interrupted=interrupted)
    assert found == code
    assert ("  the command" in lines) == (code != EXIT_DONE)


def test_status_is_read_from_storage(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no sweep at .*: it has no sweep.json; give its name and --storage"):
        read_board(str(tmp_path))
    sweep = {"name": "s", "command": "the command", "cells": [asdict(c) for c in CELLS]}
    (tmp_path / "sweep.json").write_text(json.dumps(sweep))
    assert "nothing has run yet" in read_board(str(tmp_path))[1]
    ledger = {
        "open": True,
        "spent_device_seconds": 7200,
        "price_per_device_hour": 1.5,
        "running": ["d2-0.01"],
        "written_at": time.time(),
    }
    (tmp_path / "ledger.json").write_text(json.dumps(ledger))
    found, line = read_board(str(tmp_path))
    assert found.running == {"d2-0.01"}
    assert line.startswith("running, 0% of the FLOPs, 2 device-hours, cost 3.00")
    (tmp_path / "ledger.json").write_text(json.dumps({**ledger, "written_at": time.time() - 3600}))
    found, line = read_board(str(tmp_path))
    assert found.running == set()
    assert line.startswith("not running")
    assert "To go on: the command" in line


def test_a_sweep_that_starts_is_told_from_one_that_ended(tmp_path: Path) -> None:
    sweep = {"name": "s", "command": "the command", "cells": [asdict(c) for c in CELLS]}
    (tmp_path / "sweep.json").write_text(json.dumps(sweep))
    ledger = Ledger(str(tmp_path))
    ledger.open({})
    assert read_board(str(tmp_path))[1].startswith("starting")
    ledger.tick({"d2-0.01": 1})
    assert read_board(str(tmp_path))[1].startswith("running")
    ledger.close()
    assert read_board(str(tmp_path))[1].startswith("not running")


def test_what_was_reached_and_is_not_on_storage_is_missing() -> None:
    b = board()
    b.compare([])
    lines, code = last_lines("/r", b, "the command", interrupted=False)
    assert code == EXIT_MISSING
    assert "  failed: d2-0.01 at 100 tokens: it was reached, but its record is not on storage" in lines


@pytest.mark.parametrize("place", ["/proc/nope", "/dev/null/below"])
def test_a_place_that_cannot_be_written_is_refused_before_anything_else(place: str) -> None:
    command = [sys.executable, "-m", "sweeps.depth_grid", "--dry-run", "--storage", place]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2
    assert f"error: nothing can be written to {place}/sweep" in done.stderr
    assert done.stderr.rstrip().endswith("give another --storage")


def test_duration() -> None:
    assert [duration(s) for s in (5, 65, 3725)] == ["0:05", "1:05", "1:02:05"]
