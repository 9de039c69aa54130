"""Successive halving within a group, by rank; pure decisions, without Ray.

A group is everything but the LR (`TrainConfig.group`); its rungs are the token budgets. What is compared at a rung is
the decayed loss at that budget, so that a trial stopped later keeps every budget it reached as a valid point.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass

ASYNC_PEERS = 2  # results beside its own without which an asynchronous rung stops nobody
NEAREST = 3  # the best and its two neighbours on the LR grid: what an optimum is interpolated from


@dataclass(frozen=True, kw_only=True)
class Decision:
    """Whether a trial goes on from a rung; decided once."""

    group: str
    rung: int
    """Planned tokens of the budget."""
    run_id: str
    keep: bool
    loss: float | None
    """Decayed validation loss, nats per token; None where the trial diverged."""
    reason: str


@dataclass(frozen=True, kw_only=True)
class Group:
    """Trials that differ in LR alone."""

    name: str
    lrs: Mapping[str, float]
    """By run_id."""
    rungs: tuple[int, ...]
    """Planned tokens, increasing."""
    by_rung: bool
    """True = wait for every live trial of the group, then decide once; False = decide on arrival."""


def kept(losses: Mapping[str, float], lrs: Mapping[str, float], factor: int) -> dict[str, str]:
    """Which of the trials compared at a rung go on, and why: the top 1/factor (rounded up), and the neighbours of the
    best.

    The neighbours are those next to the best LR on either side; with the best at the edge, the two nearest to it. A
    loss that is not finite is never kept. Ties go to the smaller LR.
    """
    finite = sorted((r for r in losses if math.isfinite(losses[r])), key=lambda r: (losses[r], lrs[r], r))
    if not finite:
        return {}
    top = finite[: math.ceil(len(losses) / factor)]
    by_lr = sorted(finite, key=lambda r: (lrs[r], r))
    start = min(max(by_lr.index(finite[0]) - 1, 0), max(len(by_lr) - NEAREST, 0))
    beside = "next to the best LR" if 0 < by_lr.index(finite[0]) < len(by_lr) - 1 else "near the best LR, at the edge"
    return {**dict.fromkeys(by_lr[start : start + NEAREST], beside), **dict.fromkeys(top, f"among the best {len(top)}")}


class Halving:
    """Results and decisions of all groups of a sweep. Results may come in any order."""

    def __init__(self, groups: Iterable[Group], *, factor: int, decisions: Iterable[Decision] = ()) -> None:
        """`factor`: 2 or more. `decisions`: of an earlier session; they bind."""
        self.factor = factor
        self.groups = {g.name: g for g in groups}
        self._group_of = {run_id: g for g in self.groups.values() for run_id in g.lrs}
        self._losses: dict[tuple[str, int], dict[str, float]] = {}
        self._gone: set[str] = set()
        self.decisions = {(d.group, d.rung, d.run_id): d for d in decisions}

    def report(self, run_id: str, rung: int, loss: float | None) -> None:
        """A trial's decayed loss at a rung; None = it diverged before it. Said again, nothing changes."""
        self._losses.setdefault((self._group_of[run_id].name, rung), {})[run_id] = math.inf if loss is None else loss

    def drop(self, run_id: str) -> None:
        """Nobody waits for this trial any more: it failed, or is not run."""
        self._gone.add(run_id)

    def readmit(self, run_id: str) -> None:
        """It is being tried again."""
        self._gone.discard(run_id)

    def verdict(self, run_id: str, rung: int) -> bool | None:
        """Whether a trial that has reported at a rung goes on: True, False, or None while others are awaited."""
        group = self._group_of[run_id]
        if rung == group.rungs[-1]:
            return True
        decision = self.decisions.get((group.name, rung, run_id))
        return None if decision is None else decision.keep

    def stopped(self, run_id: str) -> Decision | None:
        """The decision that stopped a trial, if one did."""
        group = self._group_of[run_id]
        found = (self.decisions.get((group.name, rung, run_id)) for rung in group.rungs)
        return next((d for d in found if d is not None and not d.keep), None)

    def pardon(self, run_id: str) -> None:
        """Let a stopped trial go on after all."""
        decision = self.stopped(run_id)
        if decision is not None:
            pardoned = Decision(**{**asdict(decision), "keep": True, "reason": "retried on request"})
            self.decisions[decision.group, decision.rung, run_id] = pardoned

    def settle(self) -> tuple[Decision, ...]:
        """Take every decision that can be taken now; returns the new ones."""
        found: list[Decision] = []
        for group in self.groups.values():
            for rung in group.rungs[:-1]:
                found += self._settle(group, rung)
        return tuple(found)

    def _settle(self, group: Group, rung: int) -> list[Decision]:
        losses = self._losses.get((group.name, rung), {})
        undecided = [r for r in losses if (group.name, rung, r) not in self.decisions]
        if not undecided:
            return []
        if group.by_rung and any(r not in losses for r in self._live(group, rung)):
            return []
        enough = group.by_rung or len(losses) > ASYNC_PEERS
        good = kept(losses, group.lrs, self.factor) if enough else dict.fromkeys(losses, "too few to compare")
        ranked = sorted(losses, key=lambda r: (losses[r], group.lrs[r], r))
        new = []
        for run_id in sorted(undecided):
            loss, keep = losses[run_id], run_id in good and math.isfinite(losses[run_id])
            where = f"rank {ranked.index(run_id) + 1} of {len(losses)} at {rung:,} tokens"
            why = good[run_id] if keep else "neither among the best nor next to the best LR"
            decision = Decision(
                group=group.name,
                rung=rung,
                run_id=run_id,
                keep=keep,
                loss=loss if math.isfinite(loss) else None,
                reason=f"{where}, {why if math.isfinite(loss) else 'diverged'}",
            )
            self.decisions[group.name, rung, run_id] = decision
            new.append(decision)
        return new

    def _live(self, group: Group, rung: int) -> set[str]:
        """Trials that may still report at a rung or have: neither failed, nor stopped or diverged at an earlier one."""
        earlier = [r for r in group.rungs if r < rung]
        out = {
            run_id
            for run_id in group.lrs
            for r in earlier
            if self.verdict(run_id, r) is False or math.isinf(self._losses.get((group.name, r), {}).get(run_id, 0.0))
        }
        return set(group.lrs) - out - self._gone

    def to_json(self) -> bytes:
        """The decisions, for storage."""
        ordered = [asdict(d) for _, d in sorted(self.decisions.items())]
        return json.dumps({"factor": self.factor, "decisions": ordered}, indent=1).encode()


def load_decisions(data: bytes) -> list[Decision]:
    """Inverse of `Halving.to_json`."""
    return [Decision(**d) for d in json.loads(data)["decisions"]]
