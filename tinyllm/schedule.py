"""LR, momentum and weight decay as pure functions of (config, plan, segment, step)."""

from __future__ import annotations

import math

from tinyllm.config import TrainConfig
from tinyllm.plan import Budget, Plan

MOMENTUM_START = 0.85
MOMENTUM_WARMUP_STEPS = 300  # nanochat; a share of the reference run, in steps of the reference batch


def decay_fraction(plan_budget: Budget | None, step: int) -> float:
    """How far the decay of a branch has come at a step, in [0, 1]; 0 on the trunk (no budget)."""
    if plan_budget is None or step < plan_budget.fork_step:
        return 0.0
    # Counted from 0: a branch's first step still has the peak LR, its last one is a step short of the final LR.
    return (step - plan_budget.fork_step) / plan_budget.decay_steps


def lr_multiplier(config: TrainConfig, plan: Plan, budget: Budget | None, step: int) -> float:
    """Factor on every peak LR at a step (counted from 0) of the trunk (`budget` None) or of a budget's branch.

    The warmup rises linearly and reaches 1 at its last step. Shapes: linear and 1-sqrt (Hägele et al. 2024), cosine
    (Loshchilov & Hutter 2017); all fall to `final_lr_fraction`.
    """
    optim = config.optim
    if step < plan.warmup_steps:
        return (step + 1) / plan.warmup_steps
    floor = optim.final_lr_fraction
    if optim.schedule == "cosine":
        whole = plan.budgets[-1]
        x = (step - plan.warmup_steps) / max(1, whole.steps - plan.warmup_steps)
        return floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * x))
    x = decay_fraction(budget, step)
    shapes = {"linear": 1 - x, "1-sqrt": 1 - math.sqrt(x), "cosine": 0.5 * (1 + math.cos(math.pi * x))}
    return floor + (1 - floor) * shapes[optim.decay_shape]


def weight_decay(plan: Plan, budget: Budget | None, step: int) -> float:
    """Constant on the trunk, falling linearly to zero inside a branch (nanochat lets it fall over the whole run)."""
    return plan.weight_decay * (1 - decay_fraction(budget, step))


def momentum(config: TrainConfig, step: int) -> float:
    """Muon's momentum rises linearly from 0.85 over the first 300 steps (nanochat)."""
    target = config.optim.momentum
    start = min(MOMENTUM_START, target)
    return start + (target - start) * min(1.0, step / MOMENTUM_WARMUP_STEPS)
