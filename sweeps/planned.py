"""A sweep worked out before anything starts: its trials, where they would run, and what they would take."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property

from rich.console import Console

from sweeps import quote, stopping
from sweeps.board import Board, planned_cells
from sweeps.grid import Cells, Device, Grid, Trial, expand
from sweeps.halving import Group, Halving, load_decisions
from sweeps.options import SweepOptions
from sweeps.pace import Pace, on_record
from sweeps.resources import TRIAL_SLOT, Nodes, Resources, all_fit, sum_of
from sweeps.session import DECISIONS_FILE
from sweeps.settings import in_a_sweep
from sweeps.status import SWEEP_FILE
from tinyllm import record, storage
from tinyllm.config import TrainConfig
from tinyllm.corpus import default_corpus
from tinyllm.data import Corpus
from tinyllm.worker import corpus_facts


@dataclass(frozen=True, kw_only=True)
class Planned:
    options: SweepOptions
    root: str
    cells: Cells
    device: Device
    nodes: Nodes
    """Resources of the cluster."""
    grows: bool
    """Whether more nodes may come."""
    speed: quote.Speed
    startup: quote.Startup = field(default_factory=quote.Startup)
    command: str
    """The shell command that was given, and that continues the sweep."""

    def resources(self, trial: Trial) -> Resources:
        return self.options.resources(trial.depth, on_gpu=self.device.kind == "cuda")

    @cached_property
    def slots(self) -> int:
        """Trials at once, of the most demanding kind. Raises ValueError when the cluster holds none."""
        if self.grows and self.options.slots is not None:
            return self.options.slots
        least, asked = min(
            ((r.slots(self.nodes), r) for r in {self.resources(t) for t in self.cells.trials}),
            key=lambda found: found[0],
        )
        if least < 1:
            have = sum_of(self.nodes)
            largest = max((node.get("CPU", 0) for node in self.nodes), default=0)
            remedy = ", or give --slots if it grows on demand" if self.grows else ""
            raise ValueError(
                f"the cluster ({have['CPU']:g} CPUs, {largest:g} on its largest node, {have['GPU']:g} GPUs, "
                f"{have[TRIAL_SLOT]:g} trial slots) can't hold a trial of {asked}: ask for less{remedy}"
            )
        return min(least, self.options.slots or least)

    def admits(self, run_ids: Collection[str]) -> bool:
        """Whether all these trials may run at once."""
        if self.options.slots is not None and len(run_ids) > self.options.slots:
            return False
        if self.grows and self.options.slots is not None:
            return True
        return all_fit((self.resources(t) for t in self.cells.trials if t.run_id in run_ids), self.nodes)

    def quotes(self, board: Board, pace: Pace | None = None, *, new_processes: int | None = None) -> list[quote.Quote]:
        """The price of what is left to do of each trial, as it is known at first, or by the pace of the sweep.

        `new_processes`: how many are to be started for it; by default one a slot.
        """
        if not self.cells.trials:
            return []
        retry, price = self.options.retry_stopped, self.options.price
        speed, startup = (self.speed, self.startup) if pace is None else (pace.speed, pace.startup)
        left = {t.run_id: found for t in self.cells.trials if (found := board.left(t.run_id, retry_stopped=retry))}
        processes = {"trials": max(1, len(left)), "slots": self.slots if new_processes is None else new_processes}
        return [
            quote.quote(
                t,
                speed,
                startup=quote.startup_seconds(startup, self.resources(t), **processes),
                price=price,
                budgets=left.get(t.run_id, ()),
                note=board.so_far(t.run_id),
            )
            for t in self.cells.trials
        ]

    def show(self, quotes: Sequence[quote.Quote], board: Board, console: Console) -> None:
        """Print the trials, their price and what is refused. Raises ValueError when no cell is left."""
        if quotes:
            console.print(quote.table(quotes, self.speed))
        for warning in self.cells.warnings:
            console.print(f"Note: {in_a_sweep(warning)}", highlight=False)
        if self.cells.refused:
            console.print(quote.refused_table(self.cells.refused))
        if not quotes:
            raise ValueError("every cell of the grid is refused, see the table")
        console.print(quote.summary(quotes), highlight=False)
        if self.options.early_stop:
            saving = stopping.saving(quotes, self.groups, board, self.options.reduction_factor)
            console.print(saving.describe(self.options.price), highlight=False)

    def board(self) -> Board:
        """What storage knows of the trials."""
        return Board(planned_cells(self.cells.trials), record.read(self.root))

    @cached_property
    def groups(self) -> list[Group]:
        """Trials that differ in LR alone, with the budgets that they are compared at."""
        asha = self.options.asha
        members: dict[str, list[Trial]] = {}
        for trial in self.cells.trials:
            # An axis may be one of the other LRs, which a config's group leaves out with `lr`.
            axes = "".join(f" {path}={value}" for path, value in trial.axes if path.endswith("_lr"))
            members.setdefault(trial.config.group + axes, []).append(trial)
        return [
            Group(
                name=name,
                lrs={t.run_id: t.lr for t in found},
                rungs=tuple(sorted({b.tokens for t in found for b in t.plan.budgets})),
                by_rung=asha == "by-rung" or (asha == "auto" and self.slots < len(found)),
            )
            for name, found in members.items()
        ]

    def halving(self, board: Board) -> Halving | None:
        """Groups and rungs with what is on record and was decided before; None with --no-early-stop."""
        if not self.options.early_stop:
            return None
        path = storage.join(self.root, DECISIONS_FILE)
        known = load_decisions(storage.read_bytes(path)) if storage.exists(path) else []
        halving = Halving(self.groups, factor=self.options.reduction_factor, decisions=known)
        for (run_id, tokens), status in board.status.items():
            if status in ("done", "diverged"):
                halving.report(run_id, tokens, board.losses.get((run_id, tokens)))
        return halving

    def save(self, command: str) -> None:
        """Write what `sweeps.status` needs to know; `command`: how the sweep goes on."""
        cells = [asdict(c) for c in planned_cells(self.cells.trials)]
        content = {"name": self.options.name, "command": command, "cells": cells}
        storage.write_bytes(storage.join(self.root, SWEEP_FILE), json.dumps(content).encode())


def plan_sweep(
    options: SweepOptions,
    grid: Grid,
    command: str,
    device: Device,
    nodes: Nodes,
    measure: Callable[[Sequence[TrainConfig]], list[float]],
    corpora: str | None = None,
    *,
    grows: bool = False,
) -> Planned:
    """Work out a grid over its corpus, which is prepared if it is a built-in one that is not there yet.

    Args:
        measure: TFLOP/s of a device with each of some configs, used with --probe.
        grows: whether nodes may be added to these (`--slots` then says how many trials they are to hold).
        corpora: where built-in corpora lie; by default in the user's cache.
    """
    base = grid.base
    sizes = {"vocab_size": base.model.vocab_size, "seq_len": base.model.seq_len}
    path = default_corpus(base.data.data, **sizes, cache=corpora)
    grid = replace(grid, base=replace(base, data=replace(base.data, data=path)))
    corpus = Corpus.open(path)
    if isinstance(corpus, Corpus):
        corpus.check()
    cells = expand(grid, corpus_facts(corpus), device)
    measured = on_record(record.read(options.root), cells.trials, options.gpus_per_worker or 1.0)
    if options.probe:
        one_of_each = {t.depth: t.config for t in cells.trials if t.depth not in measured}
        if one_of_each:
            measured |= dict(zip(one_of_each, measure(list(one_of_each.values())), strict=True))
    speed = replace(quote.assumed_speed(device), by_depth=measured)
    return Planned(
        options=options,
        root=options.root,
        cells=cells,
        device=device,
        speed=speed,
        nodes=nodes,
        grows=grows,
        command=command,
    )
