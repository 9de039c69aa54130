"""The loop of `tinyllm.worker` under Ray Train: a TorchTrainer in local mode, or over a group of workers with DDP.

Ray is told what was reached. Checkpoints it does not move: the loop puts them on the run's storage by one function in
either mode, and reads its resume point there, so that each continues what the other began.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import ray.train
import torch
from ray.train import FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer

from tinyllm import ranks, storage
from tinyllm.events import Diverged, Event, HorizonReached
from tinyllm.ray_feed import RayFeed, WholeDataConfig, token_dataset
from tinyllm.worker import Job, run


def train_loop(settings: dict[str, Any]) -> None:
    """The `train_loop_per_worker` of every TorchTrainer here.

    settings: "job" (Job); optional "run" (keyword arguments of `run`, only where the loop shares the caller's process),
    "listen" (called in each worker, returns its `should_stop`), "halt" (called by the first worker with the planned
    tokens of a budget that was reached and reported; training goes on when it returns) and "echo" (called by the first
    worker with each line of the log).
    A worker group reports to Ray Train what it reaches; the checkpoint it names lies where the loop put it.
    """
    job: Job = settings["job"]

    def report(event: Event) -> None:
        if isinstance(event, HorizonReached | Diverged):
            ray.train.report(metrics(event))
        if isinstance(event, HorizonReached) and "halt" in settings and ranks.rank() == 0:
            settings["halt"](event.budget.tokens)

    arguments = settings.get("run", {"on_event": report, "echo": settings.get("echo")})
    if "listen" in settings:
        arguments = {**arguments, "should_stop": settings["listen"]()}
    if job.options.feed == "ray":
        dataset = ray.train.get_dataset_shard("train")
        arguments = {**arguments, "open_feed": lambda corpus, *, seed, **where: RayFeed(dataset, **where)}
    run(job, **arguments)


def _datasets(job: Job) -> dict[str, Any]:
    """Arguments of a TorchTrainer that pass the tokens through Ray Data, where that is asked for."""
    if job.options.feed != "ray":
        return {}
    assert job.config.data.data is not None
    dataset = token_dataset(job.config.data.data, seed=job.config.seed)
    return {"datasets": {"train": dataset}, "dataset_config": WholeDataConfig()}


def metrics(event: HorizonReached | Diverged) -> dict[str, Any]:
    """An event as the flat metrics that Ray Train and Ray Tune carry."""
    if isinstance(event, Diverged):
        return {"diverged": True, "reason": event.reason}
    return {
        "planned_tokens": event.budget.tokens,
        "val_loss": event.val_loss,
        "val_bpb": event.val_bpb,
        "train_loss": event.train_loss_ema,
        "tokens_per_second": event.tokens_per_second,
    }


def local_trainer(job: Job, **run_arguments: Any) -> TorchTrainer:
    """A TorchTrainer in local mode: the loop in the calling process, without a worker group's start-up."""
    # It would ask the user, at every start, to report faults of local mode to Ray.
    logging.getLogger("ray.train.v2.api.config").setLevel(logging.WARNING)
    return TorchTrainer(
        train_loop,
        train_loop_config={"job": job, "run": run_arguments},
        scaling_config=ScalingConfig(num_workers=0, use_gpu=torch.cuda.is_available()),
        **_datasets(job),
    )


def group_trainer(
    job: Job,
    *,
    n_workers: int,
    use_gpu: bool,
    cpus_per_worker: float,
    callbacks: list[Any] | None = None,
    listen: Callable[[], Callable[[], bool]] | None = None,
    halt: Callable[[int], None] | None = None,
    echo: Callable[[str], None] | None = None,
) -> TorchTrainer:
    """A TorchTrainer over a worker group with DDP. The same name and storage continue an interrupted run.

    `listen`, `halt` and `echo` as in `train_loop`.
    """
    given = {"listen": listen, "halt": halt, "echo": echo}
    return TorchTrainer(
        train_loop,
        train_loop_config={"job": job, **{name: call for name, call in given.items() if call is not None}},
        scaling_config=ScalingConfig(
            num_workers=n_workers, use_gpu=use_gpu, resources_per_worker={"CPU": cpus_per_worker}
        ),
        run_config=RunConfig(
            name=job.config.run_id,
            storage_path=storage.join(job.root, "train"),
            failure_config=FailureConfig(max_failures=3, controller_failure_limit=3),
            callbacks=callbacks,
        ),
        **_datasets(job),
    )
