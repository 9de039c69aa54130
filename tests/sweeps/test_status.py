"""How a sweep stands, as read from its storage alone."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from sweeps.board import Board, PlannedCell
from sweeps.ledger import Ledger
from sweeps.lock import only_here
from sweeps.remedy import Remedy
from sweeps.status import read_board
from sweeps.summary import EXIT_DONE, EXIT_INTERRUPTED, EXIT_MISSING, last_lines
from sweeps.view import duration
from tinyllm import record
from tinyllm.record import RunRecord, Status

CELLS = [
    PlannedCell(
        run_id=f"d2-{lr}", tokens=tokens, depth=2, lr=lr, flops=float(tokens), budget_index=i, setting=f"lr {lr} wd 1"
    )
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
    assert (at_100.best, at_300.best) == ("lr 0.02 wd 1", "lr 0.01 wd 1")
    wider = Board([*CELLS, replace(CELLS[0], run_id="d2-0.04", lr=0.04, setting="lr 0.04 wd 1")])
    for run_id, loss in (("d2-0.01", 3.0), ("d2-0.02", 2.9), ("d2-0.04", 2.8)):
        wider.mark(run_id, 100, "done", loss)
    assert wider.lines()[0].best == "lr 0.04 wd 1, the highest LR of the grid"


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
    lines, found = last_lines("/r", b, Remedy(command="the command"), interrupted=interrupted)
    assert found == code
    assert ("  the command" in lines) == (code != EXIT_DONE)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A sweep that was planned and has not begun."""
    sweep = {"name": "s", "command": "the command", "cells": [asdict(c) for c in CELLS]}
    (tmp_path / "sweep.json").write_text(json.dumps(sweep))
    return tmp_path


def state(place: Path) -> str:
    return read_board(str(place))[1]


def test_a_place_without_a_sweep_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no sweep at .*: it has no sweep.json; give its name and --storage"):
        read_board(str(tmp_path))
    with only_here(str(tmp_path), say=print):
        assert state(tmp_path).startswith("starting")


def test_what_a_sweep_does_is_told_while_its_process_lives(place: Path) -> None:
    with only_here(str(place), say=print):
        assert state(place).startswith("starting, 0% of the FLOPs")
        ledger = Ledger(str(place), price=1.5)
        ledger.open({})
        assert state(place).startswith("starting")
        ledger.charge(7200)
        ledger.tick({"d2-0.01": 1})
        board, line = read_board(str(place))
        assert board.running == {"d2-0.01"}
        assert line.startswith("running, 0% of the FLOPs, 2 device-hours, cost 3.00")
        ledger.tick({})
        assert state(place).startswith("running, no trial at this moment")
        assert "To go on" not in state(place)
    # Killed: neither a young ledger nor one that says that trials run makes it alive.
    assert state(place).startswith("broken off")
    assert state(place).endswith("Missing: 4 not run. To go on: the command")
    with only_here(str(place), say=print):
        assert state(place).startswith("running")


@pytest.mark.parametrize(
    ("statuses", "expected", "missing"),
    [
        (("done", "done", "done", "done"), "ended: complete, 100% of the FLOPs", None),
        (("done", "done", "done", "stopped"), "ended: complete, 100% of the FLOPs", None),
        (("done", "diverged", "done", "diverged"), "ended: complete, 100% of the FLOPs", None),
        (("done", "done", "done", "failed"), "ended: not complete, 62% of the FLOPs", "1 failed"),
        (("done", "budget", "done", "budget"), "ended at its limit, 25% of the FLOPs", "2 over the limit"),
        (("done", "waiting", "failed", "budget"), "ended at its limit, 12%", "1 not run, 1 failed, 1 over the limit"),
    ],
)
def test_how_a_sweep_ended(place: Path, statuses: tuple[Status, ...], expected: str, missing: str | None) -> None:
    ledger = Ledger(str(place))
    ledger.open({})
    ledger.close()
    for cell, status in zip(CELLS, statuses, strict=True):
        if status != "waiting":
            record.append(str(place), [row(cell, status)])
    board, text = read_board(str(place))
    assert text.startswith(expected)
    lines = text.splitlines()[1:]
    assert lines == ([] if missing is None else [f"Missing: {missing}. To go on: the command"])
    assert sum(line.over_limit for line in board.lines()) == statuses.count("budget")
    assert sum(line.failed for line in board.lines()) == statuses.count("failed") + statuses.count("diverged")


def row(cell: PlannedCell, status: Status) -> RunRecord:
    trial = {"run_id": cell.run_id, "planned_tokens": cell.tokens, "group": "g", "depth": cell.depth, "lr": cell.lr}
    numbers = ("seed", "steps", "fork_step", "decay_steps", "batch_tokens")
    numbers += ("n_params_total", "n_params_non_embedding", "n_params_with_head")
    texts = ("precision", "corpus", "corpus_digest", "config", "plan", "versions", "machine", "metric_versions")
    rest = dict.fromkeys(numbers, 0) | dict.fromkeys(texts, "") | {"flops_per_token": 1.0, "flops": 1.0}
    loss = 3.0 if status == "done" else None
    return RunRecord(
        **trial, **rest, flops_6nd=1.0, attempt="a", finished_at=1.0, fully_decayed=True, status=status, val_loss=loss
    )


def test_what_was_reached_and_is_not_on_storage_is_missing() -> None:
    b = board()
    b.compare([])
    lines, code = last_lines("/r", b, Remedy(command="the command"), interrupted=False)
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
