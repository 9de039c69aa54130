"""What the loop of `tinyllm.train`, driven through Ray Train, costs beside a bare loop of the same model and data."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from benchmarks.contenders import CPU, Shape, apply_update
from benchmarks.pairs import Ratio, timed
from tinyllm.config import TrainConfig
from tinyllm.data import Corpus, Feed, TokenSource
from tinyllm.events import Event, StepDone
from tinyllm.options import RunOptions
from tinyllm.plan import plan
from tinyllm.state import TrainState
from tinyllm.trainers import local_trainer
from tinyllm.worker import Job, corpus_facts

WARM_STEPS = 2


@dataclass(frozen=True, kw_only=True)
class LoopResult:
    cpu_ratio: Ratio
    """CPU-seconds a step, through Ray / bare."""
    bare_cpu_seconds: list[float]
    ray_cpu_seconds: list[float]
    data_wait_share: float
    """Of the loop's wall time when nothing else takes turns with it."""


def compare(shape: Shape, data: str, pairs: int, out: str) -> LoopResult:
    """Train `pairs` steps through Ray with a bare step after each, then as many again alone to time the feed."""
    corpus = Corpus.open(data)
    config = shape.config(corpus_facts(corpus), steps=100 * (WARM_STEPS + pairs), data=data)
    bare = bare_steps(config, corpus)
    for _ in range(WARM_STEPS):
        next(bare)
    turns: list[tuple[float, float]] = []
    mark = 0.0

    def take_turn(event: Event) -> None:
        # The loop waits in its reader while the bare one takes its turn: the two alternate step by step.
        nonlocal mark
        if not isinstance(event, StepDone):
            return
        through_ray = time.process_time() - mark
        bare_cpu, _ = timed(lambda: next(bare))
        if event.step > WARM_STEPS:
            turns.append((through_ray, bare_cpu))
        mark = time.process_time()

    job = Job(
        config=config,
        # Ends on the trunk: forks and their checkpoints are no part of a step.
        options=RunOptions(device="cpu", stop_after=WARM_STEPS + pairs, device_batch_size=shape.rows),
        root=f"{out}/turns",
    )
    local_trainer(job, on_event=take_turn).fit()
    ray, alone = ([pair[i] for pair in turns] for i in (0, 1))
    return LoopResult(
        cpu_ratio=Ratio.of(ray, alone),
        bare_cpu_seconds=alone,
        ray_cpu_seconds=ray,
        data_wait_share=data_wait_share(Job(config=config, options=job.options, root=f"{out}/alone")),
    )


def bare_steps(config: TrainConfig, corpus: TokenSource) -> Iterator[None]:
    """The least that trains the same model on the same rows: read, forward, backward, clip, update."""
    state = TrainState(config, plan(config), CPU)
    batch_rows, batch_tokens = state.plan.batch_rows, state.plan.batch_tokens
    while True:
        positions = np.arange(state.step * batch_rows, (state.step + 1) * batch_rows)
        rows = torch.from_numpy(corpus.train_rows(positions, seed=config.seed).astype(np.int64))
        (state.model(rows[:, :-1], rows[:, 1:]) / batch_tokens).backward()
        apply_update(state, state.step)
        state.step += 1
        yield


def data_wait_share(job: Job) -> float:
    """Share of the loop's time after its first steps that it waits for its feed."""
    feeds: list[Feed] = []
    marks: list[tuple[float, float]] = []

    def open_feed(*args: Any, **kwargs: Any) -> Feed:
        feeds.append(Feed(*args, **kwargs))
        return feeds[-1]

    def look(event: Event) -> None:
        if isinstance(event, StepDone) and event.step >= WARM_STEPS:
            marks.append((time.perf_counter(), feeds[0].wait_seconds))

    local_trainer(job, open_feed=open_feed, on_event=look).fit()
    (began, waited_before), (ended, waited) = marks[0], marks[-1]
    return (waited - waited_before) / (ended - began)
