"""The only mutable object of the loop: model, optimizers and position; it forks and rewinds as a whole."""

from __future__ import annotations

import copy
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor

from tinyllm import ranks
from tinyllm.config import TrainConfig
from tinyllm.events import TRUNK, segment_name
from tinyllm.model import build_model
from tinyllm.optim import build_optimizers
from tinyllm.order import TokenDigest
from tinyllm.plan import Budget, Plan
from tinyllm.record import CurvePoint

EMA_DECAY = 0.95


@dataclass(kw_only=True)
class Totals:
    """What is counted along a path; on rewinding to a fork it goes back to the fork's counts."""

    seconds: float = 0.0
    """Training time, without evaluation, saving and the first steps of each process."""
    timed_tokens: int = 0
    """Tokens trained on in `seconds`, over all ranks."""
    eval_seconds: float = 0.0
    curve: list[CurvePoint] = field(default_factory=list)
    last_good_loss: float | None = None
    """The averaged loss at the last look, where it was no worse than guessing; kept here so that a rerun from a
    checkpoint ends with the same words."""
    lowest_ema: float | None = None
    high_since: int | None = None
    """Step since which the averaged loss has been far above its minimum."""

    @property
    def tokens_per_second(self) -> float | None:
        """Over all ranks; None before anything was timed."""
        return self.timed_tokens / self.seconds if self.seconds else None


@dataclass(kw_only=True)
class Told:
    """What was told to Weights & Biases, over all segments: going back to a fork does not take it back."""

    events: int = 0
    best_val_loss: float | None = None
    recent: list[tuple[float, int, dict[str, float]]] = field(default_factory=list)
    """Unix time, step and values of what W&B may not have written down yet."""


class TrainState:
    """Model, optimizers and position of one rank.

    `budget` is None on the trunk, else the budget whose branch is being trained; `step` counts the optimizer steps
    taken along the path. Apart from the digest of tokens seen, of which each rank holds its own share, all ranks hold
    the same.
    """

    def __init__(self, config: TrainConfig, plan: Plan, device: torch.device) -> None:
        self.config, self.plan, self.device = config, plan, device
        self.model = build_model(config.model, config.seed, device)
        self.optimizers = build_optimizers(self.model, config, plan)
        self.budget: Budget | None = None
        self.step = 0
        self.digest = TokenDigest()
        self.totals = Totals()
        self.told = Told()
        # On the device, read only at log steps: a sync every step would leave a GPU waiting.
        self.loss_ema = torch.zeros((), dtype=torch.float32, device=device)
        self.fork: dict[str, Any] | None = None
        """The trunk's state where the current branch left it."""

    @property
    def segment(self) -> str:
        return segment_name(self.budget)

    @property
    def tokens(self) -> int:
        return self.step * self.plan.batch_tokens

    @property
    def at_branch_end(self) -> bool:
        """Whether the branch has taken its last step: its evaluation follows."""
        return self.budget is not None and self.step == self.budget.steps

    @property
    def position(self) -> dict[str, Any]:
        """Keyword arguments of every event."""
        return {"branch": self.budget, "step": self.step, "tokens": self.tokens}

    def update_ema(self, loss: Tensor) -> None:
        self.loss_ema.lerp_(loss.detach().to(self.loss_ema), 1 - EMA_DECAY)

    def debias(self, ema: float) -> float:
        """The moving average as if it had not started from zero (Kingma & Ba 2015)."""
        return ema / (1 - EMA_DECAY**self.step)

    def enter_branch(self, budget: Budget) -> None:
        """Leave the trunk for a budget's branch, remembering the trunk."""
        assert self.budget is None and self.step == budget.fork_step
        self.fork = copy.deepcopy(_to_cpu(self.state_dict()))
        self.budget = budget

    def rewind(self) -> None:
        """Back to the trunk as it was at the fork."""
        assert self.fork is not None
        fork, self.fork, told = self.fork, None, self.told
        self.load_state_dict(fork)
        self.told = told

    def mean_ema(self) -> Tensor:
        """The moving average of the loss over all ranks, (), not yet debiased. Every rank must call it."""
        return ranks.sum_over_ranks(self.loss_ema.clone()) / ranks.world_size()

    def shared_state_dict(self) -> dict[str, Any]:
        """`state_dict` with what the ranks hold apart put together, for a checkpoint. Every rank must call it."""
        state = self.state_dict()
        # Each rank's own average, not their mean: a resumed group rounds as one that was not stopped.
        state["loss_ema"] = ranks.gather(self.loss_ema)
        state["position"] = {**state["position"], "digest": self.shared_digest()}
        return state

    def shared_digest(self) -> int:
        """Digest of the tokens that all ranks have seen. Every rank must call it."""
        return ranks.sum_ints(self.digest.value) % 2**128

    @staticmethod
    def own_share(shared: dict[str, Any]) -> dict[str, Any]:
        """This rank's part of a `shared_state_dict`, for any number of ranks: the first has the whole digest."""
        averages = shared["loss_ema"]
        own = averages[ranks.rank()] if len(averages) == ranks.world_size() else averages.mean()
        position = shared["position"]
        digest = position["digest"] if ranks.rank() == 0 else 0
        return {**shared, "loss_ema": own, "position": {**position, "digest": digest}}

    def state_dict(self) -> dict[str, Any]:
        """Everything that decides what comes next. Tensors are the live ones: copy them before the next step."""
        return {
            "model": self.model.state_dict(),
            "optimizers": [o.state_dict() for o in self.optimizers],
            "rng": torch.get_rng_state(),
            "loss_ema": self.loss_ema,
            "position": {
                "segment": self.segment,
                "budget": self.budget.tokens if self.budget else None,
                "step": self.step,
                "tokens": self.tokens,
                "digest": self.digest.value,
            },
            "totals": asdict(self.totals),
            "told": asdict(self.told),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Inverse of `state_dict`. Takes over the optimizers' tensors where they are on this device."""
        self.model.load_state_dict(state["model"])
        for optimizer, saved in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        torch.set_rng_state(state["rng"])
        self.loss_ema.copy_(state["loss_ema"])
        position, totals = state["position"], state["totals"]
        self.budget = None if position["segment"] == TRUNK else self.plan.budget(position["budget"])
        self.step = position["step"]
        self.digest = TokenDigest(position["digest"])
        self.told = Told(**state["told"])
        curve = [p if isinstance(p, CurvePoint) else CurvePoint(**p) for p in totals["curve"]]
        self.totals = Totals(**{**totals, "curve": curve})


def _to_cpu(value: Any) -> Any:
    """The same structure with every tensor on the CPU: a fork's copy must not take a GPU's memory."""
    if isinstance(value, Tensor):
        return value.detach().cpu()
    if isinstance(value, dict):
        return {k: _to_cpu(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_to_cpu(v) for v in value]
    return value
