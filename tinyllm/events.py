"""What the training loop tells its readers. Losses are nats per token; tokens count from the run's start."""

from __future__ import annotations

from dataclasses import dataclass

from tinyllm.core_tasks import CoreResult
from tinyllm.plan import Budget

TRUNK = "trunk"


def segment_name(budget: Budget | None) -> str:
    """ "trunk", or the branch that decays to a budget: "branch-<planned tokens>"."""
    return TRUNK if budget is None else f"branch-{budget.tokens}"


@dataclass(frozen=True, kw_only=True)
class Progress:
    """Where an event stands: so many steps and tokens along its path (a branch's begins with the trunk to its fork)."""

    branch: Budget | None
    """The budget whose branch this is; None on the trunk."""
    step: int
    tokens: int

    @property
    def segment(self) -> str:
        return segment_name(self.branch)


@dataclass(frozen=True, kw_only=True)
class StepDone(Progress):
    """An optimizer step was taken. Measurements are None except at log steps, where reading them is worth a sync."""

    lr: float
    train_loss: float | None = None
    train_loss_ema: float | None = None
    """Debiased moving average."""
    grad_norm: float | None = None
    """Before clipping."""
    tokens_per_second: float | None = None
    """Over all ranks, since the last log step; None while the first steps (compile) are left out."""

    @property
    def ends_branch(self) -> bool:
        """Whether this was the last step of a branch: `HorizonReached` follows."""
        return self.branch is not None and self.step == self.branch.steps


@dataclass(frozen=True, kw_only=True)
class Evaluated(Progress):
    val_loss: float
    val_bpb: float | None


@dataclass(frozen=True, kw_only=True)
class Forked(Progress):
    """The trunk stands where a budget's branch leaves it. The state is the trunk's: the moment to save it."""

    budget: Budget


@dataclass(frozen=True, kw_only=True)
class HorizonReached(Progress):
    """A budget's branch has decayed to its end and was evaluated."""

    budget: Budget
    val_loss: float
    val_bpb: float | None
    train_loss_ema: float
    tokens_per_second: float | None = None
    """Of the whole run so far, all ranks together, without its first steps; None where it has made no others."""


@dataclass(frozen=True, kw_only=True)
class Diverged(Progress):
    """The run is over: a loss or a gradient is not finite, or the loss exploded. Nothing may be saved any more."""

    reason: str
    last_good_loss: float | None
    """Averaged training loss where it was last measured and was no worse than guessing (ln V); None if it never was."""

    def __str__(self) -> str:
        good = "" if self.last_good_loss is None else f"; last good loss {self.last_good_loss:.4f}"
        return self.reason + good


@dataclass(frozen=True, kw_only=True)
class Stopped(Progress):
    """The run was asked to end early; its state is whole and worth saving."""

    by_stop_after: bool = False
    """Whether `RunOptions.stop_after` ended it, so that it will end here again unless that is changed."""


@dataclass(frozen=True, kw_only=True)
class CoreScored(Progress):
    """The model was scored on in-context tasks (not yielded by the loop; a reader's answer to its events)."""

    result: CoreResult


@dataclass(frozen=True, kw_only=True)
class Sampled(Progress):
    """The model continued the fixed prompts (a reader's answer to the loop's events)."""

    texts: tuple[str, ...]


Event = StepDone | Evaluated | Forked | HorizonReached | Diverged | Stopped | CoreScored | Sampled
