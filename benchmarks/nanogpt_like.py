"""A plain GPT-2 as nanoGPT trains it, written from its public description: the yardstick of `benchmarks.step`.

LayerNorm, learned positions, GELU MLP, biases, an output head tied to the embedding, cross-entropy over the whole
logits, one AdamW that decays 2-D weights (Radford et al. 2019; github.com/karpathy/nanoGPT's README and defaults).

Symbols: B rows, T tokens, D width, H heads, C head dim, V vocabulary.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

INIT_STD = 0.02  # GPT-2
MLP_RATIO = 4
LR, BETAS, WEIGHT_DECAY, GRAD_CLIP = 6e-4, (0.9, 0.95), 0.1, 1.0  # nanoGPT's defaults


class Block(nn.Module):
    def __init__(self, width: int, n_heads: int) -> None:
        super().__init__()
        self.n_heads = n_heads
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.up = nn.Linear(width, MLP_RATIO * width)
        self.down = nn.Linear(MLP_RATIO * width, width)

    def forward(self, x_BTD: Tensor) -> Tensor:
        B, T, D = x_BTD.shape
        qkv = self.qkv(self.norm_1(x_BTD)).split(D, dim=2)
        q_BHTC, k_BHTC, v_BHTC = (t.view(B, T, self.n_heads, D // self.n_heads).transpose(1, 2) for t in qkv)
        y_BHTC = F.scaled_dot_product_attention(q_BHTC, k_BHTC, v_BHTC, is_causal=True)
        x_BTD = x_BTD + self.out(y_BHTC.transpose(1, 2).reshape(B, T, D))
        return x_BTD + self.down(F.gelu(self.up(self.norm_2(x_BTD))))


class NanoGPT(nn.Module):
    def __init__(self, *, depth: int, width: int, n_heads: int, vocab_size: int, seq_len: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, width)
        self.positions = nn.Embedding(seq_len, width)
        self.blocks = nn.ModuleList(Block(width, n_heads) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocab_size, bias=False)
        self.head.weight = self.embedding.weight
        for parameter in self.parameters():
            if parameter.ndim == 2:
                nn.init.normal_(parameter, std=INIT_STD)

    @property
    def flops_per_token(self) -> int:
        """Forward and backward: 6 a weight of a matmul, attention without halving for causality; no look-up."""
        linear = [m.weight for m in self.modules() if isinstance(m, nn.Linear)]
        seq_len, width = self.positions.weight.shape
        return 6 * sum(w.numel() for w in linear) + 12 * len(self.blocks) * seq_len * width

    def forward(self, ids_BT: Tensor, targets_BT: Tensor) -> Tensor:
        """Mean cross-entropy of the targets in nats."""
        x_BTD = self.embedding(ids_BT) + self.positions.weight[: ids_BT.size(1)]
        for block in self.blocks:
            x_BTD = block(x_BTD)
        z_BTV = self.head(self.norm(x_BTD))
        return F.cross_entropy(z_BTV.flatten(0, 1), targets_BT.flatten())


def build_adamw(model: NanoGPT) -> torch.optim.AdamW:
    """nanoGPT's optimizer: fused, decay on 2-D weights alone."""
    matrices = [p for p in model.parameters() if p.ndim >= 2]
    vectors = [p for p in model.parameters() if p.ndim < 2]
    groups = [{"params": matrices, "weight_decay": WEIGHT_DECAY}, {"params": vectors, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=LR, betas=BETAS, fused=True)
