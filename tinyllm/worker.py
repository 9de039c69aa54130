"""What a worker does: build or resume a run, drive the loop, and let its readers see every event.

One loop serves everything: `tinyllm train` and a sweep's trial, in one process (a TorchTrainer in local mode) or in a
group of workers (DDP). The run's own directory says where it stands; Ray is told what was reached.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from tinyllm import batching, checkpoint, hardware, ranks, storage
from tinyllm.config import CorpusFacts, RunOptions, TrainConfig
from tinyllm.data import Corpus, TokenSource
from tinyllm.events import Diverged, Event, Forked, HorizonReached, StepDone, Stopped
from tinyllm.plan import Budget, plan
from tinyllm.recorder import Recorder, reached_budgets
from tinyllm.runlog import RunLog, describe
from tinyllm.state import TrainState
from tinyllm.track import Tracker
from tinyllm.train import train

RUNS_DIR = "runs"

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Job:
    """One run to do: what, how, where."""

    config: TrainConfig
    """Resolved."""
    options: RunOptions
    root: str
    """Absolute directory or URI of the sweep (or of a single run): holds records/ and runs/<run_id>/."""
    sweep: str | None = None

    @property
    def run_root(self) -> str:
        return storage.join(self.root, RUNS_DIR, self.config.run_id)


def corpus_facts(corpus: TokenSource) -> CorpusFacts:
    """What a config has to know of a corpus."""
    m = corpus.manifest
    return CorpusFacts(
        name=m.name,
        digest=m.digest,
        vocab_size=m.vocab_size,
        seq_len=m.seq_len,
        train_tokens=None if m.kind == "zipf" else m.train_tokens,
        val_tokens=m.val_tokens,
    )


def run(
    job: Job,
    *,
    corpus: TokenSource | None = None,
    on_event: Callable[[Event], None] = lambda event: None,
    should_stop: Callable[[], bool] = lambda: False,
    echo: Callable[[str], None] | None = None,
) -> TrainState:
    """Do a job in this process, as one rank of however many there are; returns the state it ended in.

    Continues from the run's newest valid checkpoint and redoes no budget that is on record. Rows are written for every
    budget: done as it is reached; diverged, failed where the run ends before it. An exception is recorded and raised.
    """
    config, options = job.config, job.options
    device = hardware.pick_device(options.device)
    hardware.configure(device, deterministic=options.deterministic)
    plan_ = plan(config)
    corpus = corpus if corpus is not None else open_corpus(config)
    state = TrainState(config, plan_, device)
    first_rank = ranks.rank() == 0
    run_log = RunLog(job.run_root, echo) if first_rank else None
    peak = options.peak_tflops or hardware.peak_tflops(device, config.precision)
    recorder = Recorder(
        job.root,
        state,
        sweep=job.sweep,
        peak_tflops=peak,
        log_path=storage.join(job.run_root, "log.txt"),
    )
    done = reached_budgets(job.root, config.run_id)
    remaining = [b for b in plan_.budgets if b.tokens not in done]
    # A changed config is refused here, before anything is recorded: a mistake of the user's, not a run that failed.
    entry = checkpoint.resume(job.run_root, state, plan_, done, from_step=options.resume_from)
    if run_log is not None:
        start = f"continuing from {os.path.basename(entry.path)}" if entry else "starting"
        run_log.line(f"{config.run_id}: {start} on {device}, {ranks.world_size()} rank(s), {config.precision}")
    rows = batching.device_rows(
        plan_,
        config.model,
        config.precision,
        ranks.world_size(),
        options.device_batch_size,
        hardware.memory_bytes(device),
    )
    if corpus.tokenizer is not None:
        checkpoint.save_tokenizer(job.run_root, corpus.tokenizer.to_json())
    tracker = Tracker(job.run_root, config, plan_, options, sweep=job.sweep) if first_rank else None
    try:
        for event in train(state, corpus, options, device_rows=rows, done=done, should_stop=should_stop):
            remaining = _read(event, job, state, recorder, remaining)
            if run_log is not None:
                speed = event.tokens_per_second if isinstance(event, StepDone) else None
                if (text := describe(event, plan_, recorder.mfu(speed))) is not None:
                    run_log.line(text)
            if tracker is not None:
                tracker.event(event, state, mfu=recorder.mfu)
            on_event(event)
    except Exception as error:
        recorder.missed(remaining, "failed", f"{type(error).__name__}: {error}")
        if run_log is not None:
            run_log.line(f"FAILED: {type(error).__name__}: {error}")
        raise
    finally:
        if tracker is not None:
            tracker.close()
        if run_log is not None:
            run_log.flush()
    return state


def open_corpus(config: TrainConfig) -> TokenSource:
    """The config's corpus. Raises ValueError when it is not the one that the config was resolved with."""
    assert config.data.data is not None
    assert config.corpus is not None
    corpus = Corpus.open(config.data.data)
    if corpus.manifest.digest != config.corpus.digest:
        raise ValueError(
            f"corpus {config.data.data} has digest {corpus.manifest.digest}, the run was planned for "
            f"{config.corpus.digest}: point --data at the corpus it was planned with"
        )
    return corpus


def _read(event: Event, job: Job, state: TrainState, recorder: Recorder, remaining: list[Budget]) -> list[Budget]:
    """Checkpoints and records of an event; returns the budgets still to reach. Every rank calls it."""
    options = job.options
    match event:
        case Forked():
            checkpoint.save(job.run_root, state, at_fork=True)
        case StepDone() if options.save_every and (event.step % options.save_every == 0 or _branch_ends(event)):
            # Saved before the evaluation: a run killed in it resumes with no step left.
            checkpoint.save(job.run_root, state)
            checkpoint.prune(job.run_root, options.keep)
        case HorizonReached():
            if options.save_weights:
                checkpoint.save_weights(job.run_root, state, event.budget.tokens)
            recorder.reached(event)
            return [b for b in remaining if b.tokens != event.budget.tokens]
        case Diverged():
            recorder.missed(remaining, "diverged", f"{event.reason}; last good loss {event.last_good_loss}")
        case Stopped():
            checkpoint.save(job.run_root, state)
    return remaining


def _branch_ends(event: StepDone) -> bool:
    return event.branch is not None and event.step == event.branch.steps


def train_loop(settings: dict[str, Any]) -> None:
    """The `train_loop_per_worker` of every TorchTrainer here.

    settings: "job" (Job); optional "run" (keyword arguments of `run`, only where the loop shares the caller's process).
    A worker group reports to Ray Train what it reaches; the checkpoint it names lies where the loop put it.
    """
    import ray.train

    job: Job = settings["job"]
    in_group = ray.train.get_context().get_world_size() > 1 or "run" not in settings

    def report(event: Event) -> None:
        if isinstance(event, HorizonReached | Diverged):
            ray.train.report(metrics(event))

    run(job, **settings.get("run", {"on_event": report} if in_group else {}))


def metrics(event: HorizonReached | Diverged) -> dict[str, Any]:
    """An event as the flat metrics that Ray Train and Ray Tune carry."""
    if isinstance(event, Diverged):
        return {"diverged": True, "reason": event.reason}
    return {
        "planned_tokens": event.budget.tokens,
        "val_loss": event.val_loss,
        "val_bpb": event.val_bpb,
        "train_loss": event.train_loss_ema,
    }


def local_trainer(job: Job, **run_arguments: Any) -> Any:
    """A TorchTrainer in local mode: the loop in the calling process, without a worker group's start-up."""
    from ray.train import ScalingConfig
    from ray.train.torch import TorchTrainer

    return TorchTrainer(
        train_loop,
        train_loop_config={"job": job, "run": run_arguments},
        scaling_config=ScalingConfig(num_workers=0, use_gpu=torch.cuda.is_available()),
    )


def group_trainer(
    job: Job, *, n_workers: int, use_gpu: bool, cpus_per_worker: float, callbacks: list[Any] | None = None
) -> Any:
    """A TorchTrainer over a worker group with DDP. The same name and storage continue an interrupted run."""
    from ray.train import FailureConfig, RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer

    return TorchTrainer(
        train_loop,
        train_loop_config={"job": replace(job)},
        scaling_config=ScalingConfig(
            num_workers=n_workers, use_gpu=use_gpu, resources_per_worker={"CPU": cpus_per_worker}
        ),
        run_config=RunConfig(
            name=job.config.run_id,
            storage_path=storage.join(job.root, "train"),
            failure_config=FailureConfig(max_failures=3, controller_failure_limit=3),
            callbacks=callbacks,
        ),
    )
