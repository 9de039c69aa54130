"""What a sweep does with decisions, failures and limits; on real storage, without Ray."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest

from sweeps.board import Board, planned_cells
from sweeps.grid import Device, Grid, Trial, expand
from sweeps.halving import Group, Halving, load_decisions
from sweeps.ledger import Ledger
from sweeps.pace import Pace, on_record
from sweeps.quote import Speed, Startup, evaluation_flops, segment_flops
from sweeps.resources import Resources
from sweeps.session import Session
from tinyllm import record
from tinyllm.config import CorpusFacts, ModelConfig, OptimConfig, TrainConfig
from tinyllm.horizon import Horizon
from tinyllm.record import RunRecord
from tinyllm.recorder import described, unfinished

CORPUS = CorpusFacts(name="c", digest="0", vocab_size=64, seq_len=32, train_tokens=None, val_tokens=4096)
CPU = Device(kind="cpu", name="a CPU", precision="fp32", memory_bytes=None, peak_tflops=None)
TFLOPS = 1e-6


def trials(*steps: int) -> dict[str, Trial]:
    """Four LRs of one size, by run_id, with budgets of so many steps."""
    base = TrainConfig(
        model=ModelConfig(aspect_ratio=16, target_head_dim=8),
        optim=OptimConfig(total_batch_size=128, warmup_tokens=512),
    )
    budgets = tuple(Horizon(value=s, unit="steps") for s in steps)
    cells = expand(Grid(base=base, depths=(1,), lrs=(0.01, 0.02, 0.04, 0.08), budgets=budgets), CORPUS, CPU)
    return {t.run_id: t for t in sorted(cells.trials, key=lambda t: t.lr)}


def session(root: Path, found: dict[str, Trial], **given: Any) -> Session:
    """A new session over the storage, as after a restart."""
    board = Board(planned_cells(found.values()), record.read(str(root)))
    (name,) = {t.config.group for t in found.values()}
    rungs = tuple(b.tokens for b in next(iter(found.values())).plan.budgets)
    decisions = load_decisions((root / "asha.json").read_bytes()) if (root / "asha.json").exists() else []
    group = Group(name=name, lrs={t.run_id: t.lr for t in found.values()}, rungs=rungs, by_rung=True)
    halving = Halving([group], factor=4, decisions=decisions)
    for (run_id, tokens), status in board.status.items():
        if status == "done":
            halving.report(run_id, tokens, board.losses[run_id, tokens])
    defaults = {
        "root": str(root),
        "name": "s",
        "trials": found,
        "board": board,
        "halving": halving,
        "ledger": Ledger(str(root)),
        "pace": Pace(Speed(tflops=TFLOPS, source="test"), Startup(), dict.fromkeys(found, Resources())),
        "slots": 2,
        "admits": lambda run_ids: True,
        "say": lambda line: None,
        "refresh": lambda: None,
    }
    return Session(**{**defaults, **given})


def write_done(root: Path, trial: Trial, index: int, loss: float, **more: Any) -> dict[str, Any]:
    """What a trial does when it reaches a budget: a record, then a report."""
    budget = trial.plan.budgets[index]
    row = RunRecord(
        **described(trial.config, trial.plan, budget),
        status="done",
        attempt="a",
        finished_at=1.0,
        fully_decayed=True,
        val_loss=loss,
        machine="{}",
        **more,
    )
    record.append(str(root), [row])
    return {"rung": index + 1, "planned_tokens": budget.tokens, "val_loss": loss}


def statuses(root: Path) -> dict[tuple[float, int], str]:
    return {(r.lr, r.steps): r.status for r in record.read(str(root))}


def reach_first_rung(root: Path, found: dict[str, Trial], s: Session) -> None:
    for run_id, loss in zip(found, (2.0, 1.0, 3.0, 4.0), strict=True):
        s.reported(run_id, write_done(root, found[run_id], 0, loss))


def test_a_decision_is_on_storage_before_it_acts_and_its_rows_are_made_up_for_after_a_kill(tmp_path: Path) -> None:
    found = trials(30, 60)
    first = session(tmp_path, found)
    reach_first_rung(tmp_path, found, first)
    worst = list(found)[3]
    assert first.answer(worst, 1) == "stop"
    assert statuses(tmp_path)[0.08, 60] == "stopped"
    # Killed after the decision was written and before its rows were.
    for part in (tmp_path / "records").glob(f"part-{worst}-*"):
        if any(r.status == "stopped" for r in record.read(str(tmp_path), worst)):
            part.unlink()
    write_done(tmp_path, found[worst], 0, 4.0)
    assert (0.08, 60) not in statuses(tmp_path)
    again = session(tmp_path, found)
    assert [t.lr for t in again.todo()] == [0.01, 0.02, 0.04]
    assert statuses(tmp_path)[0.08, 60] == "stopped"
    assert again.answer(worst, 1) == "stop"


def test_a_stopped_trial_goes_on_when_that_is_asked_for_and_stays_so(tmp_path: Path) -> None:
    found = trials(30, 60)
    first = session(tmp_path, found)
    reach_first_rung(tmp_path, found, first)
    first.settle()
    retried = session(tmp_path, found)
    assert [t.lr for t in retried.todo(retry_stopped=True)] == [0.01, 0.02, 0.04, 0.08]
    assert session(tmp_path, found).answer(list(found)[3], 1) == "go"


def test_nobody_waits_at_a_new_rung_for_a_trial_that_is_not_run(tmp_path: Path) -> None:
    short, long = trials(30, 60), trials(30, 45, 60, 90)
    first = session(tmp_path, short)
    reach_first_rung(tmp_path, short, first)
    first.settle()  # stops the largest LR
    diverging = list(short)[2]
    plan = short[diverging].plan
    rows = unfinished(
        short[diverging].config, plan, plan.budgets[1:], status="diverged", reason="NaN", sweep="s", attempt="a"
    )
    record.append(str(tmp_path), rows)
    later = session(tmp_path, long)
    going = later.todo()
    assert [t.lr for t in going] == [0.01, 0.02]
    for trial, loss in zip(going, (1.95, 0.95), strict=True):
        later.reported(trial.run_id, write_done(tmp_path, trial, 1, loss))
    assert [later.judged(t.run_id, 2) for t in going] == ["go", "go"]


def test_a_retry_that_was_broken_off_does_not_hold_up_a_rerun_without_it(tmp_path: Path) -> None:
    found = trials(30, 60, 90)
    first = session(tmp_path, found)
    reach_first_rung(tmp_path, found, first)
    first.settle()
    session(tmp_path, found).todo(retry_stopped=True)
    again = session(tmp_path, found)
    going = again.todo()
    assert [t.lr for t in going] == [0.01, 0.02, 0.04]
    for trial, loss in zip(going, (1.9, 0.9, 2.9), strict=True):
        again.reported(trial.run_id, write_done(tmp_path, trial, 1, loss))
    assert [again.judged(t.run_id, 2) for t in going] == ["go", "go", "go"]


def test_a_budget_added_to_a_stopped_trial_is_stopped_as_well(tmp_path: Path) -> None:
    first = session(tmp_path, trials(30, 60))
    reach_first_rung(tmp_path, trials(30, 60), first)
    first.settle()
    assert [t.lr for t in session(tmp_path, trials(30, 60, 90)).todo()] == [0.01, 0.02, 0.04]
    assert statuses(tmp_path)[0.08, 90] == "stopped"


def test_what_a_dead_process_recorded_and_could_not_report_is_learnt_when_its_trial_is_back(tmp_path: Path) -> None:
    found = trials(30, 60)
    s = session(tmp_path, found)
    for run_id, loss in zip(list(found)[:3], (2.0, 1.0, 3.0), strict=True):
        s.reported(run_id, write_done(tmp_path, found[run_id], 0, loss))
    last = list(found)[3]
    assert s.answer(next(iter(found)), 1) == "wait"
    write_done(tmp_path, found[last], 0, 4.0)
    s.reported(last, {"rung": 1, "startup_seconds": 1.0, "new_process": True, "val_loss": None})
    assert [s.answer(run_id, 1) for run_id in found] == ["go", "go", "go", "stop"]


def test_diverged_trials_are_never_run_again_and_failed_ones_always(tmp_path: Path) -> None:
    found = trials(30, 60)
    s = session(tmp_path, found)
    diverged, failed, *rest = found
    s.reported(diverged, {"diverged": True, "reason": "NaN", "done": True})
    s.failed(failed, "killed")
    assert s.innocent == set()
    s.failed(rest[0], "its actor died of the trial before", innocent=True)
    assert s.innocent == {rest[0]}
    assert {statuses(tmp_path)[0.02, steps] for steps in (30, 60)} == {"failed"}
    assert [t.run_id for t in s.todo()] == [failed, *rest]


def test_a_segment_that_does_not_fit_under_the_limit_ends_its_trial_as_budget(tmp_path: Path) -> None:
    found = trials(30, 60)
    first, second, *_ = found
    seconds = (segment_flops(found[first], 0) + evaluation_flops(found[first])) / (TFLOPS * 1e12)
    s = session(tmp_path, found, ledger=Ledger(str(tmp_path), limit_hours=1.5 * seconds / 3600))
    assert s.answer(first, 0) == "go"
    assert s.answer(second, 0) == "stop"
    assert {statuses(tmp_path)[0.02, steps] for steps in (30, 60)} == {"budget"}
    assert "do not fit under the limit" in str(record.read(str(tmp_path))[0].reason)


def test_no_more_trials_go_than_the_cluster_holds(tmp_path: Path) -> None:
    def two(run_ids: Collection[str]) -> bool:
        return len(run_ids) <= 2

    found = trials(30, 60)
    s = session(tmp_path, found, admits=two)
    a, b, c, _ = found
    assert [s.answer(run_id, 0) for run_id in (a, b, c)] == ["go", "go", "wait"]
    s.left(a)
    assert s.answer(c, 0) == "go"
    assert s.judged(a, 0) == "wait"


def test_a_closing_sweep_stops_everybody(tmp_path: Path) -> None:
    found = trials(30, 60)
    s = session(tmp_path, found)
    s.close("interrupted")
    assert s.answer(next(iter(found)), 0) == "stop"
    assert s.closed.get() == "interrupted"
    s.finish()
    assert statuses(tmp_path) == {}


def segment(trial: Trial, rung: int, tflops: float = TFLOPS) -> float:
    """Seconds on one device."""
    return (segment_flops(trial, rung) + evaluation_flops(trial)) / (tflops * 1e12)


def test_the_pace_is_the_sweeps_own_once_it_has_measured_it() -> None:
    trial = next(iter(trials(30, 60).values()))
    pace = Pace(Speed(tflops=TFLOPS, source="test"), Startup(), {trial.run_id: Resources()})
    assert pace.device_seconds(trial, 1, starts=True) == pytest.approx(segment(trial, 1))
    assert not pace.measured
    pace.began(trial, 0, now=100.0, starts=False)
    assert pace.elapsed(trial.run_id, now=104.0) == 4
    pace.ended(trial.run_id, now=100.0 + 3 * segment(trial, 0), group_start=0.0, tokens_per_second=None)
    assert pace.measured
    assert pace.device_seconds(trial, 1, starts=False) == pytest.approx(3 * segment(trial, 1))
    pace.started(8.0, new_process=True)
    pace.started(12.0, new_process=True)
    assert pace.start_seconds(trial, new_process=True) == 10
    assert pace.start_seconds(trial, new_process=False) == Startup().trial


def test_depths_that_are_still_to_come_are_as_much_slower_as_the_one_that_was_measured() -> None:
    trial = next(iter(trials(30, 60).values()))
    prior = Speed(tflops=1.0, source="test", by_depth={1: TFLOPS, 2: 3 * TFLOPS})
    pace = Pace(prior, Startup(), {trial.run_id: Resources()})
    pace.began(trial, 0, now=0.0, starts=False)
    pace.ended(trial.run_id, now=2 * segment(trial, 0), group_start=0.0, tokens_per_second=None)
    assert pace.speed.by_depth == {1: pytest.approx(TFLOPS / 2), 2: pytest.approx(1.5 * TFLOPS)}


def test_the_start_of_a_group_is_no_part_of_its_pace() -> None:
    trial = next(iter(trials(30, 60).values()))
    pace = Pace(Speed(tflops=TFLOPS, source="test"), Startup(group=20), {trial.run_id: Resources(workers=2)})
    assert pace.device_seconds(trial, 0, starts=True) == pytest.approx(segment(trial, 0) + 40)
    assert pace.device_seconds(trial, 0, starts=False) == pytest.approx(segment(trial, 0))
    pace.began(trial, 0, now=100.0, starts=True)
    pace.ended(trial.run_id, now=130.0 + segment(trial, 0), group_start=30.0, tokens_per_second=None)
    # Two devices were held all the time that one had been thought to take.
    assert pace.device_seconds(trial, 1, starts=True) == pytest.approx(2 * segment(trial, 1) + 60)


def test_a_segment_that_was_broken_off_teaches_nothing() -> None:
    trial = next(iter(trials(30, 60).values()))
    pace = Pace(Speed(tflops=TFLOPS, source="test"), Startup(), {trial.run_id: Resources()})
    pace.began(trial, 0, now=100.0, starts=True)
    pace.forget(trial.run_id)
    pace.ended(trial.run_id, now=9999.0, group_start=0.0, tokens_per_second=None)
    assert not pace.measured


def test_what_the_first_segment_of_a_process_pays_once_is_not_expected_again() -> None:
    trial = next(iter(trials(30, 60).values()))
    pace = Pace(Speed(tflops=TFLOPS, source="test"), Startup(), {trial.run_id: Resources()})
    pace.began(trial, 0, now=0.0, starts=True)
    # Eight tenths of the time went into first steps; then it trained at half of the assumed speed.
    per_second = TFLOPS * 1e12 / trial.plan.flops_per_token / 2
    pace.ended(trial.run_id, now=10 * segment(trial, 0), group_start=0.0, tokens_per_second=per_second)
    assert pace.device_seconds(trial, 1, starts=False) == pytest.approx(2 * segment(trial, 1))
    pace.began(trial, 1, now=0.0, starts=False)
    pace.ended(trial.run_id, now=6 * segment(trial, 1), group_start=0.0, tokens_per_second=per_second)
    # Of a later one all time counts: what slows it down, slows down the next.
    both = (2 * segment(trial, 0) + 6 * segment(trial, 1)) / (segment(trial, 0) + segment(trial, 1))
    assert pace.device_seconds(trial, 1, starts=False) == pytest.approx(both * segment(trial, 1))


def test_an_earlier_sessions_speed_is_read_from_its_records(tmp_path: Path) -> None:
    found = trials(30, 60)
    trial = next(iter(found.values()))
    for rung, (spent, per_second) in enumerate([(50.0, None), (8.0, 1e9)]):
        write_done(tmp_path, trial, rung, 2.0, device_seconds=spent, tokens_per_second=per_second, world_size=1)
    work = [segment_flops(trial, rung) + evaluation_flops(trial) for rung in (0, 1)]
    assert on_record(record.read(str(tmp_path)), found.values(), 1.0) == {1: pytest.approx(sum(work) / 58 / 1e12)}
    # Half a GPU does that: a whole one does twice as much.
    assert on_record(record.read(str(tmp_path)), found.values(), 0.5) == {1: pytest.approx(sum(work) / 29 / 1e12)}
    assert on_record([], found.values(), 1.0) == {}


@pytest.mark.parametrize("rung", [0, 1])
def test_a_segment_whose_first_part_another_process_trained_is_not_taken_for_a_fast_one(
    tmp_path: Path, rung: int
) -> None:
    trial = next(iter(trials(30, 60).values()))
    seconds = segment(trial, rung)
    per_second = TFLOPS * 1e12 / trial.plan.flops_per_token
    pace = Pace(Speed(tflops=1.0, source="test"), Startup(), {trial.run_id: Resources()})
    pace.began(trial, rung, now=0.0, starts=True)
    pace.ended(trial.run_id, now=seconds / 10, group_start=0.0, tokens_per_second=per_second)
    assert pace.speed.of(1) == pytest.approx(TFLOPS)
    write_done(tmp_path, trial, rung, 2.0, device_seconds=seconds / 10, tokens_per_second=per_second, world_size=1)
    assert on_record(record.read(str(tmp_path)), [trial], 1.0) == {1: pytest.approx(TFLOPS)}


def test_no_start_up_is_spent_on_what_the_limit_does_not_hold(tmp_path: Path) -> None:
    found = trials(30, 60)
    a, b, c, _ = found
    one = segment(found[a], 0) + Startup().slot
    s = session(tmp_path, found, ledger=Ledger(str(tmp_path), limit_hours=1.5 * one / 3600))
    assert s.admitted(a) == "go"
    assert s.admitted(b) == "wait"  # a may turn out to take less
    s.reported(a, {"rung": 0, "startup_seconds": Startup().slot, "new_process": True, "val_loss": None})
    assert s.answer(a, 0) == "go"
    assert s.admitted(b) == "wait"
    s.ledger.charge(one / 2)
    assert s.admitted(b) == "stop"
    assert {statuses(tmp_path)[0.02, steps] for steps in (30, 60)} == {"budget"}
    s.lost(a)
    assert s.admitted(c) == "stop"
