"""A multi-worker trial: a TorchTrainer over a worker group with DDP, watched from the trial's actor.

Ray Train's own bridge to Tune can deadlock when a report is unread at the end of the run; here reports come by a queue,
and the trial ends by telling the group's controller, which gives back its workers and their placement group.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from typing import Any

import ray
from ray.train import UserCallback, WorkerGroupError
from ray.train.v2._internal.execution.callback import ControllerCallback  # private: the way to the controller's handle
from ray.train.v2._internal.execution.worker_group import worker_group  # private: makes the workers' placement group
from ray.util.placement_group import placement_group
from ray.util.queue import Empty, Queue

from sweeps import bell, groups
from sweeps.loop import Ended, Report
from sweeps.resources import Resources
from tinyllm.trainers import group_trainer
from tinyllm.worker import Job

_BEGUN, _END = "begun", "end"


class _Reports(UserCallback):
    """In the controller: passes on what the workers report."""

    def __init__(self, messages: Queue) -> None:
        self._messages = messages

    def after_report(self, run_context: Any, metrics: list[dict[str, Any]], checkpoint: Any) -> None:
        self._messages.put(dict(metrics[0]))


class _Introduction(ControllerCallback):
    """In the controller: sends its own handle, and gives the placement groups it makes names to be found by."""

    def __init__(self, messages: Queue, run_id: str) -> None:
        self._messages, self._run_id = messages, run_id

    def after_controller_start(self, train_run_context: Any) -> None:
        worker_group.placement_group = lambda *given, **named: placement_group(
            *given, **named, name=groups.new_name(self._run_id)
        )
        self._messages.put(ray.get_runtime_context().current_actor)


class GroupLoop:
    def __init__(self, job: Job, resources: Resources, sweep_bell: Any) -> None:
        """`sweep_bell`: heard by the workers, who then save and end (`sweeps.bell`)."""
        # Of a driver that was killed.
        groups.remove_left(job.config.run_id)
        self._messages = Queue(actor_options={"num_cpus": 0})
        self._permits = Queue(actor_options={"num_cpus": 0})
        self._reached = 0
        self._started, self._start_seconds = time.monotonic(), 0.0
        self._controller: Any = None
        self._error: BaseException | None = None
        self._trainer = group_trainer(
            job,
            n_workers=resources.workers,
            use_gpu=resources.gpus > 0,
            cpus_per_worker=resources.cpus,
            callbacks=[_Reports(self._messages), _Introduction(self._messages, job.config.run_id)],
            listen=_listener(sweep_bell, self._messages),
            halt=_halt(self._permits),
        )
        self._thread = threading.Thread(target=self._run, daemon=True, name=job.config.run_id)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._trainer.fit()
        except BaseException as caught:
            self._error = caught  # raised again by whoever takes the report
        # The queue is gone when the loop was stopped meanwhile.
        with contextlib.suppress(ray.exceptions.RayError):
            self._messages.put(_END)

    def next_report(self) -> Report:
        while True:
            message = self._messages.get()
            if isinstance(message, dict):
                self._reached = message.get("planned_tokens", 0)
                # Of the first budget; later ones need no start.
                start, self._start_seconds = self._start_seconds, 0.0
                return {**message, "group_start_seconds": start}
            if message == _BEGUN:
                if not self._reached:
                    self._start_seconds = time.monotonic() - self._started
                continue
            if message == _END:
                # Workers that died or raised are started anew by Ray Train itself.
                return Ended(error=self._error, retried=isinstance(self._error, WorkerGroupError))
            self._controller = message

    def go_on(self) -> None:
        self._permits.put(self._reached)

    def stop(self, timeout_s: float) -> bool:
        """Ends the workers where they halt. (Told by the bell, they save their state and end by themselves.)"""
        until = time.monotonic() + timeout_s
        with contextlib.suppress(Empty):
            while self._controller is None and self._thread.is_alive():
                message = self._messages.get(timeout=max(0.0, until - time.monotonic()))
                self._controller = None if isinstance(message, dict) or message in (_BEGUN, _END) else message
        if self._thread.is_alive() and self._controller is not None:
            # The controller ends itself in `abort`, which its caller sees as an actor that died.
            with contextlib.suppress(ray.exceptions.RayActorError):
                ray.get(self._controller.abort.remote(), timeout=max(1.0, until - time.monotonic()))
        self._thread.join(max(1.0, until - time.monotonic()))
        for queue in (self._messages, self._permits):
            queue.shutdown(force=True)
        return not self._thread.is_alive()


def _halt(permits: Queue) -> Callable[[int], None]:
    """What the first worker calls at a budget of so many planned tokens; the others wait for it in their next step."""

    def halt(tokens: int) -> None:
        # A permit may be older than this process: one for a budget before, whose worker died while it waited.
        while permits.get() < tokens:
            pass

    return halt


def _listener(sweep_bell: Any, messages: Queue) -> Callable[[], Callable[[], bool]]:
    """What each worker calls where its loop begins."""

    def listen() -> Callable[[], bool]:
        messages.put(_BEGUN)
        return bell.listen(sweep_bell).is_set

    return listen
