"""Faults that a trial of a sweep meets by itself: it ends with a reason, the others go on, a rerun makes it good."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from sweeps import runner
from sweeps.grid import Grid
from sweeps.options import SweepOptions
from sweeps.settings import Axis
from tinyllm import batching, record
from tinyllm.data import Corpus
from tinyllm.order import RowOrder

Make = Callable[..., tuple[SweepOptions, Grid]]


@pytest.fixture
def text_corpus(tmp_path: Path) -> str:
    """Made-up text in two training shards of one row group each."""
    words = np.random.default_rng(0).choice(["spam", "eggs", "ham", "toast"], (200, 300))
    lines = [json.dumps({"text": " ".join(row)}) for row in words.tolist()]
    (tmp_path / "text.jsonl").write_text("\n".join(lines))
    path = str(tmp_path / "corpus")
    sizes = {"vocab_size": 260, "seq_len": 32, "val_fraction": 0.1, "shards": 2}
    # In a process of its own: the Ray that is started for it makes its process send a token to any other, too.
    code = f"from tinyllm.corpus import prepare; prepare({str(tmp_path / 'text.jsonl')!r}, {path!r}, **{sizes})"
    subprocess.run([sys.executable, "-c", code], check=True)
    return path


@pytest.fixture
def flipped(text_corpus: str) -> Iterator[tuple[Path, int, int]]:
    """A training shard with flipped bytes, a seed whose trial reads it, and one whose does not; mended at the end."""
    corpus = Corpus.open(text_corpus)
    train = [s for s in corpus.manifest.shards if s.split == "train"]
    rows = np.array([s.rows for s in train])
    firsts = [int(RowOrder(seed, rows).locate(np.array([0]))[0][0]) for seed in range(20)]
    hit = 0
    missed = next(seed for seed, first in enumerate(firsts) if first != firsts[hit])
    # More rows than a trial reads, or reads ahead.
    assert rows.min() > 60 * 4 + 4 * 2**16 // 32 // 4
    shard = Path(text_corpus, train[firsts[hit]].file)
    whole = shard.read_bytes()
    middle = len(whole) // 2
    shard.write_bytes(whole[:middle] + bytes(b ^ 0xFF for b in whole[middle : middle + 16]) + whole[middle + 16 :])
    yield shard, hit, missed
    shard.write_bytes(whole)


def test_a_corrupt_shard_fails_the_trials_that_read_it_and_no_others(
    flipped: tuple[Path, int, int],
    text_corpus: str,
    cluster_address: str,
    make_sweep: Make,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    shard, hit, missed = flipped
    options, grid = make_sweep(lrs=(0.01,), address=cluster_address, early_stop=False)
    data = replace(grid.base.data, data=text_corpus)
    grid = replace(grid, base=replace(grid.base, data=data), seeds=(hit, missed))
    assert runner.run(options, grid, "the command") == 1
    rows = record.read(str(tmp_path / "s"))
    assert {(r.seed, r.steps, r.status) for r in rows} == {
        *((hit, s, "failed") for s in (30, 60)),
        *((missed, s, "done") for s in (30, 60)),
    }
    text = capsys.readouterr().out
    for row in rows:
        if row.status == "failed":
            assert f"ValueError: shard {shard} is damaged" in str(row.reason)
            assert f"failed: {row.run_id} at {row.planned_tokens:,} tokens: {row.reason}" in text
    assert "Missing: 2 budgets. The same command goes on with them:\n  the command" in text


def test_a_trial_that_memory_does_not_hold_fails_with_that_reason_and_the_rest_goes_on(
    cluster_address: str,
    make_sweep: Make,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    options, grid = make_sweep(lrs=(0.01,), address=cluster_address, early_stop=False)
    # The plan would refuse it; but others may take the memory that was there when a sweep was planned.
    monkeypatch.setattr(batching, "too_large", lambda *given, **named: None)
    # A layer of 16 TB, which no machine here gives.
    grid = replace(grid, axes=(Axis(path="model.aspect_ratio", values=(16, 2_000_000)),))
    assert runner.run(options, grid, "the command") == 1
    rows = record.read(str(tmp_path / "s"))
    assert sorted((r.n_params_total > 1e9, r.steps, r.status) for r in rows) == [
        (False, 30, "done"),
        (False, 60, "done"),
        (True, 30, "failed"),
        (True, 60, "failed"),
    ]
    assert all("can't allocate memory" in str(r.reason) for r in rows if r.status == "failed")
    text = capsys.readouterr().out
    assert "can't allocate memory" in text
    assert "Missing: 2 budgets. The same command goes on with them:\n  the command" in text
