"""Ray Tune over the trials of a session."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import ray.tune

from sweeps import bell
from sweeps.family import Assignment, Family
from sweeps.grid import Trial
from sweeps.planned import Planned
from sweeps.scheduler import Reporter, RungScheduler, TrialQueue
from sweeps.session import Session
from tinyllm.worker import Job

MAX_FAILURES = 2  # times a trial that died or raised is tried again; the loss of a node that said so is not counted
INTERRUPTED = "interrupted"


def train_trials(planned: Planned, session: Session, todo: Sequence[Trial]) -> None:
    """One Tune run over the trials, in their order."""
    # Only as many trials as there are slots wait for an actor at a time, so that the order holds.
    os.environ["TUNE_MAX_PENDING_TRIALS_PG"] = str(planned.slots)
    os.environ["TUNE_DISABLE_SIGINT_HANDLER"] = "1"  # ours lets the trials save
    os.environ["TUNE_PRINT_ALL_TRIAL_ERRORS"] = "0"  # the session says it in a line, the trial's log in full
    options = planned.options
    # A group's reports are read when its controller polls; its own default of 2 s is longer than a small segment.
    os.environ.setdefault("RAY_TRAIN_HEALTH_CHECK_INTERVAL_S", "0.2")
    jobs = {
        t.run_id: Assignment(
            job=Job(
                config=t.config,
                options=options.run,
                root=planned.root,
                sweep=options.name,
                device_share=planned.resources(t).device_share,
            ),
            resources=planned.resources(t),
        )
        for t in todo
    }
    sweep_bell = bell.hang_up()
    trainable = ray.tune.with_resources(
        ray.tune.with_parameters(Family, jobs=jobs, sweep_bell=sweep_bell),
        lambda config: ray.tune.PlacementGroupFactory([jobs[config["run_id"]].resources.bundle]),
    )
    tuner = ray.tune.Tuner(
        trainable,
        param_space={"run_id": ray.tune.grid_search([t.run_id for t in todo])},
        tune_config=ray.tune.TuneConfig(
            scheduler=RungScheduler(session),
            search_alg=TrialQueue(session, len(todo)),
            reuse_actors=True,
            trial_dirname_creator=lambda trial: trial.config["run_id"],
        ),
        run_config=ray.tune.RunConfig(
            name="tune",
            storage_path=planned.root,
            failure_config=ray.tune.FailureConfig(max_failures=MAX_FAILURES),
            callbacks=[Reporter(session)],
            verbose=0,
        ),
    )
    with _closing_is_told(session, sweep_bell):
        tuner.fit()


@contextlib.contextmanager
def _closing_is_told(session: Session, sweep_bell: Any) -> Iterator[None]:
    """When the session closes, its trials hear of it. Ctrl-C and SIGTERM close it; a second one ends at once."""

    def handler(number: int, frame: Any) -> None:
        if session.closing is not None:
            raise KeyboardInterrupt
        session.close(INTERRUPTED)

    def tell_trials() -> None:
        if (why := session.closed.get()) is not None:
            session.say(f"{why}; trials save their state and end")
            bell.ring(sweep_bell)

    before = {number: signal.signal(number, handler) for number in (signal.SIGINT, signal.SIGTERM)}
    thread = threading.Thread(target=tell_trials, daemon=True, name="closing")
    thread.start()
    try:
        yield
    finally:
        session.closed.put(None)
        thread.join()
        for number, old in before.items():
            signal.signal(number, old)
