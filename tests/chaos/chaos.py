"""What the chaos tests do: start a sweep, wait for a moment in it, kill something, and see how it ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import chaos_hook
import psutil
from ray.cluster_utils import Cluster

from sweeps import cluster as sweep_cluster
from sweeps.grid import Grid, Trial, expand
from tinyllm import record
from tinyllm.config import DataConfig, ModelConfig, OptimConfig, TrainConfig
from tinyllm.data import Corpus
from tinyllm.horizon import Horizon
from tinyllm.options import RunOptions
from tinyllm.record import RunRecord
from tinyllm.worker import Job, corpus_facts, run

Moment = Literal["trunk", "branch", "checkpoint", "record"]
# A worker or the driver of several, a trial that trains in its driver, a node, the sweep's own process.
Victim = Literal["worker", "driver", "trial", "raylet", "sweep"]
LRS, STEPS, BATCH = (0.01, 0.02), (30, 60), 128
SETTINGS = {
    "precision": "fp32",  # in bf16, where a chip computes it, another order of sums moves a loss by more than 1e-4
    "model.aspect_ratio": 16,
    "model.target_head_dim": 8,
    "optim.total_batch_size": BATCH,
    "optim.warmup_tokens": 4 * BATCH,
    "data.eval_tokens": 1024,
}


class Killable:
    """The cluster; its second node can be killed and is put back."""

    def __init__(self, cluster: Cluster, directory: str) -> None:
        self.cluster, self.directory = cluster, directory

    @property
    def address(self) -> str:
        return self.cluster.address

    def restore(self) -> None:
        """Two nodes, and no moment asked for."""
        for name in (chaos_hook.REQUEST, chaos_hook.CLAIM, chaos_hook.MET, chaos_hook.NEVER):
            Path(self.directory, name).unlink(missing_ok=True)
        for name in (chaos_hook.MET, chaos_hook.NEVER):
            os.mkfifo(Path(self.directory, name))
        if not self.cluster.worker_nodes:
            self.cluster.add_node(num_cpus=1, resources={"trial_slot": 1}, env_vars={chaos_hook.NODE: "second"})
            self.cluster.wait_for_nodes()

    def kill_second_node(self) -> None:
        """SIGKILL its raylet: what the loss of a machine looks like to the others."""
        (node,) = self.cluster.worker_nodes
        self.cluster.remove_node(node, allow_graceful=False)


@dataclass
class Chaos:
    cluster: Killable
    corpus: str
    directory: Path
    processes: list[subprocess.Popen[str]] = field(default_factory=list)

    @property
    def root(self) -> str:
        return str(self.directory / "s")

    def start(self, *flags: str, workers: int = 1) -> subprocess.Popen[str]:
        """The sweep of this test, as a user would start it; the same each time."""
        settings = [f"{path}={value}" for path, value in SETTINGS.items()]
        command = [sys.executable, "-m", "sweeps.depth_grid", "--address", self.cluster.address, "--preset", "base"]
        command += ["--depths", "1", "--lrs", *map(str, LRS), "--budgets", *map(str, STEPS), "--unit", "steps"]
        command += ["--no-early-stop", "--name", "s", "--storage", str(self.directory), "--data", self.corpus]
        command += ["--set", *settings]
        command += ["--workers", f"1={workers}"] if workers > 1 else []
        command += flags
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.processes.append(process)
        return process

    def ask_for(self, moment: Moment, *, node: str = "any", kill_always: str | None = None) -> None:
        """From now on the first trial that comes to that moment, on that node, halts there.

        `kill_always`: instead, this run's process kills itself whenever it comes to that moment.
        """
        request = json.dumps({"moment": moment, "node": node, "kill_always": kill_always})
        Path(self.cluster.directory, chaos_hook.REQUEST).write_text(request)

    def wait_for_moment(self) -> int:
        """Returns the pid of the process that met it, once it has."""
        return int(Path(self.cluster.directory, chaos_hook.MET).read_text())

    def kill(self, victim: Victim, sweep: subprocess.Popen[str], pid: int) -> None:
        """SIGKILL. `pid`: who met the moment, one of a trial's workers, or the driver of a trial that has none."""
        match victim:
            case "worker" | "trial":
                os.kill(pid, signal.SIGKILL)
            case "driver":
                self.driver().kill()
            case "raylet":
                self.cluster.kill_second_node()
            case "sweep":
                sweep.kill()
                sweep.wait()

    def driver(self) -> psutil.Process:
        """The trial's actor that waits for its workers. (Ray calls a process by what it executes.)"""
        found = [p for p in psutil.process_iter() if p.name().startswith("ray::ResourceTrainable.train")]
        (driver,) = [p for p in found if p.environ().get(chaos_hook.DIRECTORY) == self.cluster.directory]
        return driver

    def finish(self, sweep: subprocess.Popen[str], *, code: int = 0) -> str:
        """Wait for its end, which must come with that exit code; returns what it printed."""
        text, _ = sweep.communicate(timeout=240)
        assert sweep.returncode == code, text
        return text

    def records(self) -> dict[tuple[float, int], RunRecord]:
        return {(r.lr, r.steps): r for r in record.read(self.root)}

    @staticmethod
    def trials(corpus: str) -> tuple[Trial, ...]:
        """What the sweep trains."""
        base = TrainConfig(
            precision="fp32",
            model=ModelConfig(aspect_ratio=16, target_head_dim=8),
            optim=OptimConfig(total_batch_size=BATCH, warmup_tokens=4 * BATCH),
            data=replace(DataConfig(), data=corpus, eval_tokens=1024),
        )
        budgets = tuple(Horizon(value=s, unit="steps") for s in STEPS)
        grid = Grid(base=base, depths=(1,), lrs=LRS, budgets=budgets)
        return expand(grid, corpus_facts(Corpus.open(corpus)), sweep_cluster.this_machines_device("cpu")).trials

    @staticmethod
    def train_alone(corpus: str, root: str) -> dict[tuple[float, int], RunRecord]:
        for trial in Chaos.trials(corpus):
            run(Job(config=trial.config, options=RunOptions(), root=root))
        return {(r.lr, r.steps): r for r in record.read(root)}


def assert_same(found: dict[tuple[float, int], RunRecord], expected: dict[tuple[float, int], RunRecord]) -> None:
    """One row a (trial, budget), with the losses, tokens and curve of runs that nobody disturbed."""
    assert set(found) == set(expected)
    for key, row in found.items():
        undisturbed = expected[key]
        assert row.status == "done"
        assert row.run_id == undisturbed.run_id
        assert row.token_digest == undisturbed.token_digest
        places = [(point.segment, point.step) for point in row.curve]
        assert len(places) == len(set(places))
        if row.world_size == 1:
            assert (row.val_loss, row.train_loss, row.curve) == (
                undisturbed.val_loss,
                undisturbed.train_loss,
                undisturbed.curve,
            )
        else:
            # Two ranks add up in another order than one, and no more.
            assert abs(row.val_loss - undisturbed.val_loss) < 1e-4 * undisturbed.val_loss  # type: ignore[operator]
            assert places == [(point.segment, point.step) for point in undisturbed.curve]
