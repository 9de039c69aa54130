"""Ctrl-C, the death of Ray, a second process, storage that is full: what a person sees, and that nothing is lost."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from sweeps import runner
from sweeps.grid import Grid
from sweeps.lock import only_here
from sweeps.options import SweepOptions
from tinyllm import record

Make = Callable[..., tuple[SweepOptions, Grid]]


def start(address: str, corpus: str, storage: Path, *, steps: int = 4000) -> subprocess.Popen[str]:
    """A sweep of two trials with a small and a large budget, as a user starts it."""
    settings = ["model.aspect_ratio=16", "model.target_head_dim=8"]
    settings += ["optim.total_batch_size=128", "optim.warmup_tokens=512", "data.eval_tokens=1024"]
    command = [sys.executable, "-m", "sweeps.depth_grid", "--address", address, "--preset", "base", "--depths", "1"]
    command += ["--lrs", "0.01", "0.02", "--budgets", "30", str(steps), "--unit", "steps", "--no-early-stop"]
    command += ["--data", corpus, "--name", "s", "--storage", str(storage), "--set", *settings]
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    return subprocess.Popen(command, **streams, start_new_session=True)


def test_ctrl_c_keeps_everything_and_the_same_command_goes_on(
    cluster_address: str, corpus: str, tmp_path: Path
) -> None:
    sweep = start(cluster_address, corpus, tmp_path)
    assert sweep.stdout is not None
    for line in sweep.stdout:
        if "val_loss" in line:
            break
    sweep.send_signal(signal.SIGINT)
    text, _ = sweep.communicate(timeout=120)
    assert sweep.returncode == 130
    assert "interrupted; trials save their state and end" in text
    assert "The same command goes on with them:\n  python -m sweeps.depth_grid --address" in text
    done = {r.key: r for r in record.read(str(tmp_path / "s"))}
    logs = [path.read_text() for path in (tmp_path / "s" / "runs").glob("*/log.txt")]
    assert any("stopped; the same command goes on from here" in log for log in logs)
    again = start(cluster_address, corpus, tmp_path)
    text, _ = again.communicate(timeout=240)
    assert again.returncode == 0, text
    rows = {r.key: r for r in record.read(str(tmp_path / "s"))}
    assert len(rows) == 4
    assert {r.status for r in rows.values()} == {"done"}
    assert all(rows[key].attempt == row.attempt for key, row in done.items())


@pytest.mark.parametrize(("killed", "code"), [("raylet", 1), ("gcs_server", 1), ("everything", 130)])
def test_when_ray_dies_the_sweep_ends_with_its_last_lines(killed: str, code: int, corpus: str, tmp_path: Path) -> None:
    sweep = start("local", corpus, tmp_path)
    assert sweep.stdout is not None
    for line in sweep.stdout:
        if "val_loss" in line:
            break
    if killed == "everything":  # as a shell, a batch system or a container ends a job
        os.killpg(sweep.pid, signal.SIGTERM)
    else:
        (victim,) = [p for p in psutil.Process(sweep.pid).children() if p.name() == killed]
        victim.kill()
    # Ray by itself would end the process after a minute, without a word.
    text, _ = sweep.communicate(timeout=45)
    assert sweep.returncode == code
    assert "the sweep broke off: Ray's" in text
    assert "The same command goes on with them:\n  python -m sweeps.depth_grid --address local" in text


@pytest.mark.parametrize("how", ["deleted", "renamed"])
def test_storage_that_vanishes_ends_the_sweep_with_what_is_missing_and_it_can_begin_anew(
    how: str, cluster_address: str, corpus: str, tmp_path: Path
) -> None:
    storage, away = tmp_path / "storage", tmp_path / "away"
    sweep = start(cluster_address, corpus, storage, steps=1500)
    assert sweep.stdout is not None
    for line in sweep.stdout:
        if "val_loss" in line:
            break
    # At once, as where a file system is unmounted; what is still written goes into an empty place.
    storage.rename(away)
    if how == "deleted":
        shutil.rmtree(away)
    text, _ = sweep.communicate(timeout=240)
    assert sweep.returncode == 1, text
    assert "The same command goes on with them:\n  python -m sweeps.depth_grid --address" in text
    for row in record.read(str(storage / "s")):
        # Nothing half-written reads as whole: a record that is there has its curve.
        assert row.status in ("done", "failed")
        assert row.status == "failed" or [p for p in row.curve if p.segment.startswith("branch")]
    if how == "renamed":  # it is back
        shutil.rmtree(storage, ignore_errors=True)
        away.rename(storage)
    before = {r.key: r.attempt for r in record.read(str(storage / "s")) if r.status == "done"}
    again = start(cluster_address, corpus, storage, steps=1500)
    text, _ = again.communicate(timeout=300)
    assert again.returncode == 0, text
    rows = {r.key: r for r in record.read(str(storage / "s"))}
    assert [r.status for r in rows.values()] == ["done"] * 4
    assert {key: rows[key].attempt for key in before} == before
    assert how == "deleted" or before


def test_a_second_process_is_refused(make_sweep: Make, tmp_path: Path) -> None:
    options, grid = make_sweep(address="local")
    message = f"another process runs the sweep in .*: watch it with `python -m sweeps.status s --storage {tmp_path}`"
    with only_here(str(tmp_path / "s"), say=print), pytest.raises(ValueError, match=message):
        runner.run(options, grid, "")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 300 KB, less than the checkpoints of two trials take."""
    mounted = tmp_path / "disk"
    mounted.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=300k", "tmpfs", str(mounted)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("a file system can be mounted by root alone")
    yield mounted
    subprocess.run(["umount", "-l", str(mounted)], check=True)


def test_a_full_disk_is_named_and_the_sweep_goes_on_when_there_is_room(
    small_disk: Path, cluster_address: str, make_sweep: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    options, grid = make_sweep(lrs=(0.01, 0.02), storage=str(small_disk), address=cluster_address, early_stop=False)
    assert runner.run(options, grid, "the command") == 1
    text = capsys.readouterr().out
    assert "No space left on device" in text
    assert "The same command goes on with them:\n  the command" in text
    subprocess.run(["mount", "-o", "remount,size=50m", str(small_disk)], check=True)
    assert runner.run(options, grid, "the command") == 0
    assert {r.status for r in record.read(str(small_disk / "s"))} == {"done"}
