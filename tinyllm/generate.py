"""Text from a model: batched sampling with a KV cache."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from tinyllm import storage
from tinyllm.checkpoint import load_weights
from tinyllm.config import TrainConfig, check_seed
from tinyllm.hardware import pick_device
from tinyllm.model import GPT, KVCache, build_model
from tinyllm.tokenizer import Tokenizer


def load_model(path: str, device: str = "auto") -> tuple[GPT, TrainConfig, Tokenizer | None]:
    """The model of a checkpoint or weights directory, its config, and its tokenizer (None where ids are not text).

    Raises ValueError when the directory holds no valid checkpoint.
    """
    weights, config_json, tokenizer_json = load_weights(path)
    config = TrainConfig.from_json(config_json)
    model = build_model(config.model, config.seed, pick_device(device))
    model.load_state_dict(weights)
    return model, config, Tokenizer.from_json(tokenizer_json) if tokenizer_json else None


@torch.no_grad()
def generate(
    model: GPT,
    prompts: Sequence[Sequence[int]],
    *,
    n_tokens: int,
    temperature: float = 1.0,
    top_k: int = 0,
    seed: int = 0,
) -> list[list[int]]:
    """The ids that follow each prompt, `n_tokens` of them; prompts of equal length share a batch.

    temperature 0 takes the likeliest token; top_k 0 draws among all. A prompt draws from a generator of its
    own, keyed by `seed` and its place. Raises ValueError for an empty prompt, one too long for the model's context, and
    for an `n_tokens`, `temperature`, `top_k` or `seed` that means nothing.
    """
    if n_tokens < 1:
        raise ValueError(f"tokens {n_tokens}: ask for 1 or more")
    if not 0 <= temperature < math.inf:
        raise ValueError(f"temperature {temperature}: give 0 (the likeliest token) or more, and finite")
    if top_k < 0:
        raise ValueError(f"top_k {top_k}: give 0 (choose among all) or more")
    check_seed(seed)
    for prompt in prompts:
        if not prompt:
            raise ValueError("an empty prompt: give at least one token (the tokenizer's BOS)")
        if len(prompt) + n_tokens > model.config.context:
            raise ValueError(
                f"{len(prompt)} tokens of prompt and {n_tokens} new ones exceed the model's context of "
                f"{model.config.context}: ask for {max(0, model.config.context - len(prompt))} or fewer"
            )
    found: list[list[int]] = [[] for _ in prompts]
    for length in sorted({len(p) for p in prompts}):
        indices = [i for i, p in enumerate(prompts) if len(p) == length]
        ids_BT = torch.tensor([list(prompts[i]) for i in indices], device=model.embedding.weight.device)
        # One generator a prompt: its draws do not move when its neighbours change.
        generators = [torch.Generator().manual_seed(seed + i) for i in indices]
        cache = KVCache(model.config.depth)
        for _ in range(n_tokens):
            logits_BV = model.logits(ids_BT, cache)[:, -1].cpu()
            next_B = torch.stack(
                [_draw(row, temperature, top_k, g) for row, g in zip(logits_BV, generators, strict=True)]
            )
            for i, token in zip(indices, next_B.tolist(), strict=True):
                found[i].append(token)
            ids_BT = next_B[:, None].to(ids_BT.device)
    return found


def _draw(logits_V: Tensor, temperature: float, top_k: int, generator: torch.Generator) -> Tensor:
    if temperature == 0:
        return logits_V.argmax()
    scaled = logits_V / temperature
    if top_k and top_k < len(scaled):
        lowest = scaled.topk(top_k).values[-1]
        scaled = scaled.masked_fill(scaled < lowest, -torch.inf)
    return torch.multinomial(scaled.softmax(0), 1, generator=generator)[0]


def sample_texts(
    path: str, prompts: Sequence[str], *, n_tokens: int, temperature: float, top_k: int, seed: int, device: str
) -> list[str]:
    """Each prompt with its continuation.

    Raises ValueError for a model of tokens that are no text, for no prompt at all or one that is no text, and as
    `generate`.
    """
    if not prompts:
        raise ValueError("there is no prompt: give at least one text to continue")
    for prompt in prompts:
        try:
            prompt.encode()
        except UnicodeEncodeError as error:  # bytes of the command line that are no UTF-8
            raise ValueError(f"prompt {prompt!r} is no text in UTF-8 ({error.reason}): write it in UTF-8") from error
    model, _, tokenizer = load_model(storage.absolute(path), device)
    if tokenizer is None:
        raise ValueError(f"{path} was trained on ids that are no text (no tokenizer.json): nothing to write out")
    return continue_texts(model, tokenizer, prompts, n_tokens, temperature=temperature, top_k=top_k, seed=seed)


def continue_texts(
    model: GPT,
    tokenizer: Tokenizer,
    prompts: Sequence[str],
    n_tokens: int,
    *,
    temperature: float = 0.8,
    top_k: int = 50,
    seed: int = 0,
) -> list[str]:
    """Each prompt with its continuation of `n_tokens` tokens, or as many as the context allows."""
    ids = [[tokenizer.bos_id, *tokenizer.encode(prompt)] for prompt in prompts]
    room = model.config.context - max(len(i) for i in ids)
    new = generate(model, ids, n_tokens=min(n_tokens, max(1, room)), temperature=temperature, top_k=top_k, seed=seed)
    return [prompt + tokenizer.decode(tokens) for prompt, tokens in zip(prompts, new, strict=True)]
