"""Runs a sweep: plan, price, Ray Tune over what is missing, and the last lines."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import ray
from ray.exceptions import RayError
from ray.tune import TuneError
from rich.console import Console

from sweeps import cluster, probe
from sweeps.board import Board
from sweeps.eta import seconds_left
from sweeps.grid import Device, Grid
from sweeps.ledger import Ledger
from sweeps.lock import only_here
from sweeps.options import SweepOptions
from sweeps.pace import Pace
from sweeps.planned import Planned, plan_sweep
from sweeps.remedy import remedy
from sweeps.resources import Nodes, Resources, sum_of
from sweeps.session import Session
from sweeps.summary import EXIT_DONE, EXIT_MISSING, last_lines
from sweeps.tuning import INTERRUPTED, train_trials
from sweeps.view import View, new_console
from sweeps.watch import ray_watched
from tinyllm import record, storage
from tinyllm.config import TrainConfig
from tinyllm.options import RunOptions

REACHED = ("done", "diverged")


@dataclass(frozen=True, kw_only=True)
class Site:
    """Where a sweep would run."""

    joined: bool
    """Whether a cluster that was there is used; else one is started here when there is something to run."""
    nodes: Nodes
    """Resources of the cluster."""
    device: Device
    measure: Callable[[Sequence[TrainConfig], RunOptions, Resources, int], list[float]]
    """TFLOP/s of a device (`sweeps.probe`)."""


def run(options: SweepOptions, grid: Grid, command: str) -> int:
    """Do a sweep, or with --dry-run show it; returns the exit code.

    Ray starts only when something is to be run. Raises ValueError for what a user can get wrong, before that.
    """
    console = new_console()
    storage.check_writable(options.root)
    with contextlib.ExitStack() as stack:
        site = _find_site(options, stack, console)
        planned = plan_sweep(
            options,
            grid,
            command,
            site.device,
            site.nodes,
            measure=lambda configs: _probe(configs, options, site),
            # Other machines do not reach this one's cache.
            corpora=storage.absolute(storage.join(options.storage, "corpora")) if site.joined else None,
            grows=site.joined,
        )
        if not options.dry_run:
            stack.enter_context(only_here(planned.root, say=console.print))
        board = planned.board()
        quotes = planned.quotes(board)
        planned.show(quotes, board, console)
        ledger = Ledger(planned.root, limit_hours=options.limit.hours, price=options.price)
        options.limit.refuse(ledger.hours, [q.first_hours for q in quotes if q.device_seconds])
        if options.dry_run:
            return EXIT_DONE
        ledger.open({(q.trial.run_id, tokens): s for q in quotes for tokens, s in q.device_seconds.items()})
        return _execute(planned, board, ledger, site, console)


def _find_site(options: SweepOptions, stack: contextlib.ExitStack, console: Console) -> Site:
    """Join the cluster that is asked for or that is there, until the stack closes; or describe this machine."""
    given = cluster.given_address(options.address)
    if given == "local":
        return _here(options)
    try:
        address = given or cluster.last_started()
        if address is None:
            return _here(options)
        console.print(stack.enter_context(cluster.joined(address)), highlight=False)
    except cluster.NoClusterError:
        if given is not None:
            raise
        # Files of a Ray that has ended, or of somebody else's, are no reason to refuse.
        console.print(f"The Ray that was started here last ({address}) does not answer: it is not joined.")
        return _here(options)
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    on_gpu = sum_of(nodes)["GPU"] > 0 and options.run.device in ("auto", "cuda")
    resources = options.resources(depth=1, on_gpu=on_gpu)
    return Site(
        joined=True,
        nodes=nodes,
        device=cluster.find_device(options.run.device, resources),
        measure=probe.measured_on_cluster,
    )


def _here(options: SweepOptions) -> Site:
    device = cluster.this_machines_device(options.run.device, options.gpus_per_worker or 1.0)
    return Site(joined=False, nodes=[cluster.own_resources()], device=device, measure=probe.measured_here)


def _probe(configs: Sequence[TrainConfig], options: SweepOptions, site: Site) -> list[float]:
    resources = options.resources(depth=max(c.model.depth for c in configs), on_gpu=site.device.kind == "cuda")
    return site.measure(configs, options.run, resources, probe.at_once(resources, site.nodes, options.slots))


def _execute(planned: Planned, board: Board, ledger: Ledger, site: Site, console: Console) -> int:
    view = View(board, console, lambda: str(ledger), lambda: seconds_left(planned, session))
    session = open_session(planned, board, ledger, say=view.say, refresh=view.refresh)
    planned.save(planned.command)
    todo = session.todo(retry_stopped=planned.options.retry_stopped)
    if todo:
        with contextlib.ExitStack() as stack:
            if not site.joined:
                console.print(stack.enter_context(cluster.started(site.nodes[0])), highlight=False)
            console.print(f"{len(todo)} trials to run, {planned.slots} at a time; Ctrl-C ends with everything kept.")
            stack.enter_context(view)
            stack.enter_context(ray_watched(lambda name: _break_off(name, planned, session, view, console)))
            try:
                train_trials(planned, session, todo)
                # An actor that dies while Tune hands it from one trial to the next fails the innocent next one.
                if session.innocent and session.closing is None:
                    train_trials(planned, session, session.todo(only=session.innocent))
                session.finish()
            except (OSError, RayError, TuneError) as error:
                # Storage that is full or gone, a lost head: what was reached is on record, the last lines say the rest.
                view.say(f"the sweep broke off: {type(error).__name__}: {str(error).strip().splitlines()[-1]}")
    return _conclude(planned, session, console)


def _conclude(planned: Planned, session: Session, console: Console) -> int:
    """Print the last lines; returns the exit code."""
    board = session.board
    try:
        board.compare(record.read(planned.root))
    except (OSError, ValueError) as error:
        console.print(f"{planned.root} can't be read any more: {error}", highlight=False)
    quotes = planned.quotes(board, session.pace)
    how = remedy(planned.command, planned.options.limit, board, quotes, session.ledger.hours)
    try:
        planned.save(how.command)
        session.ledger.close()
    except OSError as error:
        console.print(f"{planned.root} can't be written any more: {error}", highlight=False)
    lines, code = last_lines(planned.root, board, how, interrupted=session.closing == INTERRUPTED)
    lines.insert(1, session.ledger.account([key for key, status in board.status.items() if status in REACHED]))
    console.print("\n".join(lines), highlight=False, soft_wrap=True)
    return code


def _break_off(name: str, planned: Planned, session: Session, view: View, console: Console) -> None:
    """Ray is gone, and every call to it may hang: the last lines, and the end of this process."""
    code = EXIT_MISSING
    try:
        view.say(f"the sweep broke off: Ray's {name} on this machine has died")
        view.stop()
        code = _conclude(planned, session, console)
    except Exception:
        console.print_exception()
    finally:
        console.file.flush()
        os._exit(code)


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
        pace=Pace(planned.speed, planned.startup, {t.run_id: planned.resources(t) for t in planned.cells.trials}),
        slots=planned.slots,
        admits=planned.admits,
        say=say,
        refresh=refresh,
    )
