"""A trial as Ray Tune sees it: an actor that trains one trunk after another, one budget a `step()`.

Everything a trial knows is in its own directory on storage (`tinyllm.worker.run`), so that a pause needs no checkpoint
of Tune's, and a trial goes on in whichever actor it finds itself.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import psutil  # type: ignore[import-untyped]
import ray.tune

from sweeps import bell
from sweeps.local_loop import LocalLoop
from sweeps.loop import Ended, Loop, Report
from sweeps.reasons import reason_of
from sweeps.resources import Resources
from tinyllm.plan import plan
from tinyllm.recorder import reached_budgets
from tinyllm.worker import Job

STOP_TIMEOUT_S = 30.0


@dataclass(frozen=True, kw_only=True)
class Assignment:
    """A trial's job and what it may use."""

    job: Job
    resources: Resources


class Family(ray.tune.Trainable):
    """Reports, one a `step()`:

    - at first where the trial stands: the `rung` it has behind it, `startup_seconds` and whether they were those of a
      `new_process`; nothing is trained yet, so that the sweep can hold it, or refuse it;
    - a budget reached: `rung` (1 = the smallest), `planned_tokens`, `val_loss` and the other `metrics`; `done` with the
      last;
    - `diverged`, `interrupted` or `failed` (which Ray Train has retried already), with `done`.
    """

    def setup(
        self,
        config: dict[str, Any],
        *,
        jobs: Mapping[str, Assignment],
        sweep_bell: Any,
        stop_timeout_s: float = STOP_TIMEOUT_S,
    ) -> None:
        self._jobs, self._bell, self._stop_timeout_s = jobs, sweep_bell, stop_timeout_s
        self._closing = bell.listen(sweep_bell)
        self._begin(config["run_id"], since=psutil.Process().create_time(), new_process=True)

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        since = time.time()
        if not self._end():
            os._exit(1)  # a loop that can't be stopped must not share the process with the next one
        self._begin(new_config["run_id"], since=since, new_process=False)
        return True

    def _begin(self, run_id: str, *, since: float, new_process: bool) -> None:
        self._assignment = self._jobs[run_id]
        self._loop: Loop | None = None
        job = self._assignment.job
        self._budgets = plan(job.config).budgets
        done = reached_budgets(job.root, run_id)
        self._pending = [b for b in self._budgets if b.tokens not in done]
        self._gate: dict[str, Any] | None = {
            "rung": self._rung(self._pending[0].tokens) - 1 if self._pending else len(self._budgets),
            "startup_seconds": time.time() - since,
            "new_process": new_process,
            "planned_tokens": None,
            "val_loss": None,
            "done": not self._pending,
        }

    def step(self) -> dict[str, Any]:
        if self._gate is not None:
            gate, self._gate = self._gate, None
            return gate
        if self._loop is None:
            self._loop = self._start()
        else:
            self._loop.go_on()
        report = self._loop.next_report()
        if isinstance(report, Ended):
            if report.retried and report.error is not None:
                return {"failed": True, "reason": reason_of(report.error), "done": True}
            _raise(report)
            return {"interrupted": True, "done": True}
        tokens = report.get("planned_tokens")
        last = tokens in (None, self._pending[-1].tokens)
        if last:
            self._loop.go_on()
            _raise(self._loop.next_report())
        if tokens is None:
            return {**report, "done": True}
        # TensorBoard's axis, by Tune's name for it: tokens.
        return {**report, "rung": self._rung(tokens), "timesteps_total": tokens, "done": last}

    def _start(self) -> Loop:
        job, resources = self._assignment.job, self._assignment.resources
        if resources.workers == 1:
            return LocalLoop(job, self._closing)
        from sweeps.group_loop import GroupLoop  # seconds of imports that one-worker trials need not wait for

        return GroupLoop(job, resources, self._bell)

    def _rung(self, tokens: int) -> int:
        return 1 + [b.tokens for b in self._budgets].index(tokens)

    def save_checkpoint(self, checkpoint_dir: str) -> dict[str, Any]:
        """Tune calls this to pause the trial: the loop ends here, its state is in the trial's own directory."""
        if not self._end():
            raise TimeoutError(f"the loop did not stop within {self._stop_timeout_s:g} s, so the trial can't be paused")
        return {}

    def load_checkpoint(self, checkpoint: dict[str, Any] | None) -> None:
        """Nothing: the loop finds its state by itself."""

    def cleanup(self) -> None:
        self._end()

    def _end(self) -> bool:
        """Stop the loop; whether it ended in time."""
        loop, self._loop = self._loop, None
        return loop is None or loop.stop(self._stop_timeout_s)


def _raise(report: Report) -> None:
    """Raise what ended the loop; nothing when it ended well."""
    assert isinstance(report, Ended), report
    if report.error is not None:
        raise report.error
