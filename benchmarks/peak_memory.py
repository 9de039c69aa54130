"""Peak memory of one contender, in a process of its own, and the activations that this model keeps for backward.

    python -m benchmarks.peak_memory ours '{"depth": 4, "seq_len": 512, "vocab_size": 32768, "rows": 8}'

prints the bytes of the process's peak, the imports' share in it included.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict

import torch

from benchmarks.contenders import CPU, STEPS, Shape
from tinyllm import hardware
from tinyllm.config import ModelConfig
from tinyllm.model import build_model

STEPS_TO_PEAK = 2  # the second one runs with the optimizer's state in place


def peak_of(contender: str, shape: Shape) -> int:
    """Bytes of the process at its peak."""
    command = [sys.executable, "-m", "benchmarks.peak_memory", contender, json.dumps(asdict(shape))]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return int(output.split()[-1])


def activation_bytes_per_width(precision: str) -> float:
    """Bytes kept for backward a token, layer and unit of width.

    Counts the storages that autograd saves. The difference between two numbers of tokens leaves out what does not grow
    with them (weights cast to bf16), the difference between two depths of one width what is no layer's.
    """

    def saved(depth: int, rows: int) -> int:
        width, seq_len = 128, 64
        config = ModelConfig(
            depth=depth, aspect_ratio=width // depth, target_head_dim=64, vocab_size=64, seq_len=seq_len
        )
        model = build_model(config, 0, CPU)
        kept = {p.untyped_storage().data_ptr(): 0 for p in model.parameters()}

        def pack(x: torch.Tensor) -> torch.Tensor:
            kept.setdefault(x.untyped_storage().data_ptr(), x.untyped_storage().nbytes())
            return x

        with (
            torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x),
            torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"),
        ):
            hidden = model.hidden(torch.zeros(rows, seq_len, dtype=torch.int64))  # held: it keeps what was saved alive
        assert hidden.requires_grad
        return sum(kept.values())

    by_tokens = {depth: (saved(depth, 4) - saved(depth, 2)) / (2 * 64) for depth in (2, 4)}
    return (by_tokens[4] - by_tokens[2]) / (2 * 128)


def main(contender: str, shape: Shape) -> None:
    hardware.configure(CPU, deterministic=False)
    step = STEPS[contender](shape, compiled=False)
    for _ in range(STEPS_TO_PEAK):
        step()
    print(hardware.peak_memory_bytes(CPU))


if __name__ == "__main__":
    main(sys.argv[1], Shape(**json.loads(sys.argv[2])))
