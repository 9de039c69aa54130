"""A model exported by `tinyllm export`, in one file: needs torch and safetensors alone, and nothing of tinyllm.

    model = load("DIR")                     # eval mode, fp32
    logits = model(ids)                     # (batch, tokens) int64 -> (batch, tokens, vocabulary)

The tokenizer is tokenizer.json, in the format of Hugging Face `tokenizers`; texts begin with its token <|bos|>.
"""

import json
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file


class Model(torch.nn.Module):
    def __init__(self, config: dict, weights: dict[str, torch.Tensor]) -> None:
        super().__init__()
        self.config, self.weights = config, weights

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        w, c = self.weights, self.config
        heads, kv_heads, size = c["n_heads"], c["n_kv_heads"], c["head_dim"]
        batch, length = ids.shape
        frequency = c["rotary_base"] ** (-torch.arange(0, size, 2, dtype=torch.float64) / size)
        angle = torch.arange(length, dtype=torch.float64)[:, None] * frequency
        cos, sin = angle.cos().float(), angle.sin().float()
        position = torch.arange(length)
        distance = position[:, None] - position[None, :]

        def norm(x: torch.Tensor) -> torch.Tensor:
            return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + torch.finfo(torch.float32).eps)

        def split(x: torch.Tensor, n: int) -> torch.Tensor:
            return x.view(batch, length, n, size).transpose(1, 2)

        def turn(x: torch.Tensor) -> torch.Tensor:
            a, b = x[..., : size // 2], x[..., size // 2 :]
            return torch.cat((a * cos + b * sin, b * cos - a * sin), dim=-1)

        first = x = norm(w["embedding.weight"][ids])
        for i in range(c["depth"]):
            x = w["residual_gains"][i] * x + w["input_gains"][i] * first
            h = norm(x)
            block = f"blocks.{i}."
            value = h @ w[block + "attention.value.weight"].T
            if f"value_embeddings.{i}.weight" in w:
                value = value + w[f"value_embeddings.{i}.weight"][ids]
            q = norm(turn(split(h @ w[block + "attention.query.weight"].T, heads)))
            k = norm(turn(split(h @ w[block + "attention.key.weight"].T, kv_heads)))
            v = split(value, kv_heads)
            k, v = (t.repeat_interleave(heads // kv_heads, dim=1) for t in (k, v))
            scores = q @ k.transpose(-1, -2) / size**0.5
            hidden = (distance < 0) | (distance >= c["windows"][i])
            y = scores.masked_fill(hidden, float("-inf")).softmax(-1) @ v
            x = x + y.transpose(1, 2).reshape(batch, length, -1) @ w[block + "attention.out.weight"].T
            up = F.relu(norm(x) @ w[block + "mlp.up.weight"].T).square()
            x = x + up @ w[block + "mlp.down.weight"].T
        logits = norm(x) @ w["head.weight"].T
        cap = c["logit_softcap"]
        return cap * torch.tanh(logits / cap) if cap else logits


def load(directory: str) -> Model:
    """The exported model of a directory."""
    path = Path(directory)
    return Model(json.loads((path / "config.json").read_text()), load_file(path / "model.safetensors")).eval()
