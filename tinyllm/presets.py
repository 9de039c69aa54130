"""Named starting points: plain functions that return a config. Add one by writing one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tinyllm.config import BUILT_IN_TEXT, ModelConfig, OptimConfig, TrainConfig


def smoke() -> TrainConfig:
    """Models of 30-600k parameters that train in seconds on a CPU; the same code as anything larger.

    Their best LR is far above the rule's .00125: .04 was the best of the demo's grid (`make demo`) at 10 of its 12
    sizes and budgets, and within .01 nats of the best at the others.
    """
    return TrainConfig(
        model=ModelConfig(aspect_ratio=16, target_head_dim=16, vocab_size=1024, seq_len=256),
        optim=OptimConfig(lr=0.04, total_batch_size=2048, warmup_tokens=10 * 2048, decay_share=0.2),
    )


def base() -> TrainConfig:
    """Every setting by its default and rule: aspect ratio 64, for GPUs."""
    return TrainConfig()


def adamw() -> TrainConfig:
    """`base` with AdamW alone, to compare Muon with: decays the 2-D weights; beta1 as GPT-3's (Brown et al. 2020)."""
    return TrainConfig(optim=OptimConfig(optimizer="adamw", beta1=0.9, eps=1e-8, cautious=False))


def on_corpus(config: TrainConfig, data: str | None) -> TrainConfig:
    """A preset's config with its tokens from `data` (as in DataConfig; None leaves the preset's own).

    A preset's vocabulary and context are those of the built-in text: any other corpus brings its own.
    """
    moved = replace(config, data=replace(config.data, data=data or config.data.data))
    if moved.data.source == BUILT_IN_TEXT:
        return moved
    return replace(moved, model=replace(moved.model, vocab_size=None, seq_len=None))


PRESETS: dict[str, Callable[[], TrainConfig]] = {"smoke": smoke, "base": base, "adamw": adamw}
