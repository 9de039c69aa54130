"""Trials of several workers: the same losses as with one, and nothing left of one that was stopped."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import ray

from sweeps import bell, cluster, runner
from sweeps.grid import Grid, expand
from sweeps.group_loop import GroupLoop
from sweeps.loop import Ended
from sweeps.options import SweepOptions
from sweeps.resources import Resources
from tinyllm import checkpoint, record
from tinyllm.data import Corpus
from tinyllm.options import RunOptions
from tinyllm.worker import Job, corpus_facts, run

Make = Callable[..., tuple[SweepOptions, Grid]]


def test_a_trial_of_two_workers_reaches_the_same_losses_as_one_of_one(
    cluster_address: str, make_sweep: Make, tmp_path: Path
) -> None:
    options, grid = make_sweep(lrs=(0.01,), workers=("1=2",), address=cluster_address)
    assert runner.run(options, grid, "") == 0
    two = {r.steps: r for r in record.read(str(tmp_path / "s"))}
    assert {(r.status, r.world_size) for r in two.values()} == {("done", 2)}
    (trial,) = expand(
        grid, corpus_facts(Corpus.open(str(grid.base.data.data))), cluster.this_machines_device("cpu")
    ).trials
    run(Job(config=trial.config, options=RunOptions(), root=str(tmp_path / "one")))
    for one in record.read(str(tmp_path / "one")):
        assert one.token_digest == two[one.steps].token_digest
        # The ranks add up in another order, and no more.
        assert two[one.steps].val_loss == pytest.approx(one.val_loss, rel=1e-4)


def test_a_group_halts_at_a_budget_and_saves_and_ends_when_the_bell_rings(
    cluster_address: str, make_sweep: Make, tmp_path: Path
) -> None:
    _, grid = make_sweep(lrs=(0.01,), steps=(30, 100_000))
    (trial,) = expand(
        grid, corpus_facts(Corpus.open(str(grid.base.data.data))), cluster.this_machines_device("cpu")
    ).trials
    with cluster.joined(cluster_address):
        job = Job(config=trial.config, options=RunOptions(log_every=1), root=str(tmp_path))
        sweep_bell = bell.hang_up()
        loop = GroupLoop(job, Resources(workers=2), sweep_bell)
        report = loop.next_report()
        assert not isinstance(report, Ended)
        log = tmp_path / "runs" / trial.run_id / "log.txt"
        assert "budget 3,840 tokens" in log.read_text().splitlines()[-1]
        loop.go_on()
        bell.ring(sweep_bell)
        ended = loop.next_report()
        assert ended == Ended(error=None)
        assert loop.stop(timeout_s=30)
    lines = log.read_text().splitlines()
    assert lines[-1].endswith("stopped; the same command goes on from here")
    # Where it stopped, it saved: past the fork, after the step in which the ranks voted.
    newest = checkpoint.entries(job.run_root)[-1]
    assert (newest.segment, newest.is_fork) == ("trunk", False)
    assert newest.step > trial.plan.budgets[0].fork_step
    assert f"trunk step {newest.step}/" in lines[-2]
    assert [r.steps for r in record.read(str(tmp_path))] == [30]


def test_a_stopped_group_gives_everything_back(cluster_address: str, make_sweep: Make, tmp_path: Path) -> None:
    _, grid = make_sweep(lrs=(0.01,), steps=(30, 100_000))
    (trial,) = expand(
        grid, corpus_facts(Corpus.open(str(grid.base.data.data))), cluster.this_machines_device("cpu")
    ).trials
    with cluster.joined(cluster_address):
        job = Job(config=trial.config, options=RunOptions(), root=str(tmp_path))
        loop = GroupLoop(job, Resources(workers=2), bell.hang_up())
        report = loop.next_report()
        assert not isinstance(report, Ended)
        assert report["planned_tokens"] == trial.plan.budgets[0].tokens
        assert loop.stop(timeout_s=30)
        assert ray.get(ray.remote(num_cpus=2)(lambda: "ran").remote(), timeout=30) == "ran"
        assert {g["state"] for g in ray.util.placement_group_table().values()} <= {"REMOVED"}
        alive = [a["ActorClassName"] for a in ray._private.state.actors().values() if a["State"] != "DEAD"]
        # Ray Data keeps one coordinator for each cluster, whoever comes and goes.
        assert set(alive) <= {"_Bell", "_AutoscalingCoordinatorActor"}
