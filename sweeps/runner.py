"""Runs a sweep: plan, price, what is missing, Ray Tune over it, and the last lines."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import ray.tune
from rich.console import Console

from sweeps import bell, cluster, quote
from sweeps.board import Board, planned_cells
from sweeps.family import Family
from sweeps.grid import Cells, Device, Grid, Trial, expand
from sweeps.halving import Group, Halving, load_decisions
from sweeps.options import SweepOptions
from sweeps.resources import Resources
from sweeps.scheduler import Reporter, RungScheduler, TrialQueue
from sweeps.session import DECISIONS_FILE, Session
from sweeps.summary import last_lines
from sweeps.view import View
from tinyllm import record, storage
from tinyllm.config import CorpusFacts, RunOptions
from tinyllm.corpus import default_corpus
from tinyllm.data import Corpus
from tinyllm.worker import Job, corpus_facts

SWEEP_FILE = "sweep.json"
MAX_FAILURES = 3  # times a trial whose process died is tried again before it counts as failed


@dataclass(frozen=True, kw_only=True)
class Planned:
    """A sweep worked out, before anything starts."""

    options: SweepOptions
    root: str
    cells: Cells
    device: Device
    command: str
    """The shell command that was given, and that continues the sweep."""

    def resources(self, trial: Trial) -> Resources:
        return self.options.resources(trial.depth, on_gpu=self.device.kind == "cuda")


def run(options: SweepOptions, grid: Grid, command: str, console: Console | None = None) -> int:
    """Do a sweep, or with --dry-run show it; returns the exit code.

    Raises ValueError for what a user can get wrong, before anything starts.
    """
    console = console or Console()
    joins = options.address != "local" and (options.address != "auto" or cluster.running_address() is not None)
    if options.dry_run and not joins:
        planned = _plan(options, grid, command, cluster.this_machines_device(options.run.device))
        show(planned, console)
        return 0
    with cluster.connected(options.address) as description:
        console.print(description)
        device = cluster.this_machines_device(options.run.device) if not joins else _ask_device(options)
        planned = _plan(options, grid, command, device)
        show(planned, console)
        return 0 if options.dry_run else execute(planned, console)


def _ask_device(options: SweepOptions) -> Device:
    on_gpu = ray.cluster_resources().get("GPU", 0) > 0 and options.run.device in ("auto", "cuda")
    return cluster.find_device(options.run.device, options.resources(depth=1, on_gpu=on_gpu))


def _plan(options: SweepOptions, grid: Grid, command: str, device: Device) -> Planned:
    base = grid.base
    path = default_corpus(base.data.data, vocab_size=base.model.vocab_size, seq_len=base.model.seq_len)
    facts: CorpusFacts = corpus_facts(Corpus.open(path))
    grid = replace(grid, base=replace(base, data=replace(base.data, data=path)))
    return Planned(
        options=options,
        root=storage.absolute(storage.join(options.storage, options.name)),
        cells=expand(grid, facts, device),
        device=device,
        command=command,
    )


def show(planned: Planned, console: Console) -> None:
    """Print the trials, their price and what is refused. Raises ValueError when no cell is left."""
    speed = quote.assumed_speed(planned.device)
    quotes = [quote.quote(t, speed) for t in planned.cells.trials]
    if quotes:
        console.print(quote.table(quotes, speed))
    for warning in planned.cells.warnings:
        console.print(f"Note: {warning}", highlight=False)
    if planned.cells.refused:
        console.print(quote.refused_table(planned.cells.refused))
    if not quotes:
        raise ValueError("every cell of the grid is refused, see the table")
    console.print(quote.summary(quotes), highlight=False)


def execute(planned: Planned, console: Console) -> int:
    """Run what is missing on the connected cluster; returns the exit code."""
    options, trials = planned.options, {t.run_id: t for t in planned.cells.trials}
    slots = _slots(planned)
    records = record.read(planned.root)
    cells = planned_cells(planned.cells.trials)
    sweep = {"name": options.name, "command": planned.command, "cells": [asdict(c) for c in cells]}
    storage.write_bytes(storage.join(planned.root, SWEEP_FILE), json.dumps(sweep).encode())
    board = Board(cells, records)
    view = View(board, console)
    session = Session(
        planned.root, options.name, trials, board, _halving(planned, slots, board), view.say, view.refresh
    )
    session.settle()
    todo = session.todo(retry_stopped=options.retry_stopped)
    if todo:
        console.print(f"{len(todo)} trials to run, {slots} at a time; Ctrl-C ends with everything kept.")
        with view:
            _tune(planned, session, todo, slots)
    lines, code = last_lines(planned.root, board, planned.command, interrupted=session.closing is not None)
    console.print("\n".join(lines), highlight=False)
    return code


def _slots(planned: Planned) -> int:
    """Trials at once, of the most demanding kind. Raises ValueError when the cluster holds none."""
    if planned.options.slots is not None:
        return planned.options.slots
    have = ray.cluster_resources()
    most = max((planned.resources(t) for t in planned.cells.trials), key=lambda r: (r.workers, r.gpus, r.cpus))
    slots = most.slots(have)
    if slots < 1:
        raise ValueError(
            f"the cluster ({have.get('CPU', 0):g} CPUs, {have.get('GPU', 0):g} GPUs, {have.get('trial_slot', 0):g} "
            f"trial slots) can't hold a trial of {most.workers} worker(s) with {most.cpus:g} CPUs and {most.gpus:g} "
            "GPUs: ask for less, or give --slots if the cluster grows on demand"
        )
    return slots


def _halving(planned: Planned, slots: int, board: Board) -> Halving | None:
    options = planned.options
    if not options.early_stop:
        return None
    members: dict[str, list[Trial]] = {}
    for trial in planned.cells.trials:
        members.setdefault(trial.config.group, []).append(trial)
    groups = [
        Group(
            name=name,
            lrs={t.run_id: t.lr for t in found},
            rungs=tuple(sorted({b.tokens for t in found for b in t.plan.budgets})),
            by_rung=options.asha == "by-rung" or (options.asha == "auto" and slots < len(found)),
        )
        for name, found in members.items()
    ]
    path = storage.join(planned.root, DECISIONS_FILE)
    known = load_decisions(storage.read_bytes(path)) if storage.exists(path) else []
    halving = Halving(groups, factor=options.reduction_factor, decisions=known)
    for (run_id, tokens), status in board.status.items():
        if status in ("done", "diverged"):
            halving.report(run_id, tokens, board.losses.get((run_id, tokens)))
    return halving


def _tune(planned: Planned, session: Session, todo: Sequence[Trial], slots: int) -> None:
    """One Tune run over the trials, in their order."""
    # Only as many trials as there are slots wait for an actor at a time, so that the order holds.
    os.environ["TUNE_MAX_PENDING_TRIALS_PG"] = str(slots)
    os.environ["TUNE_DISABLE_SIGINT_HANDLER"] = "1"
    options: RunOptions = planned.options.run
    jobs = {t.run_id: Job(config=t.config, options=options, root=planned.root, sweep=session.name) for t in todo}
    asked = {t.run_id: planned.resources(t) for t in todo}
    sweep_bell = bell.hang_up()
    trainable = ray.tune.with_parameters(Family, jobs=jobs, sweep_bell=sweep_bell)
    trainable = ray.tune.with_resources(
        trainable, lambda config: ray.tune.PlacementGroupFactory([asked[config["run_id"]].bundle])
    )
    space: dict[str, Any] = {"run_id": ray.tune.grid_search([t.run_id for t in todo])}
    tuner = ray.tune.Tuner(
        trainable,
        param_space=space,
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
    with _ends_on_signal(session, sweep_bell):
        tuner.fit()


@contextlib.contextmanager
def _ends_on_signal(session: Session, sweep_bell: Any) -> Iterator[None]:
    """Ctrl-C and SIGTERM end the sweep in good order; a second Ctrl-C ends it at once."""
    woken, over = threading.Event(), threading.Event()

    def handler(number: int, frame: Any) -> None:
        if woken.is_set():
            raise KeyboardInterrupt
        woken.set()

    def close() -> None:
        woken.wait()
        if not over.is_set():
            session.close("interrupted")
            bell.ring(sweep_bell)

    before = {number: signal.signal(number, handler) for number in (signal.SIGINT, signal.SIGTERM)}
    thread = threading.Thread(target=close, daemon=True, name="signals")
    thread.start()
    try:
        yield
    finally:
        over.set()
        woken.set()
        thread.join()
        for number, old in before.items():
            signal.signal(number, old)
