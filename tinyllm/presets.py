"""Named starting points: plain functions that return a TrainConfig. Add one here and it is there as `--preset NAME`."""

from __future__ import annotations

from collections.abc import Callable

from tinyllm.config import DataConfig, Horizon, ModelConfig, OptimConfig, TrainConfig


def smoke() -> TrainConfig:
    """Models of 90-330 thousand parameters that train in seconds on a CPU: the demo's."""
    return TrainConfig(
        model=ModelConfig(depth=4, aspect_ratio=16, target_head_dim=16, vocab_size=1024, seq_len=256),
        optim=OptimConfig(total_batch_size=2048, warmup_tokens=10 * 2048, decay_share=0.2, weight_decay=0.1),
        data=DataConfig(eval_tokens=65_536),
        horizons=tuple(Horizon(value=tokens) for tokens in (100e3, 200e3, 400e3)),
    )


PRESETS: dict[str, Callable[[], TrainConfig]] = {"smoke": smoke}
