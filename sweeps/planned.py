"""A sweep worked out before anything starts: its trials, where they would run, and what they would take."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property

from rich.console import Console

from sweeps import quote
from sweeps.board import Board, planned_cells
from sweeps.grid import Cells, Device, Grid, Trial, expand
from sweeps.halving import Group, Halving, load_decisions
from sweeps.options import SweepOptions
from sweeps.resources import Resources, all_fit
from sweeps.session import DECISIONS_FILE
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
    have: Mapping[str, float]
    """Resources of the cluster."""
    speed: quote.Speed
    command: str
    """The shell command that was given, and that continues the sweep."""

    def resources(self, trial: Trial) -> Resources:
        return self.options.resources(trial.depth, on_gpu=self.device.kind == "cuda")

    @property
    def group_startup(self) -> dict[str, float]:
        """Device-seconds before a trial of several workers trains, by run_id."""
        asked = {t.run_id: self.resources(t) for t in self.cells.trials}
        return {run_id: r.devices * quote.GROUP_SECONDS for run_id, r in asked.items() if r.workers > 1}

    @cached_property
    def slots(self) -> int:
        """Trials at once, of the most demanding kind. Raises ValueError when the cluster holds none."""
        if self.options.slots is not None:
            return self.options.slots
        most = max((self.resources(t) for t in self.cells.trials), key=lambda r: (r.workers, r.gpus, r.cpus))
        slots = most.slots(self.have)
        if slots < 1:
            raise ValueError(
                f"the cluster ({self.have.get('CPU', 0):g} CPUs, {self.have.get('GPU', 0):g} GPUs, "
                f"{self.have.get('trial_slot', 0):g} trial slots) can't hold a trial of {most.workers} worker(s) with "
                f"{most.cpus:g} CPUs and {most.gpus:g} GPUs: ask for less, or give --slots if it grows on demand"
            )
        return slots

    def admits(self, run_ids: Collection[str]) -> bool:
        """Whether all these trials may run at once."""
        if self.options.slots is not None:
            return len(run_ids) <= self.options.slots
        return all_fit((self.resources(t) for t in self.cells.trials if t.run_id in run_ids), self.have)

    def quotes(self, board: Board) -> list[quote.Quote]:
        """The price of what is left to do of each trial."""
        retry, price = self.options.retry_stopped, self.options.price
        left = {t.run_id: found for t in self.cells.trials if (found := board.left(t.run_id, retry_stopped=retry))}
        # A machine that only plans may hold none.
        slots = self.options.slots or max(
            1, min((self.resources(t).slots(self.have) for t in self.cells.trials), default=1)
        )
        return [
            quote.quote(
                t,
                self.speed,
                startup=quote.startup_seconds(self.resources(t), trials=max(1, len(left)), slots=slots),
                price=price,
                budgets=left.get(t.run_id, ()),
                note=board.so_far(t.run_id),
            )
            for t in self.cells.trials
        ]

    def show(self, quotes: Sequence[quote.Quote], console: Console) -> None:
        """Print the trials, their price and what is refused. Raises ValueError when no cell is left."""
        if quotes:
            console.print(quote.table(quotes, self.speed))
        for warning in self.cells.warnings:
            console.print(f"Note: {warning}", highlight=False)
        if self.cells.refused:
            console.print(quote.refused_table(self.cells.refused))
        if not quotes:
            raise ValueError("every cell of the grid is refused, see the table")
        console.print(quote.summary(quotes), highlight=False)

    def board(self) -> Board:
        """What storage knows of the trials."""
        return Board(planned_cells(self.cells.trials), record.read(self.root))

    def halving(self, board: Board) -> Halving | None:
        """Groups and rungs with what is on record and was decided before; None with --no-early-stop."""
        options = self.options
        if not options.early_stop:
            return None
        members: dict[str, list[Trial]] = {}
        for trial in self.cells.trials:
            members.setdefault(trial.config.group, []).append(trial)
        groups = [
            Group(
                name=name,
                lrs={t.run_id: t.lr for t in found},
                rungs=tuple(sorted({b.tokens for t in found for b in t.plan.budgets})),
                by_rung=options.asha == "by-rung" or (options.asha == "auto" and self.slots < len(found)),
            )
            for name, found in members.items()
        ]
        path = storage.join(self.root, DECISIONS_FILE)
        known = load_decisions(storage.read_bytes(path)) if storage.exists(path) else []
        halving = Halving(groups, factor=options.reduction_factor, decisions=known)
        for (run_id, tokens), status in board.status.items():
            if status in ("done", "diverged"):
                halving.report(run_id, tokens, board.losses.get((run_id, tokens)))
        return halving

    def save(self) -> None:
        """Write what `sweeps.status` needs to know."""
        cells = [asdict(c) for c in planned_cells(self.cells.trials)]
        content = {"name": self.options.name, "command": self.command, "cells": cells}
        storage.write_bytes(storage.join(self.root, SWEEP_FILE), json.dumps(content).encode())


def plan_sweep(
    options: SweepOptions,
    grid: Grid,
    command: str,
    device: Device,
    have: Mapping[str, float],
    measure: Callable[[TrainConfig], float],
    corpora: str | None = None,
) -> Planned:
    """Work out a grid over its corpus, which is prepared if it is a built-in one that is not there yet.

    Args:
        measure: TFLOP/s of a device with a config, used with --probe.
        corpora: where built-in corpora lie; by default in the user's cache.
    """
    base = grid.base
    sizes = {"vocab_size": base.model.vocab_size, "seq_len": base.model.seq_len}
    path = default_corpus(base.data.data, **sizes, cache=corpora)
    grid = replace(grid, base=replace(base, data=replace(base.data, data=path)))
    cells = expand(grid, corpus_facts(Corpus.open(path)), device)
    speed = quote.assumed_speed(device)
    if options.probe:
        one_of_each = {t.depth: t.config for t in cells.trials}
        measured = {depth: measure(config) for depth, config in one_of_each.items()}
        speed = replace(speed, source="measured on one device", by_depth=measured)
    return Planned(
        options=options,
        root=options.root,
        cells=cells,
        device=device,
        speed=speed,
        have=have,
        command=command,
    )
