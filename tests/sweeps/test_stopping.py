"""What early stopping may save, against every order that the losses of a few LRs can have."""

from __future__ import annotations

import itertools

import pytest

from sweeps.board import Board, planned_cells
from sweeps.grid import Cells, Device, Grid, expand
from sweeps.halving import Group, kept
from sweeps.quote import Speed, quote
from sweeps.stopping import Saving, kept_range, saving
from tinyllm.config import CorpusFacts, ModelConfig, OptimConfig, TrainConfig
from tinyllm.horizon import Horizon

CORPUS = CorpusFacts(name="c", digest="0", vocab_size=64, seq_len=32, train_tokens=None, val_tokens=4096)
CPU = Device(kind="cpu", name="a CPU", precision="fp32", memory_bytes=None, peak_tflops=None)


@pytest.mark.parametrize("factor", [2, 3, 5])
@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 6, 7])
def test_as_many_are_kept_as_some_order_of_losses_keeps(n: int, factor: int) -> None:
    lrs = {str(i): float(i) for i in range(1, n + 1)}
    orders = itertools.permutations(range(n))
    counts = {len(kept(dict(zip(lrs, map(float, order), strict=True)), lrs, factor)) for order in orders}
    assert kept_range(n, factor) == (min(counts), max(counts))


def cells(*lrs: float, steps: tuple[int, ...]) -> Cells:
    base = TrainConfig(
        model=ModelConfig(aspect_ratio=16, target_head_dim=8),
        optim=OptimConfig(total_batch_size=128, warmup_tokens=512),
    )
    budgets = tuple(Horizon(value=s, unit="steps") for s in steps)
    return expand(Grid(base=base, depths=(1,), lrs=lrs, budgets=budgets), CORPUS, CPU)


def saved(found: Cells, *done: tuple[int, int], by_rung: bool = True) -> tuple[Saving, list[float]]:
    """At factor 2, with so many trials (first) done at so many budgets (second); and the hours of a trial's budgets."""
    board = Board(planned_cells(found.trials))
    quotes = []
    for i, trial in enumerate(found.trials):
        reached = next((budgets for trials, budgets in done if i < trials), 0)
        tokens = [b.tokens for b in trial.plan.budgets]
        for t in tokens[:reached]:
            board.mark(trial.run_id, t, "done", 1.0)
        quotes.append(quote(trial, Speed(tflops=1e-6, source="t"), budgets=tokens[reached:]))
    first = found.trials[0]
    lrs = {t.run_id: t.lr for t in found.trials}
    group = Group(name="g", lrs=lrs, rungs=tuple(b.tokens for b in first.plan.budgets), by_rung=by_rung)
    hours = [s / 3600 for s in quote(first, Speed(tflops=1e-6, source="t")).device_seconds.values()]
    return saving(quotes, [group], board, 2), hours


def test_the_price_with_early_stopping_counts_who_goes_on() -> None:
    found, (a, b, c) = saved(cells(0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, steps=(30, 60, 120)))
    # 8 at first; then the top 4, with both neighbours among them or not; then the top 2 or 3 and neighbours.
    assert found.least == pytest.approx(8 * a + 4 * b + 3 * c)
    assert found.most == pytest.approx(8 * a + 6 * b + 5 * c)
    assert found.notes == ("depth 1: 8 LRs: 4 to 6 of them go on after the first budget",)
    assert found.describe(price=2.0).startswith(
        f"With early stopping: {found.least:.3g} to {found.most:.3g} device-hours"
    )


def test_what_is_done_is_not_priced_again() -> None:
    found, (_, b, _) = saved(cells(0.01, 0.02, 0.04, 0.08, 0.16, steps=(30, 60, 120)), (1, 3), (5, 1))
    _, (_, _, c) = saved(cells(0.01, steps=(30, 60, 120)))
    # Three of five go on at least, all five at most; one has reached everything.
    assert found.least == pytest.approx(2 * b + 2 * c)
    assert found.most == pytest.approx(4 * b + 4 * c)


@pytest.mark.parametrize(
    ("n", "steps", "note"),
    [
        (3, (30, 60), "depth 1: 3 LRs: early stopping keeps all of them, it needs 4 or more"),
        (1, (30, 60), "depth 1: 1 LR: early stopping keeps all of them, it needs 4 or more"),
        (4, (30,), "depth 1: 4 LRs, one budget: early stopping has nothing to decide"),
        (4, (30, 60), "depth 1: 4 LRs: 3 to 4 of them go on after the first budget"),
    ],
)
def test_where_nobody_can_be_stopped_that_is_said(n: int, steps: tuple[int, ...], note: str) -> None:
    found, hours = saved(cells(*(0.01 * 2**i for i in range(n)), steps=steps))
    assert found.notes == (note,)
    if n < 4:
        assert found.least == found.most == pytest.approx(n * sum(hours))


def test_decided_on_arrival_the_first_are_kept_whatever_they_are() -> None:
    found, (a, b) = saved(cells(0.01, 0.02, 0.04, 0.08, steps=(30, 60)), by_rung=False)
    assert (found.least, found.most) == (pytest.approx(4 * a + 3 * b), pytest.approx(4 * a + 4 * b))
