"""What early stopping can save, known before anything starts: how many LRs of a size go on, at least and at most."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from sweeps.board import Board
from sweeps.halving import NEAREST, Group
from sweeps.quote import Quote


def kept_range(n: int, factor: int) -> tuple[int, int]:
    """How many of `n` LRs that are compared at a rung `sweeps.halving.kept` keeps, at least and at most.

    At least where the top 1/factor and the neighbours of the best are the same, at most where they share only the best.
    """
    top = math.ceil(n / factor)
    return min(n, max(top, NEAREST)), min(n, top + NEAREST - 1)


@dataclass(frozen=True, kw_only=True)
class Saving:
    """The price of what is left to do with early stopping, in device-hours."""

    least: float
    most: float
    notes: tuple[str, ...]
    """How many LRs of which sizes go on after a budget, a line each."""

    def describe(self, price: float | None) -> str:
        """In words, a line each."""
        hours = _between(f"{self.least:.3g}", f"{self.most:.3g}")
        cost = "" if price is None else f", cost {_between(f'{self.least * price:,.2f}', f'{self.most * price:,.2f}')}"
        total = f"With early stopping: {hours} device-hours{cost}."
        return "\n".join([total, *(f"  {note}" for note in self.notes)])


def _between(least: str, most: str) -> str:
    return least if least == most else f"{least} to {most}"


def saving(quotes: Sequence[Quote], groups: Collection[Group], board: Board, factor: int) -> Saving:
    """What early stopping may leave of the quotes."""
    by_run = {q.trial.run_id: q for q in quotes}
    least = most = 0.0
    depths: dict[tuple[int, int, bool], list[int]] = {}
    for group in groups:
        members = [by_run[r] for r in group.lrs]
        low = high = len(members)
        for tokens in group.rungs:
            costs = sorted(q.device_seconds[tokens] for q in members if tokens in q.device_seconds)
            done = sum(board.status.get((q.trial.run_id, tokens)) == "done" for q in members)
            least += sum(costs[: max(0, low - done)])
            most += sum(costs[: max(0, high - done)])
            low = kept_range(low, factor)[0]
            # Decided on arrival, the first ones are kept whatever they are.
            high = kept_range(high, factor)[1] if group.by_rung else high
        kind = len(members), len(group.rungs), group.by_rung
        depths.setdefault(kind, []).append(members[0].trial.depth)
    notes = tuple(_note(kind, found, factor) for kind, found in depths.items())
    return Saving(least=least / 3600, most=most / 3600, notes=notes)


def _note(kind: tuple[int, int, bool], depths: Sequence[int], factor: int) -> str:
    n, rungs, by_rung = kind
    low, high = kept_range(n, factor)
    lrs = f"{n} LR{'s' if n > 1 else ''}"
    where = f"depth {' '.join(map(str, sorted(set(depths))))}: {lrs}"
    if rungs == 1:
        return f"{where}, one budget: early stopping has nothing to decide"
    if low == n:
        return f"{where}: early stopping keeps all of them, it needs {_enough(factor)} or more"
    between = str(low) if low == high else f"{low} to {high if by_rung else n}"
    return f"{where}: {between} of them go on after the first budget"


def _enough(factor: int) -> int:
    """The least number of LRs of which one can be stopped."""
    return next(n for n in range(1, 2 * NEAREST + factor) if kept_range(n, factor)[0] < n)
