"""Whole sweeps on real Ray: every cell once, nothing run twice, nothing left behind."""

from __future__ import annotations

import json
import os
import socket
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import ray
from tensorboardX.proto.event_pb2 import Event

from sweeps import cluster, runner
from sweeps.grid import Grid
from sweeps.ledger import Ledger
from sweeps.options import SweepOptions
from sweeps.planned import plan_sweep
from sweeps.settings import parse_axis
from sweeps.status import read_board
from sweeps.tuning import train_trials
from tinyllm import record
from tinyllm.record import RunRecord

Make = Callable[..., tuple[SweepOptions, Grid]]


@pytest.fixture
def sweep(cluster_address: str) -> Callable[[tuple[SweepOptions, Grid]], int]:
    """Run one on the file's cluster; returns the exit code."""

    def go(made: tuple[SweepOptions, Grid]) -> int:
        options, grid = made
        return runner.run(replace(options, address=cluster_address), grid, "the command")

    return go


def records(tmp_path: Path) -> list[RunRecord]:
    return record.read(str(tmp_path / "s"))


def losses(tmp_path: Path) -> dict[tuple[int, float, int], float | None]:
    return {(r.depth, r.lr, r.steps): r.val_loss for r in records(tmp_path)}


def test_a_sweep_reaches_every_budget_and_the_same_again_runs_nothing(
    sweep: Callable[..., int], make_sweep: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = make_sweep(depths=(1, 2), lrs=(0.01, 0.02), early_stop=False)
    assert sweep(made) == 0
    rows = records(tmp_path)
    cells = {(d, lr, s) for d in (1, 2) for lr in (0.01, 0.02) for s in (30, 60)}
    assert {(r.depth, r.lr, r.steps) for r in rows} == cells
    assert {r.status for r in rows} == {"done"}
    assert {r.sweep for r in rows} == {"s"}
    text = capsys.readouterr().out
    assert "8 budgets: 8 done" in text
    assert f"python -m analysis report {tmp_path}/s" in text
    for run_id in {r.run_id for r in rows}:
        assert told_tensorboard(tmp_path / "s" / "tune" / run_id) == {
            r.planned_tokens: pytest.approx(r.val_loss) for r in rows if r.run_id == run_id
        }
    parts = sorted(os.listdir(tmp_path / "s" / "records"))
    assert sweep(made) == 0
    assert sorted(os.listdir(tmp_path / "s" / "records")) == parts
    assert "trials to run" not in capsys.readouterr().out


def told_tensorboard(directory: Path) -> dict[int, float]:
    """Validation losses by the value of TensorBoard's axis. (A file of events: length, checksum, event, checksum.)"""
    (file,) = directory.glob("events.out.tfevents.*")
    data, at, found = file.read_bytes(), 0, {}
    while at < len(data):
        (length,) = struct.unpack("<Q", data[at : at + 8])
        event = Event.FromString(data[at + 12 : at + 12 + length])
        for value in event.summary.value:
            if value.tag == "ray/tune/val_loss":
                found[event.step] = value.simple_value
        at += 12 + length + 4
    return found


def test_a_larger_grid_over_the_same_storage_runs_only_what_is_missing(
    sweep: Callable[..., int], make_sweep: Make, tmp_path: Path
) -> None:
    assert sweep(make_sweep(lrs=(0.01,), steps=(30,), early_stop=False)) == 0
    (first,) = records(tmp_path)
    assert sweep(make_sweep(lrs=(0.01, 0.02), steps=(30, 60), early_stop=False)) == 0
    rows = {(r.lr, r.steps): r for r in records(tmp_path)}
    assert set(rows) == {(lr, s) for lr in (0.01, 0.02) for s in (30, 60)}
    assert rows[0.01, 30].attempt == first.attempt
    log = (tmp_path / "s" / "runs" / first.run_id / "log.txt").read_text()
    assert "continuing from fork-00000024" in log


def test_a_trial_in_a_reused_actor_is_bit_equal_to_one_in_a_process_of_its_own(
    sweep: Callable[..., int], make_sweep: Make, tmp_path: Path
) -> None:
    made = make_sweep(lrs=(0.005, 0.01, 0.02, 0.04, 0.08), early_stop=False)
    assert sweep(made) == 0
    # Two actors, five trials: the last to end was not the first of its actor.
    last = max(records(tmp_path), key=lambda r: r.finished_at)
    alone = f"""
from tinyllm import record
from tinyllm.config import TrainConfig
from tinyllm.options import RunOptions
from tinyllm.worker import Job, run
config = TrainConfig.from_json({last.config!r})
run(Job(config=config, options=RunOptions(save_weights=False), root={str(tmp_path / "alone")!r}))
"""
    subprocess.run([sys.executable, "-c", alone], check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    expected = next(r for r in record.read(str(tmp_path / "alone")) if r.steps == last.steps)
    assert (last.val_loss, last.train_loss, last.token_digest) == (
        expected.val_loss,
        expected.train_loss,
        expected.token_digest,
    )
    assert last.curve == expected.curve


@pytest.mark.parametrize("asha", ["by-rung", "async"])
def test_early_stopping_keeps_the_best_and_its_neighbours(
    asha: str, sweep: Callable[..., int], make_sweep: Make, tmp_path: Path
) -> None:
    lrs = (0.0005, 0.001, 0.005, 0.01, 0.02, 0.04)
    assert sweep(make_sweep(lrs=lrs, asha=asha, reduction_factor=3)) == 0
    rows = {(r.lr, r.steps): r for r in records(tmp_path)}
    assert set(rows) == {(lr, s) for lr in lrs for s in (30, 60)}
    at_30 = {lr: rows[lr, 30].val_loss for lr in lrs}
    assert all(loss is not None for loss in at_30.values())
    best = min(at_30, key=lambda lr: at_30[lr])  # type: ignore[arg-type, return-value]
    done = {lr for lr in lrs if rows[lr, 60].status == "done"}
    stopped = {lr for lr in lrs if rows[lr, 60].status == "stopped"}
    assert best in done
    assert done | stopped == set(lrs)
    assert all(rows[lr, 60].reason for lr in stopped)
    if asha == "by-rung":
        i = min(max(lrs.index(best), 1), len(lrs) - 2)
        assert done == set(lrs[i - 1 : i + 2])
    decisions = json.loads((tmp_path / "s" / "asha.json").read_text())["decisions"]
    assert {(d["run_id"], d["keep"]) for d in decisions} == {(rows[lr, 30].run_id, lr in done) for lr in lrs}


def test_a_ray_that_does_not_answer_any_more_is_joined_only_where_it_was_asked_for(
    make_sweep: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        gone = f"127.0.0.1:{taken.getsockname()[1]}"
    (tmp_path / "ray").mkdir()
    (tmp_path / "ray" / "ray_current_cluster").write_text(gone)  # as a `ray start` leaves it
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    options, grid = make_sweep(dry_run=True, address="auto")
    assert runner.run(options, grid, "the command") == 0
    printed = capsys.readouterr().out
    assert f"({gone}) does not answer: it is not joined" in printed
    assert "4 trials" in printed
    with pytest.raises(ValueError, match=f"no Ray cluster answers at {gone}"):
        runner.run(replace(options, address=gone), grid, "the command")
    monkeypatch.setenv("RAY_ADDRESS", gone)
    with pytest.raises(ValueError, match=f"no Ray cluster answers at {gone}"):
        runner.run(options, grid, "the command")


def test_trials_that_differ_in_another_lr_are_judged_apart(make_sweep: Make) -> None:
    options, grid = make_sweep(lrs=(0.01, 0.02, 0.04))
    grid = replace(grid, axes=(parse_axis("optim.embedding_lr=0.1,0.3"), parse_axis("optim.momentum=0.9,0.95")))
    planned = plan_sweep(options, grid, "", cluster.this_machines_device("cpu"), [{"CPU": 2}], lambda configs: [])
    configs = {t.run_id: t.config.optim for t in planned.cells.trials}
    assert len(planned.groups) == 4
    for group in planned.groups:
        assert sorted(group.lrs.values()) == [0.01, 0.02, 0.04]
        assert len({(configs[r].embedding_lr, configs[r].momentum) for r in group.lrs}) == 1


def test_a_diverged_and_a_failed_trial_end_with_a_reason_and_the_rest_goes_on(
    sweep: Callable[..., int], make_sweep: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = make_sweep(lrs=(0.01, 0.02, 1e6))
    options, grid = made
    device = cluster.this_machines_device("cpu")
    planned = plan_sweep(options, grid, "", device, [{"CPU": 2}], lambda configs: [])
    blocked = next(t for t in planned.cells.trials if t.lr == 0.02)
    # A file where the trial's directory should be: as good as a full or read-only disk.
    run_dir = tmp_path / "s" / "runs" / blocked.run_id
    run_dir.parent.mkdir(parents=True)
    run_dir.write_text("")
    assert sweep(made) == 1
    rows = {(r.lr, r.steps): r for r in records(tmp_path)}
    assert {s: rows[0.01, s].status for s in (30, 60)} == {30: "done", 60: "done"}
    assert {rows[1e6, s].status for s in (30, 60)} == {"diverged"}
    assert {rows[0.02, s].status for s in (30, 60)} == {"failed"}
    assert run_dir.name in str(rows[0.02, 30].reason)
    text = capsys.readouterr().out
    assert "Missing: 2 budgets. The same command goes on with them:\n  the command" in text
    assert "2 diverged" in text and "stopped" not in text  # what diverged was not judged as well
    run_dir.unlink()
    assert sweep(made) == 0
    again = {(r.lr, r.steps): r for r in records(tmp_path)}
    assert again[0.02, 60].status == "done"
    assert again[0.01, 60] == rows[0.01, 60]
    assert again[1e6, 60] == rows[1e6, 60]


def test_the_limit_ends_trials_as_budget_and_a_higher_one_goes_on_to_the_same_losses(
    sweep: Callable[..., int], make_sweep: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = {"lrs": (0.01, 0.02), "steps": (30, 6000), "early_stop": False}
    assert sweep(make_sweep(**given, max_gpu_hours=30 / 3600)) == 1
    text = capsys.readouterr().out
    assert "The limit ended the sweep. The next segment needs --max-gpu-hours" in text
    assert "  the command --max-gpu-hours" in text
    assert read_board(str(tmp_path / "s"))[1].startswith("ended at its limit")
    rows = {(r.lr, r.steps): r for r in records(tmp_path)}
    assert "budget" in {r.status for r in rows.values()}
    assert {r.status for r in rows.values()} <= {"done", "budget"}
    assert all("limit" in str(r.reason) for r in rows.values() if r.status == "budget")
    spent = json.loads((tmp_path / "s" / "ledger.json").read_text())["spent_device_seconds"]
    assert sweep(make_sweep(**given, max_gpu_hours=1)) == 0
    assert {r.status for r in records(tmp_path)} == {"done"}
    assert json.loads((tmp_path / "s" / "ledger.json").read_text())["spent_device_seconds"] > spent


@pytest.fixture
def connection(cluster_address: str) -> Iterator[None]:
    with cluster.joined(cluster_address):
        yield


@pytest.mark.usefixtures("connection")
def test_nothing_is_left_after_trials_were_stopped(make_sweep: Make) -> None:
    options, grid = make_sweep(depths=(1, 2), reduction_factor=4)
    device = cluster.this_machines_device("cpu")
    planned = plan_sweep(options, grid, "", device, [ray.cluster_resources()], lambda configs: [])
    board = planned.board()
    session = runner.open_session(planned, board, Ledger(planned.root), say=print, refresh=lambda: None)
    train_trials(planned, session, session.todo())
    assert board.count("stopped") == 2
    # A task that needs every CPU runs once all of them are back.
    assert ray.get(ray.remote(num_cpus=2)(lambda: "ran").remote(), timeout=30) == "ran"
    states = {group["state"] for group in ray.util.placement_group_table().values()}
    assert states <= {"REMOVED"}
    alive = [a["ActorClassName"] for a in ray._private.state.actors().values() if a["State"] != "DEAD"]
    assert alive == ["_Bell"]
