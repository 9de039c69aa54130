"""A cluster of two nodes, sweeps in processes of their own, and the losses of runs that nobody disturbed."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, os.path.dirname(__file__))
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"  # Ray's name for: stay on the loopback interface

import chaos_hook
from chaos import Chaos, Killable
from ray._private.ray_constants import WORKER_PROCESS_SETUP_HOOK_ENV_VAR
from ray.cluster_utils import Cluster

from tinyllm.corpus import prepare
from tinyllm.record import RunRecord


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = str(tmp_path_factory.mktemp("zipf") / "corpus")
    prepare("zipf", path, vocab_size=64, seq_len=32)
    return path


@pytest.fixture(scope="session")
def undisturbed(corpus: str, tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[float, int], RunRecord]:
    """Records of the same trials, each trained alone in this process; by (lr, steps)."""
    return Chaos.train_alone(corpus, str(tmp_path_factory.mktemp("undisturbed")))


@pytest.fixture(scope="module")
def cluster(address_directory: None) -> Iterator[Killable]:
    """Two nodes with a CPU each; a dead one is noticed in about a second."""
    with tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as directory:
        os.environ[chaos_hook.DIRECTORY] = directory
        os.environ[WORKER_PROCESS_SETUP_HOOK_ENV_VAR] = "chaos_hook.install"
        os.environ["PYTHONPATH"] = os.pathsep.join([os.path.dirname(__file__), os.environ.get("PYTHONPATH", "")])
        quick = {
            "health_check_initial_delay_ms": 1000,
            "health_check_period_ms": 500,
            "health_check_timeout_ms": 1000,
            "health_check_failure_threshold": 3,
        }
        started = Cluster(
            initialize_head=True,
            head_node_args={
                "num_cpus": 1,
                "resources": {"trial_slot": 1},
                "include_dashboard": False,
                "temp_dir": directory,
                "_system_config": quick,
                "env_vars": {chaos_hook.NODE: "head"},
            },
        )
        try:
            yield Killable(started, directory)
        finally:
            started.shutdown()
            del os.environ[WORKER_PROCESS_SETUP_HOOK_ENV_VAR]


@pytest.fixture
def chaos(cluster: Killable, corpus: str, tmp_path: Path) -> Iterator[Chaos]:
    cluster.restore()
    found = Chaos(cluster, corpus, tmp_path)
    yield found
    for process in found.processes:
        if process.poll() is None:
            process.kill()
        process.wait()
