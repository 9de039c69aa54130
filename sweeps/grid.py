"""From a grid to its trials: pure arithmetic, before anything starts. Impossible cells are named with the reason."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from sweeps.settings import Axis, in_a_sweep
from tinyllm import batching, rules
from tinyllm.config import CorpusFacts, TrainConfig, changed
from tinyllm.horizon import Horizon
from tinyllm.plan import FEW_DECAY_STEPS, Plan, plan, resolve

# A decay of fewer steps says more about the schedule than about the model; from here to FEW_DECAY_STEPS plan warns.
MIN_DECAY_STEPS = FEW_DECAY_STEPS // 2


@dataclass(frozen=True, kw_only=True)
class Grid:
    """depth x LR x seed x extra axes, each trial with every budget. A named grid is a function that returns one."""

    base: TrainConfig = field(default_factory=TrainConfig)
    """What all trials share; not resolved."""
    depths: tuple[int, ...]
    lrs: tuple[float | None, ...] = (None,)
    """Peak LRs of the hidden matrices, applied as they are; None = the LR by rule."""
    budgets: tuple[Horizon, ...]
    seeds: tuple[int, ...] = (0,)
    axes: tuple[Axis, ...] = ()
    separate_trunks: bool = False
    """One trial a budget, its batch chosen by rule for that budget: the check of what one shared trunk costs."""

    def __post_init__(self) -> None:
        for name in ("depths", "lrs", "budgets", "seeds"):
            values = getattr(self, name)
            if not values:
                raise ValueError(f"the grid has no {name}: give at least one (--{name})")
            if len(set(values)) < len(values):
                raise ValueError(f"--{name} holds a value twice: {' '.join(map(str, values))}")
        if self.separate_trunks and any(b.unit == "steps" for b in self.budgets):
            raise ValueError("separate trunks choose their batch by budget: give budgets in tokens, not in steps")

    @property
    def one_budget_a_trial(self) -> bool:
        return self.separate_trunks or self.base.optim.schedule == "cosine"


@dataclass(frozen=True, kw_only=True)
class Device:
    """What one device of a trial computes with, as found on a machine of the cluster."""

    kind: Literal["cuda", "cpu", "mps"]
    name: str
    precision: Literal["fp32", "bf16"]
    memory_bytes: int | None
    """That a trial must fit: the GPU's, else the machine's; None = not known."""
    peak_tflops: float | None
    """Dense peak in that precision; None where it is not known."""


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One trunk: a resolved config and what it amounts to."""

    config: TrainConfig
    plan: Plan
    axes: tuple[tuple[str, Any], ...] = ()
    """Values on the extra axes, by path."""

    @property
    def run_id(self) -> str:
        return self.config.run_id

    @property
    def lr(self) -> float:
        assert self.config.optim.lr is not None
        return self.config.optim.lr

    @property
    def depth(self) -> int:
        return self.config.model.depth

    @property
    def setting(self) -> str:
        """What tells it from others of its size, in words: LR, seed and the values on extra axes."""
        rest = "".join(f" {path.rpartition('.')[2]} {value}" for path, value in self.axes)
        seed = f" seed {self.config.seed}" if self.config.seed else ""
        return f"lr {self.lr:.4g}{seed}{rest}"


@dataclass(frozen=True, kw_only=True)
class Refused:
    """A cell that can't be run."""

    depth: int
    lr: float | None
    seed: int
    axes: tuple[tuple[str, Any], ...]
    budget: Horizon
    reason: str


@dataclass(frozen=True, kw_only=True)
class Cells:
    """A grid worked out."""

    trials: tuple[Trial, ...]
    """Largest first, so that no big trial is left alone at the end."""
    refused: tuple[Refused, ...]

    @property
    def warnings(self) -> tuple[str, ...]:
        """Each warning of any plan once."""
        return tuple(dict.fromkeys(w for t in self.trials for w in t.plan.warnings))


def expand(grid: Grid, corpus: CorpusFacts, device: Device) -> Cells:
    """Every cell of the grid as part of a trial, or refused with its reason.

    Raises ValueError when two settings lead to the same trial.
    """
    trials: dict[str, Trial] = {}
    refused: list[Refused] = []
    axes = [[(axis.path, value) for value in axis.values] for axis in grid.axes]
    for depth, lr, seed, *point in itertools.product(grid.depths, grid.lrs, grid.seeds, *axes):
        for budgets in [(b,) for b in grid.budgets] if grid.one_budget_a_trial else [grid.budgets]:
            possible = []
            for budget in budgets:
                try:
                    _check(_config(grid, depth, lr, seed, point, (budget,), corpus), corpus, device)
                    possible.append(budget)
                except ValueError as error:
                    cell = {"depth": depth, "lr": lr, "seed": seed, "axes": tuple(point), "budget": budget}
                    refused.append(Refused(**cell, reason=in_a_sweep(str(error))))
            if not possible:
                continue
            asked = _config(grid, depth, lr, seed, point, tuple(possible), corpus)
            config = resolve(asked, corpus, device.precision)
            trial = Trial(config=config, plan=plan(config), axes=tuple(point))
            if trial.run_id in trials:
                raise ValueError(
                    f"depth {depth}, lr {lr}, seed {seed}, {dict(point)}: the same trial ({trial.run_id}) as another "
                    "cell of the grid; leave one of the two out"
                )
            trials[trial.run_id] = trial
    # The run_id is a hash: within a size it puts the LRs in an order that says nothing about them.
    ordered = sorted(trials.values(), key=lambda t: (-t.plan.trained_flops, t.config.group, t.run_id))
    return Cells(trials=tuple(ordered), refused=tuple(refused))


def _config(
    grid: Grid,
    depth: int,
    lr: float | None,
    seed: int,
    point: list[tuple[str, Any]],
    budgets: tuple[Horizon, ...],
    corpus: CorpusFacts,
) -> TrainConfig:
    """The trial as asked for, not resolved."""
    config = changed(changed(replace(grid.base, seed=seed, horizons=budgets), "model.depth", depth), "optim.lr", lr)
    for path, value in point:
        config = changed(config, path, value)
    if grid.separate_trunks and config.optim.total_batch_size is None:
        # A rule that reads the budget: allowed where the trunk serves this budget alone.
        model = rules.with_corpus(config.model, corpus)
        batch = rules.batch_tokens(model, budgets[0].tokens(model, batch_tokens=0))
        config = changed(config, "optim.total_batch_size", batch)
    return config


def _check(config: TrainConfig, corpus: CorpusFacts, device: Device) -> None:
    """Raise ValueError, with the reason, when a config of one budget can't be run."""
    resolved = resolve(config, corpus, device.precision)
    budget = plan(resolved).budgets[0]
    if resolved.optim.schedule == "wsd" and budget.decay_steps < MIN_DECAY_STEPS:
        raise ValueError(
            f"{budget.tokens:,} tokens leave {budget.decay_steps} steps of decay, at least {MIN_DECAY_STEPS} are needed"
            ": take a larger budget, a smaller --total-batch-size or a larger --decay-share"
        )
    if device.memory_bytes is not None:
        where = f"the device ({device.name})"
        reason = batching.too_large(
            resolved.model, resolved.optim.optimizer, resolved.precision, device.memory_bytes, where
        )
        if reason is not None:
            raise ValueError(reason)
