"""A trial as Ray Tune sees it: an actor that trains one trunk after another, one budget a `step()`.

Everything a trial knows is in its own directory on storage (`tinyllm.worker.run`), so that a pause needs no checkpoint
of Tune's, and a trial goes on in whichever actor it finds itself.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import Any

import psutil  # type: ignore[import-untyped]
import ray.tune

from sweeps import bell
from sweeps.loop import Ended, LocalLoop
from tinyllm.events import Diverged, HorizonReached
from tinyllm.plan import Budget, plan
from tinyllm.recorder import reached_budgets
from tinyllm.worker import Job, metrics

STOP_TIMEOUT_S = 30.0


class Family(ray.tune.Trainable):
    """Reports, one a `step()`:

    - at first where the trial stands: the `rung` it has behind it, `startup_seconds` of its actor; nothing is trained
      yet, so that the sweep can hold it, or refuse it;
    - a budget reached: `rung` (1 = the smallest), `planned_tokens`, `val_loss` and the other `metrics`; `done` with the
      last;
    - `diverged` or `interrupted`, with `done`.
    """

    def setup(self, config: dict[str, Any], *, jobs: Mapping[str, Job], sweep_bell: Any) -> None:
        self._jobs = jobs
        self._closing = bell.listen(sweep_bell)
        self._begin(config["run_id"], since=psutil.Process().create_time())

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        since = time.time()
        if not self._end():
            os._exit(1)  # a loop that can't be stopped must not share the process with the next one
        self._begin(new_config["run_id"], since=since)
        return True

    def _begin(self, run_id: str, *, since: float) -> None:
        self._job = self._jobs[run_id]
        self._loop: LocalLoop | None = None
        self._budgets = plan(self._job.config).budgets
        done = reached_budgets(self._job.root, run_id)
        self._pending = [b for b in self._budgets if b.tokens not in done]
        self._gate: dict[str, Any] | None = {
            "rung": self._rung(self._pending[0]) - 1 if self._pending else len(self._budgets),
            "startup_seconds": time.time() - since,
            "planned_tokens": None,
            "val_loss": None,
            "done": not self._pending,
        }

    def step(self) -> dict[str, Any]:
        if self._gate is not None:
            gate, self._gate = self._gate, None
            return gate
        if self._loop is None:
            self._loop = LocalLoop(self._job, self._closing)
        else:
            self._loop.go_on()
        report = self._loop.next_report()
        if isinstance(report, HorizonReached):
            last = report.budget == self._pending[-1]
            if last:
                self._loop.go_on()
                _raise(self._loop.next_report())
            # TensorBoard's axis, by Tune's name for it: tokens.
            return {
                **metrics(report),
                "rung": self._rung(report.budget),
                "timesteps_total": report.budget.tokens,
                "done": last,
            }
        if isinstance(report, Diverged):
            _raise(self._loop.next_report())
            return {**metrics(report), "done": True}
        _raise(report)
        return {"interrupted": True, "done": True}

    def _rung(self, budget: Budget) -> int:
        return 1 + [b.tokens for b in self._budgets].index(budget.tokens)

    def save_checkpoint(self, checkpoint_dir: str) -> dict[str, Any]:
        """Tune calls this to pause the trial: the loop ends here, its state is in the trial's own directory."""
        self._end()
        return {}

    def load_checkpoint(self, checkpoint: dict[str, Any] | None) -> None:
        """Nothing: the loop finds its state by itself."""

    def cleanup(self) -> None:
        self._end()

    def _end(self) -> bool:
        """Stop the loop; whether it ended in time."""
        loop, self._loop = self._loop, None
        return loop is None or loop.stop(STOP_TIMEOUT_S)


def _raise(report: HorizonReached | Diverged | Ended) -> None:
    """Raise what ended the loop; nothing when it ended well."""
    assert isinstance(report, Ended), report
    if report.error is not None:
        raise report.error
