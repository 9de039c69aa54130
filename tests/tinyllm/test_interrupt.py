"""Ctrl-C, SIGTERM and SIGKILL as a run meets them, and two runs in one directory; in real processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.tinyllm.test_launch import TINY
from tinyllm import checkpoint, interrupt, storage
from tinyllm.config import TrainConfig
from tinyllm.launch import train
from tinyllm.record import read

MAIN = "from tinyllm.cli import main; main()"


@pytest.fixture(autouse=True)
def _signals_as_in_a_terminal() -> Iterator[None]:
    """In a shell's background job SIGINT is ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def note_one(number: signal.Signals, called: list[str]) -> None:
    with interrupt.deferred(notice=True, on_first=lambda: called.append("first")) as asked:
        assert not asked()
        os.kill(os.getpid(), number)
        assert asked()
        called.append("saved")


@pytest.mark.parametrize(("number", "ends"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit)])
def test_the_first_signal_is_noted_and_acts_at_the_end(
    number: signal.Signals, ends: type[BaseException], capfd: pytest.CaptureFixture[str]
) -> None:
    handlers = [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)]
    called: list[str] = []
    with pytest.raises(ends) as caught:
        note_one(number, called)
    assert called == ["first", "saved"]
    assert "stopping after this step and saving" in capfd.readouterr().err
    if isinstance(caught.value, SystemExit):
        assert caught.value.code == 143
    assert [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)] == handlers


def test_the_second_ctrl_c_acts_at_once() -> None:
    reached: list[str] = []

    def press_twice() -> None:
        with interrupt.deferred(notice=False) as asked:
            os.kill(os.getpid(), signal.SIGINT)
            assert asked()
            os.kill(os.getpid(), signal.SIGINT)
            reached.append("the end")

    with pytest.raises(KeyboardInterrupt):
        press_twice()
    assert reached == []


def test_a_signal_that_is_ignored_stays_ignored() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with interrupt.deferred(notice=True) as asked:
            os.kill(os.getpid(), signal.SIGINT)
            assert not asked()
        assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_python_trains_in_a_thread_that_may_not_catch_signals(zipf_path: str, tmp_path: Path) -> None:
    from tinyllm.arguments import parse
    from tinyllm.cli import Train
    from tinyllm.presets import PRESETS

    config: TrainConfig = parse(
        Train, [*TINY, "--data", zipf_path, "--steps", "10"], prog="test", presets=PRESETS
    ).config()
    found: list[object] = []
    thread = threading.Thread(target=lambda: found.extend(train(config, out=str(tmp_path), echo=None)))
    thread.start()
    thread.join(120)
    assert found == read(str(tmp_path)) and len(found) == 1


@contextmanager
def running(*argv: str) -> Iterator[subprocess.Popen[str]]:
    """`tinyllm train` in a process of its own, once it trains."""
    process = subprocess.Popen(
        [sys.executable, "-c", MAIN, "train", *argv],
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        assert process.stdout is not None
        seen = []
        for line in process.stdout:
            seen.append(line)
            if "trunk step 10/" in line:
                break
        else:
            raise AssertionError("".join(seen))
        yield process
    finally:
        process.kill()
        process.wait()


def run(*argv: str) -> subprocess.CompletedProcess[str]:
    command, environment = [sys.executable, "-c", MAIN, "train", *argv], {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)


def files(root: Path) -> dict[str, bytes]:
    return {str(p.relative_to(root)): p.read_bytes() for p in root.rglob("*") if p.is_file() and p.name != "log.txt"}


def test_one_process_trains_in_a_directory_until_it_ends_or_dies(zipf_path: str, tmp_path: Path) -> None:
    root = tmp_path / "train"
    command = [*TINY, "--data", zipf_path, "--out", str(tmp_path), "--steps", "100000", "--log-every", "10"]
    with running(*command) as first:
        before = files(root)
        second = run(*command)
        assert second.returncode == 2
        assert second.stderr.startswith(f"error: another process trains in {root}: wait for it")
        assert second.stderr.count("\n") == 1 and second.stdout == ""
        assert files(root) == before
        with pytest.raises(BlockingIOError), storage.locked(str(root), _busy):  # as a sweep would take it
            pass
        first.kill()  # SIGKILL: nothing is left to let go of the lock
        first.wait()
    with running(*command) as third:
        third.send_signal(signal.SIGTERM)  # as `kill` and batch schedulers do
        text, _ = third.communicate(timeout=120)
        assert third.returncode == 143
        assert "stopped; the same command goes on from here" in text
    (run_root,) = (root / "runs").iterdir()
    (saved,) = checkpoint.entries(str(run_root))
    last = run(*command, "--stop-after", "1")
    assert last.returncode == 0
    assert f"continuing from trunk-{saved.step:08d}" in last.stdout
    assert json.loads((root / "run.json").read_text())["optim"]["lr"] == 0.02


def _busy() -> None:
    raise BlockingIOError


def test_a_stop_saves_what_several_workers_did(zipf_path: str, tmp_path: Path) -> None:
    command = [*TINY, "--data", zipf_path, "--out", str(tmp_path), "--steps", "100000", "--workers", "2"]
    with running(*command) as process:
        process.send_signal(signal.SIGTERM)
        text, _ = process.communicate(timeout=120)
        assert process.returncode == 143, text
    assert "stopped; the same command goes on from here" in text
    assert "pid=" not in text  # lines of Ray's own
    (run_root,) = (tmp_path / "train" / "runs").iterdir()
    assert len(checkpoint.entries(str(run_root))) == 1
