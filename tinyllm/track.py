"""Weights & Biases as a reader of the loop's events: off, offline or online; the only file that imports wandb."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from tinyllm import storage
from tinyllm.config import TrainConfig
from tinyllm.core_tasks import CoreResult
from tinyllm.events import Diverged, Evaluated, Event, HorizonReached, StepDone
from tinyllm.options import RunOptions
from tinyllm.plan import Plan
from tinyllm.state import TrainState


class Tracker:
    """One W&B run for one run_id. `trunk/...` and `branch/<tokens>/...` are drawn over tokens.

    W&B's own step only ever rises, while a run goes back to its fork: it counts events, and is kept beside the run, so
    that a resumed run goes on where it stood.
    """

    def __init__(self, root: str, config: TrainConfig, plan: Plan, options: RunOptions, *, sweep: str | None) -> None:
        self.plan = plan
        self.best: float | None = None
        self.run: Any = None
        if options.wandb == "disabled":
            return
        try:
            import wandb
        except ImportError as error:
            raise ValueError("--wandb needs the package wandb: pip install 'tinyllm[train]'") from error
        self._counter_path = storage.join(root, "wandb.json")
        self.events = self._saved_events()
        self.run = wandb.init(
            id=config.run_id,
            name=config.run_id,
            project=options.wandb_project,
            group=sweep,
            mode=options.wandb,
            resume="allow",
            dir=storage.absolute(root) if storage.is_local(root) else None,
            config={**json.loads(config.to_json()), "plan": asdict(plan)},
        )
        self.run.define_metric("tokens")
        for prefix in ("trunk", *(f"branch/{b.tokens}" for b in plan.budgets), "val", "train", "core"):
            self.run.define_metric(f"{prefix}/*", step_metric="tokens")

    def _saved_events(self) -> int:
        if storage.exists(self._counter_path):
            return int(json.loads(storage.read_bytes(self._counter_path))["events"])
        return 0

    def event(self, event: Event, state: TrainState, *, mfu: Callable[[float | None], float | None]) -> None:
        self._log(event, self._values(event, state, mfu) if self.run is not None else {})

    def core(self, event: Event, result: CoreResult) -> None:
        """Log centred accuracies on in-context tasks, measured at an event."""
        self._log(event, {f"core/{t.label}": t.centred for t in result.tasks} | {"core/mean": result.mean})

    def _log(self, event: Event, values: dict[str, float]) -> None:
        if self.run is None or not values:
            return
        self.run.log({"tokens": event.tokens, **values}, step=self.events)
        self.events += 1
        storage.write_bytes(self._counter_path, json.dumps({"events": self.events}).encode())

    def _values(self, event: Event, state: TrainState, mfu: Callable[[float | None], float | None]) -> dict[str, float]:
        prefix = "trunk" if event.branch is None else f"branch/{event.branch.tokens}"
        speed = getattr(event, "tokens_per_second", None)
        match event:
            case StepDone(train_loss=float() as loss):
                values: dict[str, float | None] = {
                    "train/loss": loss,
                    "train/loss_ema": event.train_loss_ema,
                    "train/lr": event.lr,
                    "train/grad_norm": event.grad_norm,
                    "train/tokens": event.tokens,
                    "train/tok_per_s": speed,
                    "train/tflops": speed * self.plan.flops_per_token / 1e12 if speed else None,
                    "train/mfu": mfu(speed),
                    "train/dt": self.plan.batch_tokens / speed if speed else None,
                    "train/epoch": self._epoch(event.tokens, state),
                    "total_training_flops": event.tokens * self.plan.flops_per_token,
                    "total_training_time": state.totals.seconds,
                }
            case Evaluated() | HorizonReached():
                self.best = event.val_loss if self.best is None else min(self.best, event.val_loss)
                values = {"val/loss": event.val_loss, "val/bpb": event.val_bpb, "val/best": self.best}
            case Diverged():
                values = {"diverged": 1.0}
            case _:
                return {}
        own = {
            f"{prefix}/{name.split('/')[-1]}": v
            for name, v in values.items()
            if name.startswith(("train/loss", "val/"))
        }
        return {name: v for name, v in {**values, **own}.items() if v is not None}

    @staticmethod
    def _epoch(tokens: int, state: TrainState) -> float | None:
        corpus = state.config.corpus
        return tokens / corpus.train_tokens if corpus is not None and corpus.train_tokens else None

    def close(self) -> None:
        """Flush; also on a crash and on Ctrl-C."""
        if self.run is not None:
            self.run.finish()
            self.run = None
