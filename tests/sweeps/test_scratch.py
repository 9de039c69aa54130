"""Directories of a Ray that a sweep starts."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from sweeps import scratch

HOLD = """
import sys
from sweeps import scratch
with scratch.directory() as path:
    print(path, flush=True)
    sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return tmp_path


def hold() -> tuple[subprocess.Popen[str], Path]:
    """A process that uses a directory, and the directory."""
    process = subprocess.Popen([sys.executable, "-c", HOLD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


def test_the_directory_of_a_killed_sweep_is_removed_by_the_next_and_those_in_use_are_not(temporary: Path) -> None:
    others = temporary / "sweep-of-somebody-else"
    others.mkdir()
    living, used = hold()
    killed, stale = hold()
    (stale / "session").mkdir()
    killed.kill()
    killed.wait()
    assert stale.exists()
    with scratch.directory() as mine:
        assert not stale.exists()
        assert {Path(mine), used, others} == set(temporary.iterdir())
    living.communicate("")
    assert list(temporary.iterdir()) == [others]
