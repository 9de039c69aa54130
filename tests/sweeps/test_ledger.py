"""The ledger against a clock that the test turns."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sweeps.ledger import GAP_S, WRITE_EVERY_S, Ledger


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def entry(tmp_path: Path) -> dict[str, float]:
    return json.loads((tmp_path / "ledger.json").read_text())


def test_devices_are_charged_while_they_are_held(tmp_path: Path, clock: Clock) -> None:
    ledger = Ledger(str(tmp_path), price=2.0, clock=clock)
    ledger.tick({"a": 1, "b": 4})
    clock.now += 3600
    ledger.tick({"b": 4})
    clock.now += 1800
    ledger.charge(360)
    ledger.close()
    clock.now += 9999
    ledger.tick({})
    assert ledger.hours == pytest.approx(1 + 4 + 2 + 0.1)
    assert str(ledger) == "7.1 device-hours, cost 14.20"


def test_a_segment_starts_only_if_spent_and_reserved_and_its_quote_fit(tmp_path: Path, clock: Clock) -> None:
    ledger = Ledger(str(tmp_path), limit_hours=100 / 3600, clock=clock)
    assert ledger.reserve("a", 60)
    assert not ledger.reserve("b", 41)
    assert ledger.reserve("b", 40)
    ledger.tick({"a": 1, "b": 1})
    clock.now += 20
    ledger.tick({"a": 1, "b": 1})  # 40 spent; 40 and 20 left of what was reserved
    assert not ledger.reserve("c", 1)
    ledger.release("b")
    assert ledger.reserve("c", 20)
    assert not ledger.exhausted
    clock.now += 30
    ledger.tick({"a": 1})
    assert ledger.exhausted


def test_a_trial_that_trains_goes_before_one_that_waits_for_a_slot(tmp_path: Path, clock: Clock) -> None:
    ledger = Ledger(str(tmp_path), limit_hours=100 / 3600, clock=clock)
    assert ledger.reserve("a", 60)
    assert ledger.ask("b", 101) == "stop"  # would not fit by itself
    assert ledger.ask("b", 41) == "wait"
    assert ledger.ask("b", 30) == "go"
    assert ledger.ask("c", 11) == "wait"
    ledger.release("a")
    assert ledger.reserve("a", 100)
    assert not ledger.reserve("b", 30)
    ledger.release("a")
    ledger.charge(90)
    assert ledger.ask("c", 11) == "stop"


@pytest.mark.parametrize("text", ['{"open": true, "spent_device_seconds": 5}', "[]", "nonsense"])
def test_a_ledger_of_another_version_is_named_with_the_remedy(tmp_path: Path, text: str) -> None:
    (tmp_path / "ledger.json").write_text(text)
    with pytest.raises(
        ValueError, match=r"ledger.json is no ledger of this version \(it lacks .*quotes.*\): go on with"
    ):
        Ledger(str(tmp_path))


def test_what_was_spent_outlives_the_process_and_a_kill_costs_a_whole_gap(tmp_path: Path, clock: Clock) -> None:
    first = Ledger(str(tmp_path), clock=clock)
    first.tick({"a": 2})
    clock.now += WRITE_EVERY_S
    first.tick({"a": 2})  # written, then killed
    again = Ledger(str(tmp_path), clock=clock)
    assert again.spent == 2 * (WRITE_EVERY_S + GAP_S)
    again.close()
    assert Ledger(str(tmp_path), clock=clock).spent == again.spent


def test_what_was_spent_is_held_against_the_first_quote_of_each_budget(tmp_path: Path, clock: Clock) -> None:
    first = Ledger(str(tmp_path), clock=clock)
    first.open({("a", 100): 1800.0, ("a", 200): 3600.0})
    first.tick({"a": 1})
    clock.now += 3600
    first.close()
    again = Ledger(str(tmp_path), clock=clock)
    # Half of it is done, and by now the rest is known to take twice as long; a budget was added.
    again.open({("a", 200): 7200.0, ("a", 300): 5400.0})
    spent = "Spent: 1 device-hours. Quoted at first: 3 for all 3 budgets (0.33 x)"
    assert again.account([("a", 100)]) == f"{spent}, 0.5 for the 1 that were reached (2.00 x)."
    everything = [("a", 100), ("a", 200), ("a", 300)]
    assert again.account(everything) == f"{spent}."


def test_it_is_written_at_least_every_10_seconds_and_at_every_change(tmp_path: Path, clock: Clock) -> None:
    ledger = Ledger(str(tmp_path), clock=clock)
    ledger.tick({"a": 1})
    assert entry(tmp_path)["holding_devices"] == 1
    for _ in range(100):
        clock.now += 0.1
        ledger.tick({"a": 1})
        assert ledger.spent - entry(tmp_path)["spent_device_seconds"] <= 10
    assert WRITE_EVERY_S <= GAP_S == 10
