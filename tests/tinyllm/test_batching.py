"""Estimates of memory against what a model and its optimizers hold."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from benchmarks.peak_memory import activation_bytes_per_width
from tinyllm.batching import ACTIVATION_BYTES_PER_WIDTH, activation_bytes, device_rows, state_bytes, too_large
from tinyllm.config import ModelConfig, TrainConfig
from tinyllm.optim import set_schedule
from tinyllm.plan import plan
from tinyllm.state import TrainState


@pytest.mark.parametrize("optimizer", ["muon", "adamw"])
def test_weights_gradients_and_optimizer_state_are_counted(
    tiny_config: Callable[..., TrainConfig], optimizer: str
) -> None:
    model = ModelConfig(depth=2, aspect_ratio=16, target_head_dim=16, value_embeddings=True)
    config = tiny_config(8, model=model, optimizer=optimizer)
    plan_ = plan(config)
    state = TrainState(config, plan_, torch.device("cpu"))
    ids = torch.zeros(1, 8, dtype=torch.int64)
    state.model(ids, ids).backward()
    set_schedule(state.optimizers, config, plan_, None, 0)
    for o in state.optimizers:
        o.step()
    held = [t for p in state.model.parameters() for t in (p, p.grad)]
    # fused AdamW keeps one number a parameter beside its moments: how many steps it took
    held += [t for o in state.optimizers for s in o.state.values() for t in s.values() if t.ndim]
    assert state_bytes(config.model, optimizer) == sum(t.nbytes for t in held)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_activations_are_as_autograd_saves_them(precision: str) -> None:
    assert activation_bytes_per_width(precision) == pytest.approx(ACTIVATION_BYTES_PER_WIDTH[precision], rel=0.05)


def test_rows_taken_at_once_fit_beside_the_state_into_our_share_of_a_device(
    tiny_config: Callable[..., TrainConfig],
) -> None:
    config = tiny_config(8)
    plan_, a_row = plan(config), activation_bytes(config.model, config.precision, 1)
    state = state_bytes(config.model, config.optim.optimizer)

    def rows(memory: float) -> int:
        return device_rows(plan_, config, 1, None, memory)

    assert rows(state + 100 * plan_.batch_rows * a_row) == plan_.batch_rows
    for memory in (state + 9 * a_row, state + 3 * a_row):
        assert state + rows(memory) * a_row < memory
    assert rows(state + 9 * a_row) > rows(state + 3 * a_row) == 1
    assert rows(0.9 * state) == 1  # refused before, by `too_large`


def test_activations_of_rows() -> None:
    model = ModelConfig(depth=4, vocab_size=64, seq_len=512)
    assert activation_bytes(model, "fp32", 3) == 3 * 512 * 4 * 256 * ACTIVATION_BYTES_PER_WIDTH["fp32"]


def test_what_memory_does_not_hold_is_named_with_its_size() -> None:
    model = ModelConfig(depth=4, vocab_size=64, seq_len=512)
    needed = state_bytes(model, "muon") + activation_bytes(model, "fp32", 1)
    assert too_large(model, "muon", "fp32", needed, "this machine") is None
    assert too_large(model, "muon", "fp32", 2 * needed, "this machine", copies=2) is None
    for memory, copies in ((needed - 1, 1), (2 * needed - 1, 2)):  # ranks on a CPU share its memory
        reason = too_large(model, "muon", "fp32", memory, "this machine", copies=copies)
        assert reason is not None and f"needs about {copies * needed / 1e9:.1f} GB" in reason
        assert "this machine has" in reason and "take a smaller depth" in reason
