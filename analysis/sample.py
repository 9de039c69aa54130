"""A small sweep by simulation, for the notebook and the tests: its law is known because it was written here."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence

import numpy as np

from analysis.laws import LossSurface, LrLaw
from tinyllm.config import CorpusFacts, ModelConfig, OptimConfig, TrainConfig
from tinyllm.horizon import Horizon
from tinyllm.plan import Budget, Plan, plan, resolve
from tinyllm.record import CurvePoint, RunRecord

TRUE_LAW = LossSurface(A=28.0, B=120.0, E=1.8, alpha=0.34, beta=0.37)
"""Over N = n_params_with_head."""
TRUE_LR = LrLaw(intercept=float(np.log(0.35)), n_exponent=-0.22, d_exponent=0.0)
NOISE = 0.002
"""Standard deviation of log loss, half of its variance common to a trunk."""
DIVERGES_ABOVE = 4.0
"""Times the best LR."""
CORPUS = CorpusFacts(
    name="simulated", digest="0" * 32, vocab_size=1024, seq_len=256, train_tokens=20_000_000, val_tokens=65_536
)


def records(
    *,
    depths: Sequence[int] = (2, 3, 4, 5, 6),
    budgets: Sequence[int] = (1_000_000, 2_000_000, 4_000_000, 8_000_000),
    lrs: Sequence[float] = (0.01, 0.014, 0.02, 0.028, 0.04, 0.056, 0.08),
    seeds: Sequence[int] = (0,),
    law: LossSurface = TRUE_LAW,
    noise: float = NOISE,
) -> list[RunRecord]:
    """One row a (depth, lr, seed, budget), as a finished sweep leaves them: most done, some diverged, some stopped.

    All but the four LRs nearest a size's best are stopped after their first budget; more than 4 times the best
    diverges.
    """
    rng = np.random.default_rng(0)
    rows = []
    for depth in depths:
        for lr in lrs:
            for seed in seeds:
                config = _config(depth, lr, seed, budgets)
                trunk = rng.standard_normal()
                nearest = sorted(lrs, key=lambda x: abs(np.log(x / _best_lr(config))))[:4]
                for i, budget in enumerate(plan(config).budgets):
                    error = noise * (trunk + rng.standard_normal()) / np.sqrt(2)
                    if lr > DIVERGES_ABOVE * _best_lr(config):
                        rows.append(_row(config, budget, "diverged", None))
                    elif lr not in nearest and i > 0:
                        rows.append(_row(config, budget, "stopped", None))
                    else:
                        off = np.log(lr / _best_lr(config))
                        loss = law.loss(float(config.model.counts.with_head), float(budget.tokens))
                        rows.append(_row(config, budget, "done", float(loss * np.exp(0.03 * off**2 + error))))
    return rows


def _best_lr(config: TrainConfig) -> float:
    return float(TRUE_LR(float(config.model.counts.with_head), 1.0))


def _config(depth: int, lr: float, seed: int, budgets: Sequence[int]) -> TrainConfig:
    asked = TrainConfig(
        model=ModelConfig(depth=depth, aspect_ratio=16, target_head_dim=16),
        optim=OptimConfig(lr=lr, total_batch_size=2048, warmup_tokens=16_384),
        horizons=tuple(Horizon(value=float(b)) for b in budgets),
        seed=seed,
    )
    return resolve(asked, CORPUS, "fp32")


def _row(config: TrainConfig, budget: Budget, status: str, loss: float | None) -> RunRecord:
    planned: Plan = plan(config)
    counts = planned.counts
    speed = 2e11 / planned.flops_per_token
    lr = config.optim.lr
    assert lr is not None
    return RunRecord(
        run_id=config.run_id,
        planned_tokens=budget.tokens,
        status=status,  # type: ignore[arg-type]
        reason=None if status == "done" else f"{status} (simulated)",
        attempt="simulated",
        finished_at=0.0,
        sweep="sample",
        group=config.group,
        depth=config.model.depth,
        lr=lr,
        seed=config.seed,
        steps=budget.steps,
        fork_step=budget.fork_step,
        decay_steps=budget.decay_steps,
        batch_tokens=planned.batch_tokens,
        fully_decayed=status == "done",
        n_params_total=counts.total,
        n_params_non_embedding=counts.non_embedding,
        n_params_with_head=counts.with_head,
        flops_per_token=planned.flops_per_token,
        flops=budget.flops,
        flops_6nd=budget.flops_6nd,
        val_loss=loss,
        val_bpb=None if loss is None else loss / np.log(2) / 3.2,
        epochs=budget.epochs,
        seconds=budget.tokens / speed,
        eval_seconds=1.0,
        device_seconds=budget.tokens / speed + 3.0,
        tokens_per_second=speed,
        world_size=1,
        precision=config.precision,
        device="simulated",
        corpus=CORPUS.name,
        corpus_digest=CORPUS.digest,
        config=config.to_json(),
        plan=planned.to_json(),
        versions=json.dumps({}),
        machine=json.dumps({}),
        git_commit=None,
        metric_versions=json.dumps({}),
        log_path=None,
        curve=_curve(config, budget, loss),
    )


def _curve(config: TrainConfig, budget: Budget, loss: float | None) -> tuple[CurvePoint, ...]:
    """A plausible curve: above the decayed loss by 4 % on the trunk, down to it over the branch."""
    if loss is None:
        return ()
    n, batch = float(config.model.counts.with_head), budget.tokens / budget.steps
    steps = np.unique(np.linspace(budget.steps / 40, budget.steps, 40).astype(int))
    points = []
    for step in steps:
        share = max(0.0, (step - budget.fork_step) / budget.decay_steps)
        value = float(TRUE_LAW.loss(n, step * batch) * (1.04 - 0.04 * share))
        segment = "trunk" if step <= budget.fork_step else f"branch-{budget.tokens}"
        points.append(
            CurvePoint(
                segment=segment,
                step=int(step),
                tokens=int(step * batch),
                train_loss=value,
                val_loss=None,
                lr=None,
                grad_norm=None,
            )
        )
    points[-1] = dataclasses.replace(points[-1], val_loss=loss)
    return tuple(points)
