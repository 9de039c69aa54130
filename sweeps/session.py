"""A sweep while it runs: what Tune's scheduler tells it and asks it. Every decision is on storage before it acts."""

from __future__ import annotations

import queue
import time
import uuid
from collections.abc import Callable, Collection, Mapping
from typing import Any, Literal

from sweeps.board import FINAL, Board
from sweeps.grid import Trial
from sweeps.halving import Halving
from sweeps.ledger import Ledger
from sweeps.pace import Pace
from tinyllm import record, storage
from tinyllm.record import Status
from tinyllm.recorder import unfinished

DECISIONS_FILE = "asha.json"

Answer = Literal["go", "wait", "stop"]


class Session:
    """Decides for each trial whether it goes on, waits or ends, and records what will not be reached."""

    def __init__(
        self,
        *,
        root: str,
        name: str,
        trials: Mapping[str, Trial],
        board: Board,
        halving: Halving | None,
        ledger: Ledger,
        pace: Pace,
        slots: int,
        admits: Callable[[Collection[str]], bool],
        say: Callable[[str], None],
        refresh: Callable[[], None],
    ) -> None:
        """
        Args:
            halving: None where nobody is stopped early.
            slots: trials at once.
            admits: whether the cluster holds all of these trials at once. (Ray sees to it for one-worker trials; the
                driver of several workers starts without them.)
            say: takes a line for the person who watches.
            refresh: called often, to show them how things stand.
        """
        self.root, self.name, self.trials, self.board = root, name, trials, board
        self.halving, self.ledger, self.pace = halving, ledger, pace
        self.slots, self._admits = slots, admits
        self._devices = {run_id: resources.devices for run_id, resources in pace.resources.items()}
        self.processes = 0
        """Of trials, that were started or are to be; later trials use them again."""
        self._starting: set[str] = set()
        self._going: set[str] = set()
        self.say, self._refresh = say, refresh
        self.attempt, self._opened = uuid.uuid4().hex, time.time()
        self.closing: str | None = None
        """Why the sweep is ending early; None while it is not."""
        self.closed: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        """Gets the reason when the sweep is told to end early. (A queue, since that happens in a signal handler.)"""
        self.innocent: set[str] = set()
        """Trials that failed before they had all their tries: they get one more round."""

    def __getstate__(self) -> dict[str, Any]:
        """Empty: Tune pickles its scheduler for a restore of its own; here a restart reads records and decisions."""
        return {}

    def todo(self, *, retry_stopped: bool = False, only: Collection[str] | None = None) -> list[Trial]:
        """Trials with something left to do (`Board.left`), in order; a budget added to one that ended gets its row.

        `only`: look at no others.
        """
        self.settle()
        found = []
        for run_id, trial in self.trials.items():
            if only is not None and run_id not in only:
                continue
            self._carry_out(run_id, retry_stopped)
            if left := self.board.left(run_id, retry_stopped=retry_stopped):
                for tokens in left:
                    self.board.mark(run_id, tokens, "waiting")
                found.append(trial)
                continue
            if self.halving is not None:
                self.halving.drop(run_id)  # or its group would wait at a rung that it has not reached
            ended = {t: s for t in self.board.missing(run_id) if (s := self.board.status[run_id, t]) in FINAL}
            if len(ended) < len(self.board.missing(run_id)):
                # A budget added since then.
                tokens, status = next(iter(ended.items()))
                assert status != "waiting"
                self._miss(run_id, status, self.board.reasons.get((run_id, tokens), ""), recorded=set(ended))
        return found

    def _carry_out(self, run_id: str, retry_stopped: bool) -> None:
        """A decision of an earlier session that stopped this trial: take it back, or see that its rows are there."""
        decision = self.halving.stopped(run_id) if self.halving is not None else None
        if self.halving is None or decision is None or decision.loss is None:
            return
        if retry_stopped:
            self.halving.pardon(run_id)
            storage.write_bytes(storage.join(self.root, DECISIONS_FILE), self.halving.to_json())
        elif any(self.board.status[run_id, t] != "stopped" for t in self.board.missing(run_id)):
            # The sweep was killed between the decision and the rows, or a budget was added since.
            self._miss(run_id, "stopped", decision.reason)

    def close(self, why: str) -> None:
        """The sweep ends early: nothing new starts, what runs is to stop."""
        self.closing = why
        self.closed.put(why)

    def finish(self) -> None:
        """Nothing runs any more. Where money ended the sweep, what is left gets its rows."""
        self.ledger.tick({})
        if self.ledger.exhausted and self.closing is not None:
            for run_id in self.trials:
                if any(self.board.status[run_id, t] == "waiting" for t in self.board.missing(run_id)):
                    self._miss(run_id, "budget", self.closing)

    # -- told ----------------------------------------------------------------------------------------------

    def tick(self, running: set[str]) -> None:
        """These trials hold a slot now."""
        self.board.running = running
        self.ledger.tick({run_id: self._devices[run_id] for run_id in running})
        if self.ledger.exhausted and self.closing is None:
            self.close(f"the limit is reached: {self.ledger} spent")
        self._refresh()

    def left(self, run_id: str) -> None:
        """It trains no more, for now or for good."""
        self._going.discard(run_id)
        self.pace.forget(run_id)

    def lost(self, run_id: str) -> None:
        """Its process died or raised."""
        self.left(run_id)
        self.ledger.release(run_id)
        if self.halving is not None:
            self.halving.drop(run_id)

    def queued(self, run_id: str) -> None:
        """It waits for a slot, at first or again."""
        if self.halving is not None:
            self.halving.readmit(run_id)

    def reported(self, run_id: str, result: Mapping[str, Any]) -> None:
        """A report of `sweeps.family.Family`; told twice, it counts once."""
        trial = self.trials[run_id]
        self.ledger.release(run_id)
        if result.get("val_loss") is None:
            # A budget may have been recorded by a process that died before it could say so.
            self._catch_up(run_id)
        if result.get("diverged"):
            for tokens in self.board.missing(run_id):
                self.board.mark(run_id, tokens, "diverged", reason=result["reason"])
                if self.halving is not None:
                    self.halving.report(run_id, tokens, None)
            self.say(f"{describe(trial)}: diverged: {result['reason']}")
        elif result.get("failed"):
            self.failed(run_id, result["reason"])
        elif (loss := result.get("val_loss")) is not None:
            tokens = int(result["planned_tokens"])
            self.pace.ended(
                run_id,
                time.monotonic(),
                group_start=result.get("group_start_seconds", 0.0),
                tokens_per_second=result.get("tokens_per_second"),
            )
            if self.board.missing(run_id)[:1] < [tokens]:
                self._catch_up(run_id)
            self._reached(run_id, tokens, loss)
        elif (startup := result.get("startup_seconds")) is not None:
            self.ledger.charge(startup * self._devices[run_id])
            self.pace.started(startup, new_process=result["new_process"])
            self._starting.add(run_id)

    def _reached(self, run_id: str, tokens: int, loss: float) -> None:
        if self.board.status[run_id, tokens] == "done":
            return
        self.board.mark(run_id, tokens, "done", loss)
        self.say(f"{describe(self.trials[run_id])}: {tokens:,} tokens, val_loss {loss:.4f}")
        if self.halving is not None:
            self.halving.report(run_id, tokens, loss)

    def _catch_up(self, run_id: str) -> None:
        """Learn what is on record of a trial."""
        for row in record.read(self.root, run_id):
            if row.key in self.board.status and row.val_loss is not None:
                self._reached(run_id, row.planned_tokens, row.val_loss)

    def failed(self, run_id: str, reason: str, *, innocent: bool = False) -> None:
        """It failed for good, or (`innocent`) only because of what its actor did before."""
        self.lost(run_id)
        self.say(f"{describe(self.trials[run_id])}: failed: {reason}")
        rows = (r for r in record.read(self.root, run_id) if r.status == "failed" and r.finished_at >= self._opened)
        known = {r.planned_tokens for r in rows if r.reason == reason}
        if innocent:
            self.innocent.add(run_id)
        self._miss(run_id, "failed", reason, recorded=known)

    # -- asked ---------------------------------------------------------------------------------------------

    def settle(self) -> None:
        """Take the decisions that are due and persist them."""
        if self.halving is None or self.closing is not None:
            return
        new = self.halving.settle()
        if not new:
            return
        storage.write_bytes(storage.join(self.root, DECISIONS_FILE), self.halving.to_json())
        for decision in new:
            # A trial without a loss diverged, and is on record as that.
            if not decision.keep and decision.loss is not None and self.board.missing(decision.run_id):
                self.say(f"{describe(self.trials[decision.run_id])}: stopped, {decision.reason}")
                self._miss(decision.run_id, "stopped", decision.reason)

    def admitted(self, run_id: str) -> Answer:
        """Whether a trial may wait for a slot: where the limit does not hold its start-up, none is spent on it."""
        trial = self.trials[run_id]
        rung = len(trial.plan.budgets) - len(self.board.missing(run_id))
        new_process = self.processes < self.slots
        seconds = self.pace.start_seconds(trial, new_process=new_process)
        seconds += self.pace.device_seconds(trial, rung, starts=True)
        answer = self.ledger.ask(run_id, seconds)
        if answer == "stop":
            self._over(run_id, seconds)
        elif answer == "go":
            self.processes += new_process
        return answer

    def judged(self, run_id: str, rung: int) -> Answer:
        """Whether a trial that has `rung` budgets behind it is good enough to go on, and there is room for it."""
        if self.closing is not None:
            return "stop"
        self.settle()
        if rung > 0 and self.halving is not None:
            verdict = self.halving.verdict(run_id, self.trials[run_id].plan.budgets[rung - 1].tokens)
            if not verdict:
                return "wait" if verdict is None else "stop"
        others = self._going - {run_id}
        return "wait" if others and not self._admits(others | {run_id}) else "go"

    def answer(self, run_id: str, rung: int) -> Answer:
        """The same for a trial that holds a slot and is to go on at once: it must be within the limit as well."""
        answer = self.judged(run_id, rung)
        if answer != "go":
            self.left(run_id)
            return answer
        trial = self.trials[run_id]
        starts = run_id in self._starting
        seconds = self.pace.device_seconds(trial, rung, starts=starts)
        if not self.ledger.reserve(run_id, seconds):
            self._over(run_id, seconds)
            return "stop"
        self._starting.discard(run_id)
        self.pace.began(trial, rung, time.monotonic(), starts=starts)
        self._going.add(run_id)
        return "go"

    def _over(self, run_id: str, seconds: float) -> None:
        """What is next of a trial does not fit under the limit."""
        reason = f"its next {seconds / 3600:.3g} device-hours do not fit under the limit: {self.ledger} spent"
        self.say(f"{describe(self.trials[run_id])}: {reason}")
        self.lost(run_id)
        self._miss(run_id, "budget", reason)

    def _miss(self, run_id: str, status: Status, reason: str, recorded: set[int] | None = None) -> None:
        """Rows for the budgets of a trial that will not be reached; those `recorded` have theirs."""
        trial = self.trials[run_id]
        missing = self.board.missing(run_id)
        rows = unfinished(
            trial.config,
            trial.plan,
            [b for b in trial.plan.budgets if b.tokens in missing and b.tokens not in (recorded or ())],
            status=status,
            reason=reason,
            sweep=self.name,
            attempt=self.attempt,
        )
        if rows:
            record.append(self.root, rows)
        for tokens in missing:
            self.board.mark(run_id, tokens, status, reason=reason)


def describe(trial: Trial) -> str:
    """A trial in a line for people."""
    return f"d{trial.depth} {trial.setting}"
