"""The model: a GPT with RMSNorm, rotary positions, QK norm, a squared-ReLU MLP, an untied head and no biases.

Shape suffixes: B rows, T tokens, S keys (T, or more with a cache), D width, H query heads, K key/value heads,
C head dim, E = K x C, V vocabulary, N = B x T.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tinyllm.config import MLP_RATIO, ModelConfig
from tinyllm.loss import cross_entropy_sum, token_cross_entropy

ROTARY_BASE = 10_000.0  # Su et al. 2021
INPUT_MIX = 0.1  # share of the embedding fed again to every layer at the start, learned from there (nanochat)
HEAD_STD = 0.001  # the first logits are near zero, so the first loss is near ln V (nanochat)


def rms_norm(x: Tensor) -> Tensor:
    """Root-mean-square norm over the last dimension, without gain."""
    return F.rms_norm(x, (x.size(-1),))


def rotate(x_BHTC: Tensor, cos_TC: Tensor, sin_TC: Tensor) -> Tensor:
    """Turn each pair (i, i + C/2) of a head by its position's angle (Su et al. 2021)."""
    left, right = x_BHTC.chunk(2, dim=-1)
    return torch.cat((left * cos_TC + right * sin_TC, right * cos_TC - left * sin_TC), dim=-1)


class KVCache:
    """Keys and values of the tokens already read, per layer: (B, K, S, C) each."""

    def __init__(self, depth: int) -> None:
        self.keys: list[Tensor | None] = [None] * depth
        self.values: list[Tensor | None] = [None] * depth

    @property
    def length(self) -> int:
        return 0 if self.keys[0] is None else self.keys[0].size(2)

    def extend(self, layer: int, k_BKTC: Tensor, v_BKTC: Tensor) -> tuple[Tensor, Tensor]:
        old_k, old_v = self.keys[layer], self.values[layer]
        k = k_BKTC if old_k is None else torch.cat((old_k, k_BKTC), dim=2)
        v = v_BKTC if old_v is None else torch.cat((old_v, v_BKTC), dim=2)
        self.keys[layer], self.values[layer] = k, v
        return k, v


class Attention(nn.Module):
    def __init__(self, config: ModelConfig, layer: int) -> None:
        super().__init__()
        self.layer, self.heads, self.kv_heads, self.head_dim = layer, config.n_heads, config.kv_heads, config.head_dim
        self.window = config.windows[layer]
        kv_width = self.kv_heads * self.head_dim
        self.query = nn.Linear(config.width, config.width, bias=False)
        self.key = nn.Linear(config.width, kv_width, bias=False)
        self.value = nn.Linear(config.width, kv_width, bias=False)
        self.out = nn.Linear(config.width, config.width, bias=False)

    def forward(
        self, x_BTD: Tensor, cos_TC: Tensor, sin_TC: Tensor, extra_value_BTE: Tensor | None, cache: KVCache | None
    ) -> Tensor:
        B, T, _ = x_BTD.shape
        q_BHTC = self.query(x_BTD).view(B, T, self.heads, self.head_dim).transpose(1, 2)
        k_BKTC = self.key(x_BTD).view(B, T, self.kv_heads, self.head_dim).transpose(1, 2)
        v_BTE = self.value(x_BTD)
        if extra_value_BTE is not None:
            v_BTE = v_BTE + extra_value_BTE.to(v_BTE.dtype)
        v_BKSC = v_BTE.view(B, T, self.kv_heads, self.head_dim).transpose(1, 2)
        q_BHTC = rms_norm(rotate(q_BHTC, cos_TC, sin_TC)).to(v_BKSC.dtype)
        k_BKSC = rms_norm(rotate(k_BKTC, cos_TC, sin_TC)).to(v_BKSC.dtype)
        if cache is not None:
            k_BKSC, v_BKSC = cache.extend(self.layer, k_BKSC, v_BKSC)
        S = k_BKSC.size(2)
        # The kernel's own causal path needs square scores and no window; anything else is said with a mask.
        plain = S == T and self.window >= S
        y_BHTC = F.scaled_dot_product_attention(
            q_BHTC,
            k_BKSC,
            v_BKSC,
            attn_mask=None if plain else window_mask(T, S, self.window, x_BTD.device),
            is_causal=plain,
            enable_gqa=self.heads != self.kv_heads,
        )
        return self.out(y_BHTC.transpose(1, 2).reshape(B, T, -1))


def window_mask(n_queries: int, n_keys: int, window: int, device: torch.device) -> Tensor:
    """True where a query may look: itself and the `window` - 1 tokens before. The queries are the last of the keys."""
    query = torch.arange(n_keys - n_queries, n_keys, device=device)[:, None]
    key = torch.arange(n_keys, device=device)[None, :]
    return (key <= query) & (key > query - window)


class MLP(nn.Module):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.up = nn.Linear(config.width, MLP_RATIO * config.width, bias=False)
        self.down = nn.Linear(MLP_RATIO * config.width, config.width, bias=False)

    def forward(self, x_BTD: Tensor) -> Tensor:
        return self.down(F.relu(self.up(x_BTD)).square())


class Block(nn.Module):
    def __init__(self, config: ModelConfig, layer: int) -> None:
        super().__init__()
        self.attention = Attention(config, layer)
        self.mlp = MLP(config)

    def forward(
        self,
        x_BTD: Tensor,
        x0_BTD: Tensor,
        residual_gain: Tensor,
        input_gain: Tensor,
        cos_TC: Tensor,
        sin_TC: Tensor,
        extra_value_BTE: Tensor | None,
        cache: KVCache | None,
    ) -> Tensor:
        x_BTD = residual_gain * x_BTD + input_gain * x0_BTD
        x_BTD = x_BTD + self.attention(rms_norm(x_BTD), cos_TC, sin_TC, extra_value_BTE, cache)
        return x_BTD + self.mlp(rms_norm(x_BTD))


class GPT(nn.Module):
    """Build it with `build_model`, which also initialises and checks it."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.vocab, config.width)
        self.value_embeddings = nn.ModuleDict(
            {
                str(i): nn.Embedding(config.vocab, config.kv_heads * config.head_dim)
                for i in range(config.depth)
                if config.has_value_embedding(i)
            }
        )
        self.blocks = nn.ModuleList(Block(config, i) for i in range(config.depth))
        self.residual_gains = nn.Parameter(torch.empty(config.depth))
        self.input_gains = nn.Parameter(torch.empty(config.depth))
        self.head = nn.Linear(config.width, config.vocab, bias=False)
        # No buffers: DDP would broadcast at every step what each rank computes alike.
        self.cos_TC, self.sin_TC = _rotary(config)
        # What `forward` runs; evaluation and sampling, whose shapes change, always run the plain ones.
        self.training_block: Callable[..., Tensor] = Block.__call__
        self.training_loss: Callable[..., Tensor] = cross_entropy_sum

    def compile_training(self) -> None:
        """Compile what `forward` runs: one block at a time, and on a GPU the loss.

        A graph hands on its gradients when all of it has run backward. Compiled block by block, DDP reduces the last
        blocks' gradients while the first ones still compute; and blocks of one kind share one compilation.
        """
        torch.compiler.reset()  # a process that trained other shapes keeps their graphs, and after 8 runs uncompiled
        torch._dynamo.config.optimize_ddp = False  # would cut a block's graph again where a bucket of DDP ends
        self.training_block = torch.compile(Block.forward, dynamic=False)
        # On a CPU the loss as written, in place over few buffers, takes less time than what the compiler makes of it.
        if self.head.weight.device.type != "cpu":
            self.training_loss = torch.compile(cross_entropy_sum, dynamic=False)

    def hidden(
        self, ids_BT: Tensor, cache: KVCache | None = None, block: Callable[..., Tensor] = Block.__call__
    ) -> Tensor:
        """The normed residual stream before the head, (B, T, D)."""
        start = cache.length if cache else 0
        cos_TC, sin_TC = (table[start : start + ids_BT.size(1)] for table in (self.cos_TC, self.sin_TC))
        x0_BTD = rms_norm(self.embedding(ids_BT))
        x_BTD = x0_BTD.view_as(x0_BTD)  # not the same object: a compiled block would be compiled again for that case
        for i, layer in enumerate(self.blocks):
            extra_BTE = self.value_embeddings[str(i)](ids_BT) if self.config.has_value_embedding(i) else None
            gains = self.residual_gains[i], self.input_gains[i]
            x_BTD = block(layer, x_BTD, x0_BTD, *gains, cos_TC, sin_TC, extra_BTE, cache)
        return rms_norm(x_BTD)

    def logits(self, ids_BT: Tensor, cache: KVCache | None = None) -> Tensor:
        """Soft-capped logits (B, T, V) in fp32. Raises ValueError beyond the context of `config.seq_len` tokens."""
        length = ids_BT.size(1) + (cache.length if cache else 0)
        if length > self.config.context:
            raise ValueError(f"{length} tokens are more than the model's context of {self.config.context}: give fewer")
        return self.read_out(self.hidden(ids_BT, cache))

    def read_out(self, hidden: Tensor) -> Tensor:
        """Soft-capped logits (..., V) in fp32 of `hidden` states (..., D)."""
        z = self.head(hidden).float()
        cap = self.config.logit_softcap
        return cap * torch.tanh(z / cap) if cap else z

    def forward(self, ids_BT: Tensor, targets_BT: Tensor) -> Tensor:
        """Sum of the cross-entropies of all targets in nats; differentiable, never holds (N, V) logits."""
        hidden_ND = self.hidden(ids_BT, block=self.training_block).flatten(0, 1)
        return self.training_loss(hidden_ND, self.head.weight, targets_BT.flatten(), self.config.logit_softcap)

    @torch.no_grad()
    def token_losses(self, ids_BT: Tensor, targets_BT: Tensor) -> Tensor:
        """Cross-entropy of every target in nats, (B, T), fp32, without gradient."""
        hidden_ND = self.hidden(ids_BT).flatten(0, 1)
        losses_N = token_cross_entropy(hidden_ND, self.head.weight, targets_BT.flatten(), self.config.logit_softcap)
        return losses_N.view_as(targets_BT)


def _rotary(config: ModelConfig) -> tuple[Tensor, Tensor]:
    # On the CPU whatever the default device: a meta tensor would have no values.
    with torch.device("cpu"):
        frequency = ROTARY_BASE ** (-torch.arange(0, config.head_dim, 2, dtype=torch.float64) / config.head_dim)
        angle = torch.arange(config.context, dtype=torch.float64)[:, None] * frequency[None, :]
        return angle.cos().float(), angle.sin().float()


def build_model(config: ModelConfig, seed: int, device: torch.device) -> GPT:
    """The initialised model on a device; the same weights for a seed on every device and world size.

    Raises AssertionError where a parameter has no rule or the real counts are not those of the config.
    """
    with torch.device("meta"):
        model = GPT(config)
    model = model.to_empty(device=device)
    model.cos_TC, model.sin_TC = model.cos_TC.to(device), model.sin_TC.to(device)
    initialise(model, seed)
    n_params, expected = sum(p.numel() for p in model.parameters()), config.counts.total
    assert n_params == expected, f"the model has {n_params} parameters, its config says {expected}"
    return model


@torch.no_grad()
def initialise(model: GPT, seed: int) -> None:
    """nanochat's initialisation. Every parameter draws from a generator of its own, keyed by seed and name."""
    for name, parameter in model.named_parameters():
        key = hashlib.blake2b(f"{seed}/{name}".encode(), digest_size=7).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(key, "big"))
        values = torch.empty(parameter.shape)
        bound = math.sqrt(3.0 / model.config.width)  # a uniform law of variance 1/width
        match name.split("."):
            case ["embedding", "weight"]:
                values.normal_(generator=generator)
            case ["head", "weight"]:
                values.normal_(std=HEAD_STD, generator=generator)
            case ["blocks", _, "attention", "query" | "key" | "value", "weight"] | ["blocks", _, "mlp", "up", "weight"]:
                values.uniform_(-bound, bound, generator=generator)
            case ["blocks", _, "attention", "out", "weight"] | ["blocks", _, "mlp", "down", "weight"]:
                values.zero_()  # every block starts as the identity
            case ["value_embeddings", _, "weight"]:
                values.uniform_(-bound, bound, generator=generator)
            case ["residual_gains"]:
                values.fill_(1.0)
            case ["input_gains"]:
                values.fill_(INPUT_MIX)
            case _:
                raise AssertionError(f"no initialisation rule for parameter {name!r}: add one here")
        parameter.copy_(values)
