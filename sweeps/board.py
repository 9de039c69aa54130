"""Where a sweep stands, cell by cell: what the live view, the last lines and `sweeps.status` are drawn from."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from rich.table import Table

from sweeps.grid import Trial
from sweeps.quote import compact, segment_flops
from tinyllm.record import RunRecord, Status

CellStatus = Status | Literal["waiting"]
# A trial with such a budget trains no more; a stopped one does on request.
FINAL: tuple[CellStatus, ...] = ("diverged", "stopped")


@dataclass(frozen=True, kw_only=True)
class PlannedCell:
    """One budget of one trial."""

    run_id: str
    tokens: int
    depth: int
    lr: float
    flops: float
    """From the fork before to the end of this budget's branch."""
    budget_index: int
    setting: str
    """What tells its trial from others of the size."""


def planned_cells(trials: Iterable[Trial]) -> list[PlannedCell]:
    return [
        PlannedCell(
            run_id=t.run_id,
            tokens=b.tokens,
            depth=t.depth,
            lr=t.lr,
            flops=segment_flops(t, i),
            budget_index=i,
            setting=t.setting,
        )
        for t in trials
        for i, b in enumerate(t.plan.budgets)
    ]


@dataclass(frozen=True, kw_only=True)
class Line:
    """One (depth, budget) of the grid."""

    depth: int
    tokens: int
    running: int
    waiting: int
    done: int
    stopped: int
    failed: int
    """Failed or diverged."""
    over_limit: int
    """Not within the limit of the sweep."""
    best_loss: float | None
    best_lr: float | None
    best: str
    """LR, seed and other settings of the best, in words; empty where there is none."""


class Board:
    """Status of every planned cell, and which trials run now."""

    def __init__(self, cells: Sequence[PlannedCell], records: Iterable[RunRecord] = ()) -> None:
        self.cells = {(c.run_id, c.tokens): c for c in cells}
        self.status: dict[tuple[str, int], CellStatus] = dict.fromkeys(self.cells, "waiting")
        self._budgets: dict[str, list[int]] = {}
        for run_id, tokens in sorted(self.cells):
            self._budgets.setdefault(run_id, []).append(tokens)
        self.losses: dict[tuple[str, int], float] = {}
        self.reasons: dict[tuple[str, int], str] = {}
        self.running: set[str] = set()
        for record in records:
            if record.key in self.cells:
                self.mark(record.run_id, record.planned_tokens, record.status, record.val_loss, record.reason)

    def mark(
        self, run_id: str, tokens: int, status: CellStatus, loss: float | None = None, reason: str | None = None
    ) -> None:
        key = run_id, tokens
        self.status[key] = status
        if loss is not None:
            self.losses[key] = loss
        if reason is not None:
            self.reasons[key] = reason

    def missing(self, run_id: str) -> list[int]:
        """Planned tokens of the budgets of a trial that are not done, increasing."""
        return [t for t in self._budgets[run_id] if self.status[run_id, t] != "done"]

    def left(self, run_id: str, *, retry_stopped: bool = False) -> list[int]:
        """Planned tokens of the budgets of a trial that are to be run, increasing.

        Diverged trials are never run again, stopped ones on request, failed ones and those cut by a budget always.
        """
        missing = self.missing(run_id)
        final = ("diverged",) if retry_stopped else FINAL
        return [] if any(self.status[run_id, t] in final for t in missing) else missing

    def so_far(self, run_id: str) -> str:
        """What became of a trial's budgets, e.g. "2 done, 1 failed"; empty where nothing has."""
        states = [s for t in self._budgets[run_id] if (s := self.status[run_id, t]) != "waiting"]
        return ", ".join(f"{states.count(s)} {s}" for s in dict.fromkeys(states))

    def compare(self, records: Iterable[RunRecord]) -> None:
        """What was reached but is not on record (its storage was emptied meanwhile) is missing after all."""
        there = {r.key for r in records if r.status == "done"}
        for key, status in self.status.items():
            if status == "done" and key not in there:
                self.mark(*key, "failed", reason="it was reached, but its record is not on storage")

    def count(self, *statuses: CellStatus) -> int:
        return sum(s in statuses for s in self.status.values())

    def current(self) -> set[tuple[str, int]]:
        """The cell that each running trial is at."""
        return {(run_id, missing[0]) for run_id in self.running if (missing := self.missing(run_id))}

    def lines(self) -> list[Line]:
        """One a (depth, budget), in order."""
        current = self.current()
        groups: dict[tuple[int, int], list[tuple[str, int]]] = {}
        for key, cell in self.cells.items():
            groups.setdefault((cell.depth, cell.tokens), []).append(key)
        found = []
        for (depth, tokens), keys in sorted(groups.items()):
            best = min((k for k in keys if k in self.losses), key=lambda k: self.losses[k], default=None)
            states = [self.status[k] for k in keys if k not in current]
            found.append(
                Line(
                    depth=depth,
                    tokens=tokens,
                    running=len(keys) - len(states),
                    waiting=states.count("waiting"),
                    done=states.count("done"),
                    stopped=states.count("stopped"),
                    failed=states.count("failed") + states.count("diverged"),
                    over_limit=states.count("budget"),
                    best_loss=None if best is None else self.losses[best],
                    best_lr=None if best is None else self.cells[best].lr,
                    best="" if best is None else self._in_words(best, {self.cells[k].lr for k in keys}),
                )
            )
        return found

    def _in_words(self, key: tuple[str, int], lrs: set[float]) -> str:
        """`lrs`: those of its depth and budget."""
        best = self.cells[key]
        edge = {max(lrs): ", the highest LR of the grid", min(lrs): ", the lowest LR of the grid"}
        return best.setting + (edge.get(best.lr, "") if len(lrs) > 2 else "")  # of two, either is at an edge

    def flops(self, *statuses: CellStatus) -> float:
        return sum(self.cells[k].flops for k, s in self.status.items() if s in statuses)

    @property
    def share_done(self) -> float:
        """Share of the planned FLOPs that is over with: trained, or not needed any more. What failed or the limit cut
        off is missing."""
        total = sum(c.flops for c in self.cells.values())
        return self.flops("done", "stopped", "diverged") / total if total else 1.0

    def table(self, footer: str = "") -> Table:
        """The table that a person watches."""
        found = Table(box=None, caption=footer, caption_justify="left")
        counted = ("running", "waiting", "done", "stopped", "failed", "over limit")
        names = ("depth", "tokens", *counted, "best val_loss", "at lr")
        for name in names:
            found.add_column(name, justify="right", no_wrap=True)
        for line in self.lines():
            counts = (line.running, line.waiting, line.done, line.stopped, line.failed, line.over_limit)
            found.add_row(
                str(line.depth),
                compact(line.tokens),
                *(str(n) if n else "." for n in counts),
                "-" if line.best_loss is None else f"{line.best_loss:.4f}",
                "-" if line.best_lr is None else f"{line.best_lr:.4g}",
            )
        return found
