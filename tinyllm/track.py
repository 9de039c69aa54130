"""Weights & Biases as a reader of the loop's events: off, offline or online; the only file that imports wandb."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from tinyllm import storage
from tinyllm.events import CoreScored, Diverged, Evaluated, Event, HorizonReached, Sampled, StepDone
from tinyllm.options import RunOptions
from tinyllm.state import TrainState

# W&B writes what it was told to its file every 15 s, and sends it about as often.
UNWRITTEN_S = 60.0


class Tracker:
    """One W&B run for one run_id. `trunk/...` and `branch/<tokens>/...` are drawn over tokens.

    W&B's own step only ever rises, while a run goes back to its forks: it counts the events told. The count is part of
    every checkpoint, so that a resumed run tells again what it does again under the same steps, which W&B has already.
    W&B keeps what it is told in memory for a while and loses it when it is killed: the checkpoint holds that as well.
    """

    def __init__(
        self,
        root: str,
        state: TrainState,
        options: RunOptions,
        *,
        sweep: str | None,
        mfu: Callable[[float | None], float | None],
    ) -> None:
        self.state, self.plan, self.mfu = state, state.plan, mfu
        self.run: Any = None
        if options.wandb == "disabled":
            return
        try:
            import wandb
        except ImportError as error:
            raise ValueError("--wandb needs the package wandb: pip install 'tinyllm[train]'") from error
        config = state.config
        self.run = wandb.init(
            id=config.run_id,
            name=config.run_id,
            project=options.wandb_project,
            group=sweep,
            mode=options.wandb,
            resume="allow",
            dir=storage.absolute(root) if storage.is_local(root) else None,
            config={**json.loads(config.to_json()), "plan": asdict(self.plan)},
        )
        self.table = wandb.Table
        self.run.define_metric("tokens")
        for prefix in ("trunk", *(f"branch/{b.tokens}" for b in self.plan.budgets), "val", "train", "core"):
            self.run.define_metric(f"{prefix}/*", step_metric="tokens")
        recent, state.told.recent = state.told.recent, []
        for _, step, values in recent:
            self._log(values, step)

    def read(self, event: Event) -> None:
        values = self._values(event) if self.run is not None else {}
        if not values:
            return
        told = self.state.told
        # An answer belongs to the event it answers, which a checkpoint of that step counts already.
        step = max(0, told.events - 1) if isinstance(event, CoreScored | Sampled) else told.events
        self._log({"tokens": event.tokens, **values}, step)
        told.events = step + 1

    def _log(self, values: dict[str, Any], step: int) -> None:
        self.run.log(values, step=step)
        now, told = time.time(), self.state.told
        told.recent = [entry for entry in told.recent if now - entry[0] < UNWRITTEN_S]
        if "samples" not in values:  # a table, which a checkpoint does not hold
            told.recent.append((now, step, values))

    def _values(self, event: Event) -> dict[str, Any]:
        prefix = "trunk" if event.branch is None else f"branch/{event.branch.tokens}"
        speed = getattr(event, "tokens_per_second", None)
        match event:
            case StepDone(train_loss=float() as loss):
                values: dict[str, Any] = {
                    "train/loss": loss,
                    "train/loss_ema": event.train_loss_ema,
                    "train/lr": event.lr,
                    "train/grad_norm": event.grad_norm,
                    "train/tokens": event.tokens,
                    "train/tok_per_s": speed,
                    "train/tflops": speed * self.plan.flops_per_token / 1e12 if speed else None,
                    "train/mfu": self.mfu(speed),
                    "train/dt": self.plan.batch_tokens / speed if speed else None,
                    "train/epoch": self._epoch(event.tokens),
                    "total_training_flops": event.tokens * self.plan.flops_per_token,
                    "total_training_time": self.state.totals.seconds,
                }
            case Evaluated() | HorizonReached():
                told = self.state.told
                told.best_val_loss = min(event.val_loss, told.best_val_loss or event.val_loss)
                values = {"val/loss": event.val_loss, "val/bpb": event.val_bpb, "val/best": told.best_val_loss}
            case Diverged():
                values = {"diverged": 1.0}
            case CoreScored():
                values = {f"core/{t.label}": t.centred for t in event.result.tasks} | {"core/mean": event.result.mean}
            case Sampled():
                return {"samples": self.table(columns=["text"], data=[[text] for text in event.texts])}
            case _:
                return {}
        own = {
            f"{prefix}/{name.replace('/', '_')}": v
            for name, v in values.items()
            if name in ("train/loss", "train/loss_ema", "val/loss", "val/bpb")
        }
        return {name: v for name, v in {**values, **own}.items() if v is not None}

    def _epoch(self, tokens: int) -> float | None:
        corpus = self.state.config.corpus
        return tokens / corpus.train_tokens if corpus is not None and corpus.train_tokens else None

    def close(self) -> None:
        """Flush; also on a crash and on Ctrl-C."""
        if self.run is not None:
            self.run.finish()
            self.run = None
