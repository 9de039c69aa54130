"""A one-worker trial: a TorchTrainer in local mode, in a thread of the trial's actor."""

from __future__ import annotations

import queue
import threading

from sweeps.loop import Ended, Report
from tinyllm.events import Diverged, Event, HorizonReached
from tinyllm.trainers import local_trainer, metrics
from tinyllm.worker import Job


class LocalLoop:
    def __init__(self, job: Job, closing: threading.Event) -> None:
        """`closing`: the sweep is ending, stop at the next micro-batch."""
        self._job, self._closing = job, closing
        self._stopped = threading.Event()
        self._reports: queue.SimpleQueue[Report] = queue.SimpleQueue()
        self._permits = threading.Semaphore(0)
        self._thread = threading.Thread(target=self._run, daemon=True, name=job.config.run_id)
        self._thread.start()

    def _run(self) -> None:
        error: BaseException | None = None
        try:
            local_trainer(self._job, on_event=self._read, should_stop=self._should_stop).fit()
        except BaseException as caught:
            error = caught  # raised again by whoever takes the report
        self._reports.put(Ended(error=error))

    def _read(self, event: Event) -> None:
        if isinstance(event, HorizonReached | Diverged):
            self._reports.put(metrics(event))
        if isinstance(event, HorizonReached):
            self._permits.acquire()

    def _should_stop(self) -> bool:
        return self._stopped.is_set() or self._closing.is_set()

    def next_report(self) -> Report:
        return self._reports.get()

    def go_on(self) -> None:
        self._permits.release()

    def stop(self, timeout_s: float) -> bool:
        """Ends at the next micro-batch, its state saved."""
        self._stopped.set()
        self._permits.release()
        self._thread.join(timeout_s)
        return not self._thread.is_alive()
