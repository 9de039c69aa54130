"""What a sweep costs beside training: start-up, reports, checkpoints, and the share of the time that slots train.

    python -m benchmarks.overhead                 the demo grid on this machine, minutes
    python -m benchmarks.overhead --quick         the Zipf chain, a minute: start-up and reports only

A slot is busy while it trains or evaluates: tokens of the segment over the speed of its record, and its evaluation. The
window is that of a full queue, from the last actor's first segment until the last trial starts.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
import tyro

from sweeps import cluster, grids, runner
from sweeps.ledger import Ledger
from sweeps.options import SweepOptions
from sweeps.planned import Planned, plan_sweep
from sweeps.session import Answer, Session
from sweeps.tuning import train_trials
from tinyllm import checkpoint, record
from tinyllm.config import changed
from tinyllm.horizon import Horizon
from tinyllm.plan import plan
from tinyllm.state import TrainState


@dataclass(frozen=True, kw_only=True)
class Overhead:
    """Measure what a sweep costs beside training."""

    quick: bool = False
    """The Zipf chain with small budgets: start-up and reports; too short for the busy share."""


@dataclass
class Segment:
    run_id: str
    began: float
    ended: float | None = None
    tokens: int | None = None


class TimedSession(Session):
    """Notes when each segment begins and ends, and how long each actor took to be ready."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self.segments: list[Segment] = []
        self.startups: list[float] = []
        self.first_go: dict[str, float] = {}

    def reported(self, run_id: str, result: Mapping[str, Any]) -> None:
        super().reported(run_id, result)
        if result.get("startup_seconds") is not None:
            self.startups.append(result["startup_seconds"])
        open_segments = [s for s in self.segments if s.run_id == run_id and s.ended is None]
        if open_segments and result.get("val_loss") is not None:
            open_segments[-1].ended = time.monotonic()
            open_segments[-1].tokens = int(result["planned_tokens"])

    def answer(self, run_id: str, rung: int) -> Answer:
        answer = super().answer(run_id, rung)
        if answer == "go":
            now = time.monotonic()
            self.segments.append(Segment(run_id=run_id, began=now))
            self.first_go.setdefault(run_id, now)
        return answer


def main() -> None:
    quick = tyro.cli(Overhead, description=Overhead.__doc__).quick
    with tempfile.TemporaryDirectory(prefix="overhead-") as storage:
        options = SweepOptions(name="s", storage=storage, early_stop=False)
        grid = grids.smoke()
        if quick:
            base = changed(changed(grid.base, "data.data", "zipf"), "model.vocab_size", 256)
            budgets = tuple(Horizon(value=v) for v in (60_000, 120_000))
            grid = replace(grid, base=base, depths=(2,), budgets=budgets)
        have = cluster.own_resources()
        planned = plan_sweep(options, grid, "", cluster.this_machines_device("cpu"), [have], lambda configs: [])
        started = time.monotonic()
        with cluster.started(have):
            print(f"Ray started in                     {time.monotonic() - started:6.2f} s")
            board, ledger = planned.board(), Ledger(planned.root)
            plain = runner.open_session(planned, board, ledger, say=print, refresh=lambda: None)
            session = TimedSession(
                root=plain.root,
                name=plain.name,
                trials=plain.trials,
                board=board,
                halving=None,
                ledger=ledger,
                pace=plain.pace,
                slots=planned.slots,
                admits=planned.admits,
                say=print,
                refresh=lambda: None,
            )
            train_trials(planned, session, session.todo())
        report(planned, session)


def report(planned: Planned, session: TimedSession) -> None:
    slots = planned.slots
    fresh, reused = session.startups[:slots], session.startups[slots:]
    print(f"first trial of an actor starts in  {statistics.median(fresh):6.2f} s")
    print(f"a later one starts in              {statistics.median(reused):6.2f} s")
    gaps = []
    for before in session.segments:
        after = [s.began for s in session.segments if s.run_id == before.run_id and s.began > before.began]
        if after and before.ended is not None:
            gaps.append(min(after) - before.ended)
    print(f"deciding on a report               {1000 * statistics.median(gaps):6.1f} ms")
    print(f"checkpoint of the largest model    {1000 * checkpoint_seconds(planned):6.1f} ms")
    share, window = busy_share(planned, session)
    print(f"busy share of {slots} slots over {window:4.0f} s  {share:6.1%}")


def busy_share(planned: Planned, session: TimedSession) -> tuple[float, float]:
    """Training and evaluation over slot seconds while the queue is full; and that window in seconds."""
    firsts = sorted(session.first_go.values())
    start, end = firsts[planned.slots - 1], firsts[-1]
    rows = {r.key: r for r in record.read(planned.root)}
    busy = 0.0
    for segment in session.segments:
        assert segment.ended is not None
        assert segment.tokens is not None
        row, trial = rows[segment.run_id, segment.tokens], session.trials[segment.run_id]
        budgets = [b.tokens for b in trial.plan.budgets]
        index = budgets.index(segment.tokens)
        fork = trial.plan.budgets[index - 1].fork_step if index else 0
        assert row.tokens_per_second is not None
        assert row.eval_seconds is not None
        trained = (row.steps - fork) * row.batch_tokens / row.tokens_per_second + row.eval_seconds
        inside = max(0.0, min(segment.ended, end) - max(segment.began, start)) / (segment.ended - segment.began)
        busy += trained * inside
    return busy / (planned.slots * (end - start)), end - start


def checkpoint_seconds(planned: Planned) -> float:
    """Median of five saves of the largest model's state to this machine's disk."""
    config = planned.cells.trials[0].config
    state = TrainState(config, plan(config), torch.device("cpu"))
    taken = []
    with tempfile.TemporaryDirectory() as root:
        for step in range(5):
            state.step = step
            began = time.perf_counter()
            checkpoint.save(root, state)
            taken.append(time.perf_counter() - began)
    return statistics.median(taken)


if __name__ == "__main__":
    main()
