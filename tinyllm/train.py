"""The training loop: a generator of events. Console, W&B, checkpoints and Ray reports are readers of it.

A run is a trunk at constant LR with a branch for each token budget. At a fork the loop keeps the trunk's state, decays
to the budget, evaluates, and goes back to the trunk as it was.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Generator, Iterator, Set
from contextlib import closing, nullcontext
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from tinyllm import ranks
from tinyllm.data import Feed, TokenSource
from tinyllm.evaluate import Evaluation, StopRequestedError, evaluate
from tinyllm.events import Diverged, Evaluated, Event, Forked, HorizonReached, StepDone, Stopped
from tinyllm.optim import set_schedule
from tinyllm.options import RunOptions
from tinyllm.read_ahead import ReadAhead
from tinyllm.record import CurvePoint
from tinyllm.state import TrainState

Batches = ReadAhead[tuple[np.ndarray, np.ndarray]]  # positions (R,) and rows (R, T + 1) of a rank's share

SKIPS_ON_DEVICE = ("cuda",)  # where asking whether a gradient is finite would wait for the device
UNTIMED_STEPS = 2  # the first steps of a process pay for compilation and cold caches
CHECK_EVERY = 10  # steps between looks at the loss where there is no log
EXPLODED_OVER_UNIFORM = 1.0  # nats above ln V
EXPLODED_OVER_MINIMUM = 1.0  # nats above the run's own minimum ...
EXPLODED_STEPS = 50  # ... for this many steps


@dataclass(kw_only=True)
class _Measured:
    """What a step left on the device."""

    loss: Tensor
    """Loss of this rank's share, scaled so that the mean over ranks is the batch's mean."""
    grad_norm: Tensor


def train(
    state: TrainState,
    corpus: TokenSource,
    options: RunOptions,
    *,
    device_rows: int,
    done: Set[int] = frozenset(),
    should_stop: Callable[[], bool] = lambda: False,
    open_feed: Callable[..., Batches] = Feed,
) -> Iterator[Event]:
    """Train from where `state` stands through every budget of its plan that is not `done`.

    Args:
        state: built afresh, or with a checkpoint loaded; advanced in place. Between two events it is whole.
        device_rows: rows a rank takes at once; a divisor of its share of the batch.
        done: planned tokens of the budgets whose branches are not needed again.
        should_stop: asked between micro-batches (between steps where there are several ranks, acted on one step later).
        open_feed: called with the arguments of `tinyllm.data.Feed`, for another way to read the same stream.

    Yields:
        StepDone after every optimizer step, Evaluated, Forked at every fork, HorizonReached at every budget; at
        last Diverged or Stopped where the run ends early.
    """
    loop = _Loop(state, corpus, options, device_rows, should_stop, open_feed)
    with closing(loop):
        try:
            yield from loop.run(done)
        except StopRequestedError:
            yield loop.stopped()


class _Loop:
    def __init__(
        self,
        state: TrainState,
        corpus: TokenSource,
        options: RunOptions,
        device_rows: int,
        should_stop: Callable[[], bool],
        open_feed: Callable[..., Batches],
    ) -> None:
        self.state, self.corpus, self.options, self.device_rows = state, corpus, options, device_rows
        self.config, self.plan = state.config, state.plan
        self.alone = ranks.world_size() == 1
        self.should_stop = should_stop
        self.vote = ranks.Vote(state.device)
        self.open_feed = open_feed
        self.feed: Batches | None = None
        self.steps_here = 0  # optimizer steps of this process
        self.log_every = options.log_every or CHECK_EVERY
        self.ddp: DistributedDataParallel | None = None
        self.model = self._wrapped()
        # First step whose gradient was not finite, -1 for none; on the device, read at log steps.
        self.bad_step = torch.full((), -1, dtype=torch.int64, device=state.device)
        self._restart_clock()

    def close(self) -> None:
        if self.feed is not None:
            self.feed.close()
            self.feed = None

    def _wrapped(self) -> torch.nn.Module:
        model = self.state.model
        on_cuda = self.state.device.type == "cuda"
        if self.options.compile if self.options.compile is not None else on_cuda:
            model.compile_training()
        if self.alone:
            return model
        self.ddp = DistributedDataParallel(
            model,
            device_ids=[self.state.device.index] if on_cuda else None,
            gradient_as_bucket_view=True,
            # DDP re-sorts its buckets after the first step, which changes the order of sums: a resumed run would
            # differ from one that was not stopped. Searching for unused parameters keeps the first order.
            find_unused_parameters=not on_cuda or self.options.deterministic,
        )
        if on_cuda and self.config.precision == "bf16":
            from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook

            self.ddp.register_comm_hook(None, bf16_compress_hook)
        return self.ddp

    # -- the path ------------------------------------------------------------------------------------------

    def run(self, done: Set[int]) -> Iterator[Event]:
        state = self.state
        pending = [b for b in self.plan.budgets if b.tokens not in done]
        if pending and self._evaluation_missing():
            yield from self._evaluated()
        for budget in pending:
            if state.budget is None:
                if (yield from self._advance(budget.fork_step)):
                    return
                yield Forked(**state.position, budget=budget)
                state.enter_branch(budget)
            assert state.budget == budget, f"resumed in the branch of {state.budget}, but {budget} comes next"
            if (yield from self._advance(budget.steps)):
                return
            measured = self._evaluate()
            yield HorizonReached(
                **state.position,
                budget=budget,
                val_loss=measured.val_loss,
                val_bpb=measured.val_bpb,
                train_loss_ema=state.debias(state.mean_ema().item()),
                tokens_per_second=state.totals.tokens_per_second,
            )
            state.rewind()
            self.close()  # the feed stands at the branch's end

    def _advance(self, until: int) -> Generator[Event, None, bool]:
        """Step to `until`; True when the run is over early."""
        state, options = self.state, self.options
        self._restart_clock()
        while state.step < until:
            if self._reached_stop_after():
                raise StopRequestedError
            lr = set_schedule(state.optimizers, self.config, self.plan, state.budget, state.step)
            measured = self._step()
            state.step += 1
            self.steps_here += 1
            last = state.step == until
            # What is logged and evaluated on the trunk must not depend on where its forks are: another budget
            # would change the record of this one.
            log = state.step % self.log_every == 0 or state.at_branch_end
            readers_due = options.due(state.step)
            evaluate_now = bool(options.eval_every) and state.step % options.eval_every == 0 and not state.at_branch_end
            if self.steps_here == UNTIMED_STEPS:
                if state.device.type == "cuda":
                    torch.cuda.synchronize()  # once: what the device still has to do of these steps is not timed
                self._restart_clock()
            stop = not self.alone and self.vote(self.should_stop())
            if not (log or readers_due or last):
                yield StepDone(**state.position, lr=lr)
                if stop:
                    raise StopRequestedError
                continue
            event = self._measure(measured, lr, log=log)
            if (reason := self._diverged(event, log=log)) is not None:
                yield Diverged(**state.position, reason=reason, last_good_loss=state.totals.last_good_loss)
                return True
            yield event
            if evaluate_now:
                yield from self._evaluated()
            if stop:
                raise StopRequestedError
            self._restart_clock()
        return False

    # -- one step ------------------------------------------------------------------------------------------

    def _step(self) -> _Measured:
        """One optimizer step over the next global batch. Leaves the state untouched when it is asked to stop."""
        state = self.state
        positions, rows = self._next_batch()
        ids = torch.from_numpy(rows.astype(np.int64))
        if state.device.type == "cuda":
            ids = ids.pin_memory().to(state.device, non_blocking=True)
        else:
            ids = ids.to(state.device)
        chunks = ids.split(self.device_rows)
        total = torch.zeros((), dtype=torch.float32, device=state.device)
        # DDP averages gradients over ranks; the loss is a sum over this rank divided by the whole batch.
        scale = ranks.world_size() / self.plan.batch_tokens
        for i, chunk in enumerate(chunks):
            if self.alone and self.should_stop():
                state.model.zero_grad(set_to_none=True)
                self.close()  # the batch was taken from the feed but not learned from
                raise StopRequestedError
            last = i == len(chunks) - 1
            with self.ddp.no_sync() if self.ddp is not None and not last else nullcontext():
                with torch.autocast(state.device.type, torch.bfloat16, enabled=self.config.precision == "bf16"):
                    loss = self.model(chunk[:, :-1], chunk[:, 1:]) * scale
                loss.backward()
            total += loss.detach()
        grad_norm = self._clip()
        self._update(grad_norm)
        state.model.zero_grad(set_to_none=True)
        state.digest.add(positions, rows)
        state.update_ema(total)
        return _Measured(loss=total, grad_norm=grad_norm)

    def _clip(self) -> Tensor:
        limit = self.config.optim.grad_clip or math.inf
        return torch.nn.utils.clip_grad_norm_(self.state.model.parameters(), limit)

    def _update(self, grad_norm: Tensor) -> None:
        """Take the optimizer step unless the gradient is not finite; latch the first step where it was not."""
        finite = torch.isfinite(grad_norm)
        first = (self.bad_step < 0) & ~finite
        self.bad_step = torch.where(first, self.state.step, self.bad_step)
        if self.state.device.type in SKIPS_ON_DEVICE:
            # No sync: the optimizers themselves skip on the device (fused AdamW's and Muon's `found_inf`).
            for optimizer in self.state.optimizers:
                optimizer.found_inf = (~finite).float()  # type: ignore[attr-defined]
                optimizer.step()
        elif finite:
            for optimizer in self.state.optimizers:
                optimizer.step()

    def _next_batch(self) -> tuple[np.ndarray, np.ndarray]:
        if self.feed is None:
            self.feed = self.open_feed(
                self.corpus,
                seed=self.config.seed,
                batch_rows=self.plan.batch_rows,
                rank=ranks.rank(),
                world_size=ranks.world_size(),
                start=self.state.step * self.plan.batch_rows,
            )
        return next(self.feed)

    # -- measuring -----------------------------------------------------------------------------------------

    def _restart_clock(self) -> None:
        self.clock, self.clock_step = time.perf_counter(), self.steps_here

    def _measure(self, measured: _Measured, lr: float, *, log: bool) -> StepDone:
        """The measurements of the step just taken, the same on every rank; waits for the device."""
        state = self.state
        sums = ranks.sum_over_ranks(torch.stack((measured.loss, state.loss_ema)))
        loss, ema = (sums / ranks.world_size()).tolist()
        elapsed, steps = time.perf_counter() - self.clock, self.steps_here - self.clock_step
        timed = self.steps_here > UNTIMED_STEPS and steps > 0
        speed = steps * self.plan.batch_tokens / elapsed if timed else None
        if timed:
            state.totals.seconds += elapsed
            state.totals.timed_tokens += steps * self.plan.batch_tokens
        event = StepDone(
            **state.position,
            lr=lr,
            train_loss=loss,
            train_loss_ema=state.debias(ema),
            grad_norm=measured.grad_norm.item(),
            tokens_per_second=speed,
        )
        if log and math.isfinite(loss):
            self._add_to_curve(train_loss=loss, lr=lr, grad_norm=event.grad_norm)
        return event

    def _add_to_curve(self, **values: float | None) -> None:
        """Add to the point of this step, or start one."""
        curve, state = self.state.totals.curve, self.state
        if curve and (curve[-1].segment, curve[-1].step) == (state.segment, state.step):
            curve[-1] = replace(curve[-1], **values)  # type: ignore[arg-type]
            return
        empty: dict[str, float | None] = dict.fromkeys(("train_loss", "val_loss", "lr", "grad_norm"))
        curve.append(CurvePoint(segment=state.segment, step=state.step, tokens=state.tokens, **{**empty, **values}))

    def stopped(self) -> Stopped | Diverged:
        """How a run ends that was asked to; not in a state to be saved where a step since the last look was bad."""
        if (reason := self._not_finite()) is not None:
            return Diverged(**self.state.position, reason=reason, last_good_loss=self.state.totals.last_good_loss)
        return Stopped(**self.state.position, by_stop_after=self._reached_stop_after())

    def _reached_stop_after(self) -> bool:
        after = self.options.stop_after
        return after is not None and self.state.budget is None and self.state.step >= after

    def _not_finite(self) -> str | None:
        bad_step = int(self.bad_step.item())
        return f"the gradient was not finite at step {bad_step + 1}" if bad_step >= 0 else None

    def _diverged(self, event: StepDone, *, log: bool) -> str | None:
        """Why the run is over, or None."""
        totals, step = self.state.totals, event.step
        if (reason := self._not_finite()) is not None:
            return reason
        ema = event.train_loss_ema
        assert ema is not None
        if not math.isfinite(ema):
            return f"the loss is {ema} at step {step}"
        if not log:
            return None
        uniform = math.log(self.config.model.vocab)
        if step > self.plan.warmup_steps and ema > uniform + EXPLODED_OVER_UNIFORM:
            return f"the averaged loss {ema:.3f} at step {step} is worse than guessing (ln V = {uniform:.3f})"
        totals.lowest_ema = ema if totals.lowest_ema is None else min(totals.lowest_ema, ema)
        if ema <= totals.lowest_ema + EXPLODED_OVER_MINIMUM:
            totals.high_since = None
        elif totals.high_since is None:
            totals.high_since = step
        elif step - totals.high_since >= EXPLODED_STEPS:
            return (
                f"the averaged loss {ema:.3f} at step {step} has been {EXPLODED_OVER_MINIMUM} above its minimum "
                f"{totals.lowest_ema:.3f} since step {totals.high_since}"
            )
        if ema <= uniform:
            totals.last_good_loss = ema
        return None

    def _evaluate(self) -> Evaluation:
        started = time.perf_counter()
        measured = evaluate(
            self.state.model,
            self.corpus,
            eval_tokens=self.config.data.eval_tokens,
            device_rows=self.device_rows,
            precision=self.config.precision,
            should_stop=self.should_stop if self.alone else lambda: False,
        )
        self.state.totals.eval_seconds += time.perf_counter() - started
        self._add_to_curve(val_loss=measured.val_loss)
        return measured

    def _evaluation_missing(self) -> bool:
        """Whether the evaluation due at the position we start from was not made: before step 1, or killed in it."""
        state, every = self.state, self.options.eval_every
        if not every or state.step % every or state.at_branch_end:
            return False
        here = (state.segment, state.step)
        return not any((p.segment, p.step) == here and p.val_loss is not None for p in state.totals.curve)

    def _evaluated(self) -> Iterator[Event]:
        measured = self._evaluate()
        yield Evaluated(**self.state.position, val_loss=measured.val_loss, val_bpb=measured.val_bpb)
        self._restart_clock()
