"""Runs a sweep: plan, price, Ray Tune over what is missing, and the last lines."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import ray
import ray.tune
from rich.console import Console

from sweeps import bell, cluster
from sweeps.family import Family
from sweeps.grid import Grid, Trial
from sweeps.ledger import Ledger
from sweeps.options import SweepOptions
from sweeps.pace import Pace
from sweeps.planned import Planned, plan_sweep
from sweeps.probe import measure_tflops
from sweeps.scheduler import Reporter, RungScheduler, TrialQueue
from sweeps.session import Session
from sweeps.summary import last_lines
from sweeps.view import View
from tinyllm.worker import Job

MAX_FAILURES = 3  # times a trial whose process died is tried again before it counts as failed
INTERRUPTED = "interrupted"
PLAIN_WIDTH = 150  # columns where there is no terminal to measure


def run(options: SweepOptions, grid: Grid, command: str) -> int:
    """Do a sweep, or with --dry-run show it; returns the exit code.

    Ray starts only when something is to be run. Raises ValueError for what a user can get wrong, before that.
    """
    console = Console()
    if not console.is_terminal:
        console = Console(width=PLAIN_WIDTH)
    joins = options.address != "local" and (options.address != "auto" or cluster.running_address() is not None)
    with contextlib.ExitStack() as stack:
        if joins:
            console.print(stack.enter_context(cluster.joined(options.address)), highlight=False)
            have = ray.cluster_resources()
            on_gpu = have.get("GPU", 0) > 0 and options.run.device in ("auto", "cuda")
            resources = options.resources(depth=1, on_gpu=on_gpu)
            device = cluster.find_device(options.run.device, resources)
            measure = cluster.on_a_device(measure_tflops, resources)
        else:
            have, device = cluster.own_resources(), cluster.this_machines_device(options.run.device)
            measure = measure_tflops
        limit_hours = options.limit_hours
        planned = plan_sweep(options, grid, command, device, have, lambda config: measure(config, options.run))
        planned.show(console)
        if options.dry_run:
            return 0
        board = planned.board()
        ledger = Ledger(planned.root, limit_hours=limit_hours, price=options.price)
        view = View(board, console, lambda: str(ledger))
        trials = {t.run_id: t for t in planned.cells.trials}
        session = Session(
            root=planned.root,
            name=options.name,
            trials=trials,
            board=board,
            halving=planned.halving(board),
            ledger=ledger,
            pace=Pace(planned.speed),
            devices={t.run_id: planned.resources(t).devices for t in planned.cells.trials},
            say=view.say,
            refresh=view.refresh,
        )
        planned.save()
        todo = session.todo(retry_stopped=options.retry_stopped)
        if todo:
            if not joins:
                console.print(stack.enter_context(cluster.started(have)), highlight=False)
            console.print(f"{len(todo)} trials to run, {planned.slots} at a time; Ctrl-C ends with everything kept.")
            with view:
                _tune(planned, session, todo)
                session.finish()
    lines, code = last_lines(planned.root, board, command, interrupted=session.closing == INTERRUPTED)
    console.print("\n".join(lines), highlight=False, soft_wrap=True)
    return code


def _tune(planned: Planned, session: Session, todo: Sequence[Trial]) -> None:
    """One Tune run over the trials, in their order."""
    # Only as many trials as there are slots wait for an actor at a time, so that the order holds.
    os.environ["TUNE_MAX_PENDING_TRIALS_PG"] = str(planned.slots)
    os.environ["TUNE_DISABLE_SIGINT_HANDLER"] = "1"  # ours lets the trials save
    os.environ["TUNE_PRINT_ALL_TRIAL_ERRORS"] = "0"  # the session says it in a line, the trial's log in full
    options = planned.options
    jobs = {t.run_id: Job(config=t.config, options=options.run, root=planned.root, sweep=options.name) for t in todo}
    bundles = {t.run_id: planned.resources(t).bundle for t in todo}
    sweep_bell = bell.hang_up()
    trainable = ray.tune.with_resources(
        ray.tune.with_parameters(Family, jobs=jobs, sweep_bell=sweep_bell),
        lambda config: ray.tune.PlacementGroupFactory([bundles[config["run_id"]]]),
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
