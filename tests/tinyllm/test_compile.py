"""torch.compile on the CPU: the same training, up to rounding."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tinyllm.config import ModelConfig, TrainConfig
from tinyllm.events import Event, HorizonReached, StepDone
from tinyllm.options import RunOptions
from tinyllm.worker import Job, run


def test_compiled_and_eager_losses_agree(tiny_config: Callable[..., TrainConfig], tmp_path: Path) -> None:
    # One layer of each kind of attention; a small LR, for Muon's iteration and AdamW's sign magnify rounding.
    model = ModelConfig(depth=2, aspect_ratio=16, target_head_dim=16, window_pattern="SL", value_embeddings=True)
    config = tiny_config(5, model=model, lr=0.002)

    def losses(compiled: bool) -> list[float | None]:
        found: list[float | None] = []

        def read(event: Event) -> None:
            match event:
                case StepDone():
                    found.extend((event.train_loss, event.grad_norm))
                case HorizonReached():
                    found.append(event.val_loss)

        options = RunOptions(compile=compiled, log_every=1, device="cpu", device_batch_size=8)
        run(Job(config=config, options=options, root=str(tmp_path / str(compiled))), on_event=read)
        return found

    eager = losses(False)
    assert len(eager) == 11
    torch.compiler.reset()
    counters = torch._dynamo.utils.counters
    counters.clear()
    assert losses(True) == pytest.approx(eager, rel=1e-4)
    assert counters["stats"]["unique_graphs"] == 1  # it was compiled, whole
    assert not counters["graph_break"]
