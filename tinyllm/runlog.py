"""The plain log of a run: one line a log step, into a file of the run and, if wanted, to a stream as well."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from tinyllm import storage
from tinyllm.core_tasks import CoreResult
from tinyllm.events import (
    CoreScored,
    Diverged,
    Evaluated,
    Event,
    Forked,
    HorizonReached,
    Sampled,
    StepDone,
    Stopped,
)
from tinyllm.plan import Plan

LOG_NAME = "log.txt"


class RunLog:
    """Appends lines to `log.txt` of a run's directory; on remote storage, which cannot append, at every `flush`."""

    def __init__(self, root: str, echo: Callable[[str], None] | None = None) -> None:
        self.path = storage.join(root, LOG_NAME)
        self.echo = echo
        self._lines: list[str] = []
        self._earlier: bytes | None = None

    def line(self, text: str, *, echo: bool = True) -> None:
        if echo and self.echo is not None:
            self.echo(text)
        self._lines.append(f"{time.strftime('%Y-%m-%d %H:%M:%S', time.gmtime())} {text}\n")
        if storage.is_local(self.path):
            self.flush()

    def flush(self) -> None:
        if not self._lines:
            return
        new, self._lines = "".join(self._lines).encode(), []
        if storage.is_local(self.path):
            os.makedirs(os.path.dirname(self.path), exist_ok=True)
            with open(self.path, "ab") as file:
                file.write(new)
            return
        if self._earlier is None:
            self._earlier = storage.read_bytes(self.path) if storage.exists(self.path) else b""
        self._earlier += new
        storage.write_bytes(self.path, self._earlier)


def describe(event: Event, plan: Plan, mfu: float | None = None) -> str | None:
    """One line for an event; None where there is nothing to say."""
    where = f"{event.segment} step {event.step}"
    match event:
        case StepDone(train_loss=float() as loss):
            end = event.branch.steps if event.branch else plan.trunk_steps
            parts = [f"{where}/{end}", f"loss {loss:.4f}", f"mean {event.train_loss_ema:.4f}"]
            parts += [f"lr {event.lr:.3g}", f"|g| {event.grad_norm:.3g}"]
            if event.tokens_per_second:
                tflops = event.tokens_per_second * plan.flops_per_token / 1e12
                parts += [f"{event.tokens_per_second:,.0f} tok/s", f"{tflops:.3g} TFLOP/s"]
                parts += [f"MFU {mfu:.1%}"] if mfu is not None else []
                parts += [f"ETA {remaining_tokens(event, plan) / event.tokens_per_second:,.0f} s"]
            return " | ".join(parts)
        case Evaluated():
            return f"{where} | val_loss {event.val_loss:.4f}{_bpb(event.val_bpb)}"
        case HorizonReached():
            return (
                f"{where} | budget {event.budget.tokens:,} tokens | val_loss {event.val_loss:.4f}{_bpb(event.val_bpb)}"
            )
        case Forked():
            return f"{where} | leaving the trunk to decay to {event.budget.tokens:,} tokens"
        case Diverged():
            return f"{where} | DIVERGED: {event}"
        case CoreScored():
            return f"{where} | {_core(event.result)}"
        case Sampled():
            return "\n".join(f"{where} | sample: {text}" for text in event.texts)
        case Stopped():
            changed = " without --stop-after" if event.by_stop_after else ""
            return f"{where} | stopped; the same command{changed} goes on from here"
    return None


def _core(result: CoreResult) -> str:
    tasks = ", ".join(f"{t.label} {t.centred:.3f}" for t in result.tasks)
    n_examples, n_cut = (sum(getattr(t, name) for t in result.tasks) for name in ("n_examples", "n_cut"))
    cut = f" | {n_cut / n_examples:.0%} of the examples cut to the context" if n_cut else ""
    return f"mean centred accuracy {result.mean:.4f} ({tasks}){cut}"


def _bpb(value: float | None) -> str:
    return "" if value is None else f" | {value:.4f} bits per byte"


def remaining_tokens(event: StepDone, plan: Plan) -> int:
    """Tokens still to train on after an event of a run that does every budget in order."""
    branch = event.branch
    if branch is not None:
        trunk_at, here = branch.fork_step, branch.steps - event.step
        ahead = [b for b in plan.budgets if b.tokens > branch.tokens]
    else:
        trunk_at, here = event.step, 0
        ahead = [b for b in plan.budgets if b.fork_step >= event.step]
    trunk = max((b.fork_step for b in ahead), default=trunk_at) - trunk_at
    return (here + trunk + sum(b.decay_steps for b in ahead)) * plan.batch_tokens
