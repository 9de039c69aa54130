"""One training step of this model and one of the plain GPT-2, at the same shape and equal FLOPs.

Same depth, width, heads, vocabulary and tokens make the matmuls equal: 12 D^2 weights a layer and V D of the head in
either. `step.py` prints the ratio of the two models' own counts. What an optimizer computes is in neither.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from benchmarks.nanogpt_like import GRAD_CLIP, NanoGPT, build_adamw
from tinyllm.config import CorpusFacts, DataConfig, ModelConfig, OptimConfig, TrainConfig
from tinyllm.horizon import Horizon
from tinyllm.optim import set_schedule
from tinyllm.plan import plan, resolve
from tinyllm.state import TrainState

CPU = torch.device("cpu")
STEADY_STEP = 100  # a step after every warmup


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Of a step: one batch of `rows` x `seq_len` tokens."""

    depth: int
    seq_len: int
    vocab_size: int
    rows: int

    @property
    def tokens(self) -> int:
        return self.rows * self.seq_len

    @property
    def model(self) -> ModelConfig:
        return ModelConfig(depth=self.depth, vocab_size=self.vocab_size, seq_len=self.seq_len)

    def config(self, corpus: CorpusFacts, *, steps: int, data: str | None = None) -> TrainConfig:
        """This model's training in steps of this shape, resolved, in fp32."""
        asked = TrainConfig(
            model=self.model,
            optim=OptimConfig(total_batch_size=self.tokens),
            data=DataConfig(data=data, max_epochs=1e9, eval_tokens=self.seq_len),
            horizons=(Horizon(value=steps, unit="steps"),),
        )
        return resolve(asked, corpus, "fp32")

    def random_ids(self) -> Tensor:
        """(rows, seq_len + 1)."""
        generator = torch.Generator().manual_seed(0)
        return torch.randint(self.vocab_size, (self.rows, self.seq_len + 1), generator=generator)


def our_step(shape: Shape, *, compiled: bool) -> Callable[[], None]:
    facts = CorpusFacts(
        name="random", digest="", vocab_size=shape.vocab_size, seq_len=shape.seq_len, train_tokens=None, val_tokens=1
    )
    config = shape.config(facts, steps=10 * STEADY_STEP)
    state = TrainState(config, plan(config), CPU)
    if compiled:
        state.model.compile_training()
    ids = shape.random_ids()

    def step() -> None:
        (state.model(ids[:, :-1], ids[:, 1:]) / shape.tokens).backward()
        apply_update(state, STEADY_STEP)

    return step


def apply_update(state: TrainState, step: int) -> None:
    """What this model does with its gradients, without anything else of the loop."""
    set_schedule(state.optimizers, state.config, state.plan, None, step)
    torch.nn.utils.clip_grad_norm_(state.model.parameters(), state.config.optim.grad_clip)
    for optimizer in state.optimizers:
        optimizer.step()
    state.model.zero_grad(set_to_none=True)


def plain_model(shape: Shape) -> NanoGPT:
    config = shape.model
    return NanoGPT(
        depth=config.depth,
        width=config.width,
        n_heads=config.n_heads,
        vocab_size=config.vocab,
        seq_len=config.context,
    )


def plain_step(shape: Shape, *, compiled: bool) -> Callable[[], None]:
    plain = plain_model(shape)
    optimizer = build_adamw(plain)
    model: nn.Module = torch.compile(plain) if compiled else plain  # type: ignore[assignment]
    ids = shape.random_ids()

    def step() -> None:
        model(ids[:, :-1], ids[:, 1:]).backward()
        torch.nn.utils.clip_grad_norm_(plain.parameters(), GRAD_CLIP)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


STEPS: dict[str, Callable[..., Callable[[], None]]] = {"ours": our_step, "plain": plain_step}
