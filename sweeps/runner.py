"""Runs a sweep: plan, price, Ray Tune over what is missing, and the last lines."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import ray
from rich.console import Console

from sweeps import cluster
from sweeps.board import Board
from sweeps.grid import Grid
from sweeps.ledger import Ledger
from sweeps.options import SweepOptions
from sweeps.pace import Pace
from sweeps.planned import Planned, plan_sweep
from sweeps.probe import measure_tflops
from sweeps.session import Session
from sweeps.summary import last_lines
from sweeps.tuning import INTERRUPTED, train_trials
from sweeps.view import View

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
        session = open_session(planned, board, ledger, say=view.say, refresh=view.refresh)
        planned.save()
        todo = session.todo(retry_stopped=options.retry_stopped)
        if todo:
            if not joins:
                console.print(stack.enter_context(cluster.started(have)), highlight=False)
            console.print(f"{len(todo)} trials to run, {planned.slots} at a time; Ctrl-C ends with everything kept.")
            with view:
                train_trials(planned, session, todo)
                # An actor that dies while Tune hands it from one trial to the next fails the innocent next one.
                if session.died and session.closing is None:
                    train_trials(planned, session, session.todo(only=session.died))
                session.finish()
    lines, code = last_lines(planned.root, board, command, interrupted=session.closing == INTERRUPTED)
    console.print("\n".join(lines), highlight=False, soft_wrap=True)
    return code


def open_session(
    planned: Planned, board: Board, ledger: Ledger, *, say: Callable[[str], None], refresh: Callable[[], None]
) -> Session:
    """The session of a planned sweep."""
    return Session(
        root=planned.root,
        name=planned.options.name,
        trials={t.run_id: t for t in planned.cells.trials},
        board=board,
        halving=planned.halving(board),
        ledger=ledger,
        pace=Pace(planned.speed),
        devices={t.run_id: planned.resources(t).devices for t in planned.cells.trials},
        say=say,
        refresh=refresh,
    )
