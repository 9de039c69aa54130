"""A small known source, and runs in processes of their own."""

from __future__ import annotations

import dataclasses
import json
import multiprocessing
import signal
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.tinyllm.child import run_rank
from tinyllm.config import DataConfig, ModelConfig, OptimConfig, TrainConfig
from tinyllm.corpus import prepare
from tinyllm.data import Corpus
from tinyllm.horizon import Horizon
from tinyllm.plan import resolve
from tinyllm.record import RunRecord, read
from tinyllm.worker import corpus_facts

# A server that has torch loaded forks a fresh process for each rank: real processes, without seconds of imports.
PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["tests.tinyllm.child"])
BATCH = 512  # tokens: 16 rows of 32


@pytest.fixture(scope="session")
def zipf_path(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A prepared Zipf chain of 64 ids, 32 tokens a row."""
    path = str(tmp_path_factory.mktemp("zipf"))
    prepare("zipf:V=64,s=1.5", path, seq_len=32)
    return path


@pytest.fixture(scope="session")
def text_path(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A prepared corpus of made-up text: 260 ids, 32 tokens a row."""
    directory = tmp_path_factory.mktemp("text")
    words = np.random.default_rng(0).choice(["spam", "eggs", "ham", "toast"], (100, 300))
    lines = [json.dumps({"text": " ".join(row)}) for row in words.tolist()]
    (directory / "text.jsonl").write_text("\n".join(lines))
    path = str(directory / "corpus")
    prepare(str(directory / "text.jsonl"), path, vocab_size=260, seq_len=32, val_fraction=0.1)
    return path


@pytest.fixture(scope="session")
def tiny_config(zipf_path: str) -> Callable[..., TrainConfig]:
    """A resolved config of a depth-2 model on the chain; arguments are budgets in steps and fields of OptimConfig."""

    def make(*steps: int, model: ModelConfig | None = None, seed: int = 0, **optim: Any) -> TrainConfig:
        settings = {"lr": 0.02, "total_batch_size": BATCH, "warmup_tokens": 4 * BATCH, **optim}
        asked = TrainConfig(
            model=model or ModelConfig(depth=2, aspect_ratio=16, target_head_dim=16),
            optim=OptimConfig(**settings),
            data=DataConfig(data=zipf_path, eval_tokens=20 * 32),
            horizons=tuple(Horizon(value=s, unit="steps") for s in steps),
            seed=seed,
        )
        return resolve(asked, corpus_facts(Corpus.open(zipf_path)), "fp32")

    return make


def comparable(row: RunRecord) -> RunRecord:
    """A record without what may differ between two equal runs: clocks, names of attempts, commit."""
    return dataclasses.replace(
        row, attempt="", finished_at=0.0, seconds=None, eval_seconds=None, device_seconds=None, tokens_per_second=None,
        peak_memory_bytes=None, log_path=None, git_commit=None,
    )  # fmt: skip


class Runner:
    """Runs a job as `world_size` real processes under a root, optionally killed on the way."""

    def __init__(self, scratch: Path) -> None:
        self.scratch = scratch

    def __call__(
        self,
        root: Path,
        config: TrainConfig,
        *,
        world_size: int = 1,
        kill: dict[str, Any] | None = None,
        **options: Any,
    ) -> list[RunRecord]:
        spec = {
            "root": str(root),
            "config": config.to_json(),
            "options": options,
            "world_size": world_size,
            "store": str(self.scratch / uuid.uuid4().hex),
        }
        children = [
            PROCESSES.Process(target=run_rank, args=({**spec, "rank": r, "kill": kill if r == 0 else None},))
            for r in range(world_size)
        ]
        for child in children:
            child.start()
        if kill is not None:
            children[0].join(240)
            assert children[0].exitcode == -signal.SIGKILL
            for child in children[1:]:  # their peer is gone: they would wait for it
                child.kill()
        for child in children:
            child.join(240)
            assert kill is not None or child.exitcode == 0
        return read(str(root))


@pytest.fixture
def run_processes(tmp_path: Path) -> Runner:
    return Runner(tmp_path)
