"""The speed of model sizes on one device, measured by a few real steps while others do the same beside it.

Trials that share a machine's memory bandwidth, caches or GPU slow each other down, so a single probe on an idle machine
would promise too much: as many are run at once as there will be slots.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor

import numpy as np
import ray

from sweeps.resources import Nodes, Resources
from tinyllm import batching, hardware
from tinyllm.config import TrainConfig
from tinyllm.events import StepDone
from tinyllm.options import RunOptions
from tinyllm.plan import plan
from tinyllm.state import TrainState
from tinyllm.train import UNTIMED_STEPS, train
from tinyllm.worker import open_corpus

PROBE_STEPS = 20
PROBE_SECONDS = 10.0
MOST_PROBES = 16  # of a CPU: more say little more, and each takes a process with torch


def at_once(resources: Resources, nodes: Nodes, slots: int | None) -> int:
    """How many probes show what trials of this kind do to each other: those of one GPU, or all that run on CPUs."""
    if resources.gpus:
        return max(1, int(1 / resources.gpus + 1e-9))
    held = max(1, Resources(cpus=resources.cpus).slots(nodes))
    return min(held, MOST_PROBES, held if slots is None else slots * resources.workers)


def measured_here(
    configs: Sequence[TrainConfig], options: RunOptions, resources: Resources, probes: int
) -> list[float]:
    """TFLOP/s of one device of this machine for each resolved config, the mean over the probes."""
    # As Ray does it for a trial: as many threads as it has CPUs.
    threads = max(1, int(resources.cpus))
    with ProcessPoolExecutor(probes, mp_context=multiprocessing.get_context("spawn")) as pool:
        found = [pool.submit(_measure, configs, options, resources.device_share, threads) for _ in range(probes)]
        return np.mean([probe.result() for probe in found], axis=0).tolist()


def measured_on_cluster(
    configs: Sequence[TrainConfig], options: RunOptions, resources: Resources, probes: int
) -> list[float]:
    """The same on machines of the Ray cluster that this process has joined."""
    task = ray.remote(num_cpus=resources.cpus, num_gpus=resources.gpus, max_calls=1)(_measure)
    return np.mean(
        ray.get([task.remote(configs, options, resources.device_share) for _ in range(probes)]), axis=0
    ).tolist()


def _measure(
    configs: Sequence[TrainConfig], options: RunOptions, share: float, threads: int | None = None
) -> list[float]:
    """`share`: of a GPU's memory. `threads`: None leaves them as Ray has set them."""
    if threads is not None:
        os.environ["OMP_NUM_THREADS"] = str(threads)
    return [_tflops(config, options, share) for config in configs]


def _tflops(config: TrainConfig, options: RunOptions, share: float) -> float:
    """Train in this process for a few steps. Leaves nothing behind."""
    device = hardware.pick_device(options.device)
    hardware.configure(device, deterministic=options.deterministic)
    plan_ = plan(config)
    rows = batching.device_rows(plan_, config, 1, options.device_batch_size, hardware.memory_bytes(device, share))
    state = TrainState(config, plan_, device)
    started, timed, elapsed = time.perf_counter(), 0, 0.0
    steps = train(state, open_corpus(config), RunOptions(device=options.device, log_every=1), device_rows=rows)
    for event in steps:
        if not isinstance(event, StepDone):
            continue
        if event.step == UNTIMED_STEPS:
            started = time.perf_counter()
        timed = event.step - UNTIMED_STEPS
        elapsed = time.perf_counter() - started
        if timed >= 1 and (timed >= PROBE_STEPS or elapsed > PROBE_SECONDS):
            break
    steps.close()  # type: ignore[attr-defined]
    return timed * plan_.batch_tokens * plan_.flops_per_token / elapsed / 1e12
