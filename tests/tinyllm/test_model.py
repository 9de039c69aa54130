"""The model against a second implementation, closed forms and its own cache."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import nn

from tinyllm.config import ModelConfig
from tinyllm.export import exported_config
from tinyllm.generate import generate
from tinyllm.model import GPT, KVCache, build_model, initialise, window_mask
from tinyllm.standalone import Model

PLAIN = ModelConfig(depth=3, aspect_ratio=16, target_head_dim=8, vocab_size=97, seq_len=24)
VARIANTS = {
    "plain": PLAIN,
    "windows": dataclasses.replace(PLAIN, window_pattern="SSL"),
    "grouped queries": dataclasses.replace(PLAIN, n_kv_heads=2),
    "value embeddings": dataclasses.replace(PLAIN, value_embeddings=True, n_kv_heads=3),
    "no softcap": dataclasses.replace(PLAIN, logit_softcap=0.0),
}
CPU = torch.device("cpu")


def scrambled(config: ModelConfig, seed: int = 0) -> GPT:
    """A model none of whose weights is zero, so that every path carries signal."""
    model = build_model(config, seed, CPU)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
    return model


def ids(config: ModelConfig, batch: int = 2, length: int | None = None) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randint(config.vocab, (batch, length or config.context), generator=generator)


@pytest.mark.parametrize("config", VARIANTS.values(), ids=VARIANTS.keys())
def test_logits_equal_those_of_a_second_implementation(config: ModelConfig) -> None:
    model = scrambled(config)
    second = Model(exported_config(config), model.state_dict())
    torch.testing.assert_close(model.logits(ids(config)), second(ids(config)), rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize("config", VARIANTS.values(), ids=VARIANTS.keys())
def test_a_target_depends_on_no_later_token_and_on_every_token_of_its_window(config: ModelConfig) -> None:
    model = scrambled(config)
    embedded = model.embedding(ids(config, batch=1)).detach().requires_grad_(True)
    # The residual stream is fed by the table look-up alone; replace it by a leaf to ask for gradients.
    model.embedding = _Constant(embedded)  # type: ignore[assignment]
    for position in (0, 5, config.context - 1):
        (gradient,) = torch.autograd.grad(model.logits(ids(config, batch=1))[0, position].sum(), embedded)
        reached = gradient[0].abs().sum(-1) > 0
        assert not reached[position + 1 :].any()
        assert reached[: position + 1].all()  # the last layer sees the whole context


class _Constant(nn.Module):
    def __init__(self, value: torch.Tensor) -> None:
        super().__init__()
        self.value = value

    def forward(self, _: torch.Tensor) -> torch.Tensor:
        return self.value


def test_window_mask_by_hand() -> None:
    mask = window_mask(3, 4, 2, CPU)
    assert mask.int().tolist() == [[1, 1, 0, 0], [0, 1, 1, 0], [0, 0, 1, 1]]


@pytest.mark.parametrize("config", VARIANTS.values(), ids=VARIANTS.keys())
def test_cached_logits_equal_the_full_forward(config: ModelConfig) -> None:
    model, tokens = scrambled(config), ids(config)
    full = model.logits(tokens)
    cache = KVCache(config.depth)
    pieces = [model.logits(part, cache) for part in tokens.split([5, 1, 1, 9, 8], dim=1)]
    torch.testing.assert_close(torch.cat(pieces, dim=1), full, rtol=1e-4, atol=1e-4)


def test_beyond_the_context_is_refused() -> None:
    model = scrambled(PLAIN)
    with pytest.raises(ValueError, match="25 tokens are more than the model's context of 24"):
        model.logits(torch.zeros((1, 25), dtype=torch.int64))


def test_greedy_generation_is_the_argmax_of_the_full_forward_for_prompts_of_any_length() -> None:
    model = scrambled(PLAIN)
    prompts = [[3, 1, 4], [1, 5], [9, 2, 6]]
    got = generate(model, prompts, n_tokens=6, temperature=0)
    for prompt, new in zip(prompts, got, strict=True):
        text = list(prompt)
        for token in new:
            assert token == model.logits(torch.tensor([text]))[0, -1].argmax().item()
            text.append(token)


def test_draws_follow_the_seed_and_top_k_bounds_them() -> None:
    model = scrambled(PLAIN)
    first, again, other = (generate(model, [[1, 2]] * 2, n_tokens=20, seed=s) for s in (1, 1, 2))
    assert first == again != other
    assert first[0] != first[1]
    assert generate(model, [[1, 2]], n_tokens=20, top_k=1, seed=5) == generate(
        model, [[1, 2]], n_tokens=20, temperature=0
    )
    with pytest.raises(ValueError, match="ask for 22 or fewer"):
        generate(model, [[1, 2]], n_tokens=23)
    with pytest.raises(ValueError, match="an empty prompt"):
        generate(model, [[]], n_tokens=1)


@pytest.mark.parametrize("config", VARIANTS.values(), ids=VARIANTS.keys())
def test_counts_by_group_are_those_of_the_real_model(config: ModelConfig) -> None:
    model, counts = build_model(config, 0, CPU), config.counts
    assert sum(p.numel() for p in model.parameters()) == counts.total
    assert sum(p.numel() for p in model.value_embeddings.parameters()) == counts.value_embedding
    blocks = sum(p.numel() for p in model.blocks.parameters())
    assert blocks == counts.attention + counts.mlp
    assert counts.with_head == blocks + 2 * config.depth + model.head.weight.numel()


def test_initial_loss_is_that_of_guessing_and_weights_follow_seed_and_name() -> None:
    model = build_model(PLAIN, 0, CPU)
    tokens = ids(PLAIN)
    loss = model(tokens[:, :-1], tokens[:, 1:]) / tokens[:, 1:].numel()
    assert loss.item() == pytest.approx(torch.log(torch.tensor(97.0)).item(), abs=0.01)  # the head starts at std .001
    again, other = build_model(PLAIN, 0, CPU), build_model(PLAIN, 1, CPU)
    for (name, p), q, r in zip(model.named_parameters(), again.parameters(), other.parameters(), strict=True):
        assert torch.equal(p, q), name
        constant = p.numel() == 0 or bool((p == p.flatten()[0]).all())
        assert constant or not torch.equal(p, r), name
    # one depth more leaves the first layers as they were: every parameter has a generator of its own
    width = dataclasses.replace(PLAIN, depth=6, aspect_ratio=8)
    assert torch.equal(build_model(width, 0, CPU).blocks[1].mlp.up.weight, model.blocks[1].mlp.up.weight)


def test_initial_variances() -> None:
    model = build_model(ModelConfig(depth=4, aspect_ratio=64, vocab_size=500, seq_len=8), 0, CPU)
    assert model.embedding.weight.std().item() == pytest.approx(1, rel=0.02)
    assert model.head.weight.std().item() == pytest.approx(0.001, rel=0.02)
    assert model.blocks[0].mlp.up.weight.std().item() == pytest.approx(256**-0.5, rel=0.02)
    assert not model.blocks[0].mlp.down.weight.any()


def test_a_parameter_without_a_rule_is_an_error() -> None:
    model = build_model(PLAIN, 0, CPU)
    model.register_parameter("surprise", nn.Parameter(torch.zeros(3)))
    with pytest.raises(AssertionError, match="surprise"):
        initialise(model, 0)
