"""A trial's actor, driven as Ray Tune drives it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
import ray.tune

from sweeps import bell, cluster
from sweeps.family import Assignment, Family
from sweeps.grid import Grid, expand
from sweeps.options import SweepOptions
from sweeps.resources import Resources
from tinyllm import record
from tinyllm.data import Corpus
from tinyllm.options import RunOptions
from tinyllm.worker import Job, corpus_facts

Make = Callable[..., tuple[SweepOptions, Grid]]


@pytest.fixture
def connection(cluster_address: str) -> Iterator[None]:
    with cluster.joined(cluster_address):
        yield


@pytest.mark.usefixtures("connection")
def test_a_loop_that_does_not_end_in_time_takes_its_process_with_it_and_another_goes_on(
    make_sweep: Make, tmp_path: Path
) -> None:
    _, grid = make_sweep(lrs=(0.01, 0.02))
    facts = corpus_facts(Corpus.open(str(grid.base.data.data)))
    stuck, other = (t.config for t in expand(grid, facts, cluster.this_machines_device("cpu")).trials)
    jobs = {
        config.run_id: Assignment(
            job=Job(config=config, options=RunOptions(save_weights=False), root=str(tmp_path / "s")),
            resources=Resources(),
        )
        for config in (stuck, other)
    }
    trainable = ray.tune.with_parameters(Family, jobs=jobs, sweep_bell=bell.hang_up(), stop_timeout_s=2.0)

    def actor(run_id: str) -> Any:
        return ray.remote(num_cpus=1)(trainable).remote({"run_id": run_id})

    first = actor(stuck.run_id)
    assert ray.get(first.train.remote())["rung"] == 0
    assert ray.get(first.train.remote())["rung"] == 1
    # As on a file system that hangs: what the loop writes into its log next, nobody ever takes.
    log = tmp_path / "s" / "runs" / stuck.run_id / "log.txt"
    kept = log.rename(log.with_suffix(".kept"))
    os.mkfifo(log)
    with pytest.raises(ray.exceptions.RayActorError):
        ray.get(first.reset.remote({"run_id": other.run_id}), timeout=120)
    log.unlink()
    kept.rename(log)
    second = actor(other.run_id)
    assert [ray.get(second.train.remote())["rung"] for _ in range(3)] == [0, 1, 2]
    # One whose loop ends when it is told to is used again: the trial that was stuck goes on behind its first budget.
    assert ray.get(second.reset.remote({"run_id": stuck.run_id}))
    assert [ray.get(second.train.remote())["rung"] for _ in range(2)] == [1, 2]
    assert {(r.run_id, r.steps, r.status) for r in record.read(str(tmp_path / "s"))} == {
        (run_id, steps, "done") for run_id in jobs for steps in (30, 60)
    }
