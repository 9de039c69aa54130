"""The models that could be trained next: one ModelConfig, every depth of it."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from dataclasses import dataclass

from analysis.runs import Params, Runs
from tinyllm.config import ModelConfig, TrainConfig

MAX_DEPTH = 128


@dataclass(frozen=True, kw_only=True)
class Rung:
    """One size: its parameters in the convention of the fit, and its exact training FLOPs per token."""

    depth: int
    n: float
    flops_per_token: float


@functools.cache
def rungs(
    model: ModelConfig, params: Params = "with_head", depths: Sequence[int] = range(1, MAX_DEPTH + 1)
) -> tuple[Rung, ...]:
    """The sizes that `model` gives at each depth, ascending. A depth whose width the model refuses is skipped."""
    found = []
    for depth in depths:
        # An odd width (odd depth times odd aspect ratio) is no model of this ladder.
        if depth * model.aspect_ratio % 2:
            continue
        sized = dataclasses.replace(model, depth=depth)
        found.append(Rung(depth=depth, n=float(getattr(sized.counts, params)), flops_per_token=sized.flops_per_token))
    return tuple(found)


def of_runs(runs: Runs) -> ModelConfig | None:
    """The model whose depths these runs are; None for a plain table, or where they differ in more than depth."""
    if "config" not in runs.records:
        return None
    models = [TrainConfig.from_json(text).model for text in runs.records["config"].unique()]
    # A recorded model states its kv heads; as many as query heads means "follow the width".
    free = {
        dataclasses.replace(model, n_kv_heads=None if model.n_kv_heads == model.n_heads else model.n_kv_heads)
        for model in models
    }
    beside_depth = {tuple(value for name, value in vars(model).items() if name != "depth") for model in free}
    return free.pop() if len(beside_depth) == 1 else None
