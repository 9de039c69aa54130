"""The speed of one model size on one device, measured by a few real steps."""

from __future__ import annotations

import time

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


def measure_tflops(config: TrainConfig, options: RunOptions) -> float:
    """Train a resolved config in this process for a few steps; TFLOP/s of its one device. Leaves nothing behind."""
    device = hardware.pick_device(options.device)
    hardware.configure(device, deterministic=options.deterministic)
    plan_ = plan(config)
    rows = batching.device_rows(
        plan_, config.model, config.precision, 1, options.device_batch_size, hardware.memory_bytes(device)
    )
    state = TrainState(config, plan_, device)
    started, timed = time.perf_counter(), 0
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
