"""Speed and memory of a training step: this model beside a plain GPT-2, and the loop through Ray beside a bare one.

    python -m benchmarks.step            # 20 rounds, at a vocabulary of 32768: about ten minutes on two cores
    python -m benchmarks.step --quick    # a small shape, without compile: seconds

Contenders take turns and are compared by CPU-seconds of the whole process, all threads, in pairs of one round. Printed
are medians of the pairs' ratios, above 1 = this model is faster. Beside each figure stands what it should reach. One
line of JSON last.
"""

from __future__ import annotations

import json
import statistics
import tempfile
from dataclasses import asdict, dataclass
from typing import Any

import torch
import tyro

from benchmarks import loop, peak_memory
from benchmarks.contenders import CPU, Shape, our_step, plain_model, plain_step
from benchmarks.pairs import Ratio, take_turns
from tinyllm import hardware
from tinyllm.corpus import default_corpus


@dataclass(frozen=True, kw_only=True)
class Options:
    pairs: int = 20
    """Rounds of every comparison."""
    quick: bool = False
    """Two rounds of a small shape, without compile: to see that it runs."""
    data: str | None = None
    """Corpus of the loops, of the shape's vocabulary and row length. Default: the built-in one."""


FULL = Shape(depth=4, seq_len=512, vocab_size=32768, rows=8)
SMALL = Shape(depth=2, seq_len=128, vocab_size=1024, rows=4)


def main(options: Options) -> None:
    shape = SMALL if options.quick else FULL
    rounds = 2 if options.quick else options.pairs
    hardware.configure(CPU, deterministic=False)
    flops, plain_flops = shape.model.flops_per_token, plain_model(shape).flops_per_token
    print(f"{shape}, {torch.get_num_threads()} thread(s)")
    print(f"{shape.tokens} tokens a step, {shape.tokens * flops / 1e9:.0f} GFLOP; ours / plain: {flops / plain_flops}")
    result: dict[str, Any] = {"benchmark": "step", "shape": asdict(shape), "threads": torch.get_num_threads()}
    result["flops_ratio"] = flops / plain_flops
    result |= memory(shape)
    result |= speeds(shape, rounds, compiled=not options.quick)
    result |= loops(shape, rounds, options.data)
    print(json.dumps(result))


def speeds(shape: Shape, rounds: int, *, compiled: bool) -> dict[str, Any]:
    steps = {"plain": plain_step(shape, compiled=False), "ours": our_step(shape, compiled=False)}
    if compiled:
        steps |= {"plain compiled": plain_step(shape, compiled=True), "ours compiled": our_step(shape, compiled=True)}
    for step in steps.values():  # allocations, optimizer state, compilation
        step()
        step()
    times = take_turns(steps, rounds)
    for name, t in times.items():
        cpu, wall = statistics.median(t.cpu), statistics.median(t.wall)
        print(f"{name:16} {cpu:.3f} CPU-s a step, {shape.tokens / cpu:,.0f} tokens/CPU-s, {shape.tokens / wall:,.0f}/s")
    wanted = {"ours": ("plain", 1.0), "ours compiled": ("plain", 1.1)}
    found = {}
    for name, (other, target) in wanted.items():
        if name in times:
            found[f"{name} / {other}"] = ratio = Ratio.of(times[other].cpu, times[name].cpu)
            print(f"speed of {name} / {other}: {ratio}; to reach: {target}")
    if compiled:
        found["ours compiled / plain compiled"] = ratio = Ratio.of(
            times["plain compiled"].cpu, times["ours compiled"].cpu
        )
        print(f"speed of ours compiled / plain compiled: {ratio}")
    return {
        "speed_ratios": {name: ratio.to_dict() for name, ratio in found.items()},
        "step_seconds": {name: asdict(t) for name, t in times.items()},
    }


def memory(shape: Shape) -> dict[str, Any]:
    ours, plain = (peak_memory.peak_of(name, shape) for name in ("ours", "plain"))
    print(f"peak memory of a process: ours {ours / 2**20:,.0f} MiB, plain {plain / 2**20:,.0f} MiB", end="")
    print(f": {ours / plain:.2f} x; to reach: 0.6")
    kept = {precision: peak_memory.activation_bytes_per_width(precision) for precision in ("fp32", "bf16")}
    print(f"activations kept for backward a token, layer and unit of width: {kept} bytes")
    return {
        "peak_bytes": {"ours": ours, "plain": plain},
        "activation_bytes_per_width": kept,
    }


def loops(shape: Shape, rounds: int, data: str | None) -> dict[str, Any]:
    path = default_corpus(data, vocab_size=shape.vocab_size, seq_len=shape.seq_len)
    with tempfile.TemporaryDirectory() as out:
        found = loop.compare(shape, path, rounds, out)
    print(f"CPU-seconds a step, loop through Ray / bare loop: {found.cpu_ratio}; to reach: 1.01")
    print(f"share of the loop's time spent waiting for data: {found.data_wait_share:.4%}; to reach: below 1%")
    return {"loop": asdict(found)}


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
