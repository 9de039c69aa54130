"""A Ray cluster of two slots for a whole file, and tiny sweeps to run on it."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"  # Ray's name for: stay on the loopback interface

from ray.cluster_utils import Cluster

from sweeps.grid import Grid
from sweeps.options import SweepOptions
from tinyllm.config import DataConfig, ModelConfig, OptimConfig, TrainConfig
from tinyllm.corpus import prepare
from tinyllm.horizon import Horizon
from tinyllm.options import RunOptions

SEQ_LEN, BATCH = 32, 128


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A Zipf chain of 64 symbols."""
    path = str(tmp_path_factory.mktemp("zipf") / "corpus")
    prepare("zipf", path, vocab_size=64, seq_len=SEQ_LEN)
    return path


@pytest.fixture(scope="module")
def cluster_address(address_directory: None) -> Iterator[str]:
    """Address of a cluster of two CPUs, in a directory of its own."""
    with tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as directory:
        cluster = Cluster(
            initialize_head=True,
            head_node_args={
                "num_cpus": 2,
                "resources": {"trial_slot": 2},
                "include_dashboard": False,
                "temp_dir": directory,
            },
        )
        try:
            yield cluster.address
        finally:
            cluster.shutdown()


@pytest.fixture
def make_sweep(corpus: str, tmp_path: Path) -> Callable[..., tuple[SweepOptions, Grid]]:
    """Options and grid of a sweep of seconds: two budgets of 30 and 60 steps; keywords change the options."""

    def make(
        *,
        depths: tuple[int, ...] = (1,),
        lrs: tuple[float, ...] = (0.005, 0.01, 0.02, 0.04),
        steps: tuple[int, ...] = (30, 60),
        **options: Any,
    ) -> tuple[SweepOptions, Grid]:
        grid = Grid(base=base_config(corpus), depths=depths, lrs=lrs, budgets=step_budgets(*steps))
        given = {"name": "s", "storage": str(tmp_path), "run": RunOptions(save_weights=False)}
        return SweepOptions(**{**given, **options}), grid

    return make


def step_budgets(*steps: int) -> tuple[Horizon, ...]:
    return tuple(Horizon(value=s, unit="steps") for s in steps)


def base_config(corpus: str) -> TrainConfig:
    return TrainConfig(
        model=ModelConfig(aspect_ratio=16, target_head_dim=8),
        optim=OptimConfig(total_batch_size=BATCH, warmup_tokens=4 * BATCH),
        data=replace(DataConfig(), data=corpus, eval_tokens=1024),
    )
