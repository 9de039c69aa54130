"""Makes run records from what a run knows of itself."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable
from typing import Any

from tinyllm import hardware, ranks, record
from tinyllm.config import TrainConfig, canonical_json
from tinyllm.core_tasks import CoreResult
from tinyllm.evaluate import METRIC_VERSIONS
from tinyllm.events import TRUNK, HorizonReached, segment_name
from tinyllm.plan import Budget, Plan
from tinyllm.record import CurvePoint, RunRecord, Status
from tinyllm.state import TrainState


def described(config: TrainConfig, plan: Plan, budget: Budget) -> dict[str, Any]:
    """The fields of a record that are known before anything is trained."""
    assert config.corpus is not None
    assert config.optim.lr is not None
    return {
        "run_id": config.run_id,
        "planned_tokens": budget.tokens,
        "group": config.group,
        "depth": config.model.depth,
        "lr": config.optim.lr,
        "seed": config.seed,
        "steps": budget.steps,
        "fork_step": budget.fork_step,
        "decay_steps": budget.decay_steps,
        "batch_tokens": plan.batch_tokens,
        "n_params_total": plan.counts.total,
        "n_params_non_embedding": plan.counts.non_embedding,
        "n_params_with_head": plan.counts.with_head,
        "flops_per_token": plan.flops_per_token,
        "flops": budget.flops,
        "flops_6nd": budget.flops_6nd,
        "epochs": budget.epochs,
        "precision": config.precision,
        "corpus": config.corpus.name,
        "corpus_digest": config.corpus.digest,
        "config": config.to_json(),
        "plan": plan.to_json(),
        "versions": canonical_json(hardware.versions()),
        "git_commit": hardware.git_commit(),
        "metric_versions": canonical_json(METRIC_VERSIONS),
    }


def unfinished(
    config: TrainConfig,
    plan: Plan,
    budgets: Iterable[Budget],
    *,
    status: Status,
    reason: str,
    sweep: str | None,
    attempt: str,
    log_path: str | None = None,
) -> list[RunRecord]:
    """Rows for budgets that were not reached: a status and a reason, and no loss."""
    return [
        RunRecord(
            **described(config, plan, budget),
            status=status,
            reason=reason,
            sweep=sweep,
            attempt=attempt,
            finished_at=time.time(),
            fully_decayed=False,
            machine="{}",
            log_path=log_path,
        )
        for budget in budgets
    ]


class Recorder:
    """Writes the record of each budget of one run as it is reached. Every rank must call it, the first writes."""

    def __init__(self, root: str, state: TrainState, *, sweep: str | None, peak_tflops: float | None, log_path: str):
        self.root, self.state, self.sweep, self.peak_tflops, self.log_path = root, state, sweep, peak_tflops, log_path
        self.attempt = uuid.uuid4().hex
        self.row_started = time.perf_counter()

    def reached(self, event: HorizonReached, core: CoreResult | None) -> RunRecord:
        """Write and return the record of a budget; `core`: its scores on in-context tasks, where there are any."""
        state, budget = self.state, event.budget
        digest = state.shared_digest()
        now, world = time.perf_counter(), ranks.world_size()
        totals = state.totals
        speed = totals.tokens_per_second
        row = RunRecord(
            **described(state.config, state.plan, budget),
            status="done",
            sweep=self.sweep,
            attempt=self.attempt,
            finished_at=time.time(),
            fully_decayed=True,
            val_loss=event.val_loss,
            val_bpb=event.val_bpb,
            train_loss=event.train_loss_ema,
            core=core.mean if core else None,
            core_tasks=canonical_json(core.by_task()) if core else None,
            seconds=totals.seconds,
            eval_seconds=totals.eval_seconds,
            device_seconds=(now - self.row_started) * world,
            tokens_per_second=speed,
            mfu=self.mfu(speed),
            peak_memory_bytes=hardware.peak_memory_bytes(state.device),
            world_size=world,
            device=state.device.type,
            token_digest=f"{digest:032x}",
            machine=canonical_json(hardware.machine(state.device)),
            log_path=self.log_path,
            curve=path_of(totals.curve, budget),
        )
        self.row_started = now
        if ranks.rank() == 0:
            record.append(self.root, [row])
        return row

    def mfu(self, tokens_per_second: float | None) -> float | None:
        """Model FLOPs utilisation over all ranks, in [0, 1]; None where the peak is not known."""
        if tokens_per_second is None or self.peak_tflops is None:
            return None
        return tokens_per_second * self.state.plan.flops_per_token / (self.peak_tflops * 1e12 * ranks.world_size())

    def missed(self, budgets: Iterable[Budget], status: Status, reason: str) -> None:
        """Write rows for budgets that will not be reached in this attempt."""
        if ranks.rank() != 0:
            return
        rows = unfinished(
            self.state.config,
            self.state.plan,
            budgets,
            status=status,
            reason=reason,
            sweep=self.sweep,
            attempt=self.attempt,
            log_path=self.log_path,
        )
        if rows:
            record.append(self.root, rows)


def path_of(curve: Iterable[CurvePoint], budget: Budget) -> tuple[CurvePoint, ...]:
    """The trunk up to the budget's fork, then its own branch."""
    branch = segment_name(budget)
    return tuple(p for p in curve if p.segment == branch or (p.segment == TRUNK and p.step <= budget.fork_step))


def reached_budgets(root: str, run_id: str) -> frozenset[int]:
    """Planned tokens of the budgets of a run that are done."""
    return frozenset(r.planned_tokens for r in record.read(root, run_id) if r.run_id == run_id and r.status == "done")
