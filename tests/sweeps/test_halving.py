"""Halving against closed rules: hand-made losses, any order of arrival, restarts."""

from __future__ import annotations

import itertools
import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sweeps.halving import Group, Halving, kept, load_decisions

LRS = {"a": 0.01, "b": 0.02, "c": 0.04, "d": 0.08, "e": 0.16}


def halving(*, rungs: tuple[int, ...] = (100, 250, 700), by_rung: bool = True, factor: int = 2) -> Halving:
    return Halving([Group(name="g", lrs=LRS, rungs=rungs, by_rung=by_rung)], factor=factor)


@pytest.mark.parametrize(
    ("losses", "factor", "expected"),
    [
        # A parabola around c: the top 2 of 5 at factor 3, and the neighbours of the best.
        ({"a": 5.0, "b": 4.0, "c": 3.0, "d": 4.5, "e": 6.0}, 3, "bcd"),
        # The minimum at the lower edge keeps the two nearest, although e is second best.
        ({"a": 3.0, "b": 4.0, "c": 5.0, "d": 6.0, "e": 3.5}, 5, "abc"),
        ({"a": 6.0, "b": 5.0, "c": 5.0, "d": 4.0, "e": 3.0}, 5, "cde"),
        # The top 3 of 5 are at one side, the neighbours at the other.
        ({"a": 1.0, "b": 9.0, "c": 8.0, "d": 2.0, "e": 3.0}, 2, "abcde"),
        # A loss that is not finite counts as compared and is never kept; neighbours are the nearest that live.
        ({"a": 4.0, "b": float("inf"), "c": 3.0, "d": float("nan"), "e": 5.0}, 5, "ace"),
        ({"a": float("inf")}, 2, ""),
        ({"a": 2.0, "b": 1.0}, 2, "ab"),
    ],
)
def test_the_best_and_its_neighbours_are_kept(losses: dict[str, float], factor: int, expected: str) -> None:
    assert set(kept(losses, LRS, factor)) == set(expected)


def test_a_rung_waits_for_every_live_trial_and_is_decided_once() -> None:
    h = halving()
    for run_id in "abcd":
        h.report(run_id, 100, 3.0 if run_id == "b" else 4.0)
        assert h.settle() == ()
        assert h.verdict(run_id, 100) is None
    h.report("e", 100, 9.0)
    assert {d.run_id: d.keep for d in h.settle()} == {"a": True, "b": True, "c": True, "d": False, "e": False}
    assert h.settle() == ()


def test_a_decision_says_why() -> None:
    h = halving(factor=5)
    for run_id, loss in zip("abcde", (5.0, 4.0, 3.0, 4.5, math.inf), strict=True):
        h.report(run_id, 100, None if math.isinf(loss) else loss)
    assert {d.run_id: d.reason for d in h.settle()} == {
        "a": "rank 4 of 5 at 100 tokens, neither among the best nor next to the best LR",
        "b": "rank 2 of 5 at 100 tokens, next to the best LR",
        "c": "rank 1 of 5 at 100 tokens, among the best 1",
        "d": "rank 3 of 5 at 100 tokens, next to the best LR",
        "e": "rank 5 of 5 at 100 tokens, diverged",
    }
    edge = halving()
    for run_id, loss in zip("abcde", (1.0, 2.0, 9.0, 3.0, 8.0), strict=True):
        edge.report(run_id, 100, loss)
    reasons = {d.run_id: d.reason for d in edge.settle()}
    assert reasons["c"] == "rank 5 of 5 at 100 tokens, near the best LR, at the edge"
    assert reasons["d"] == "rank 3 of 5 at 100 tokens, among the best 3"


def test_nobody_waits_for_a_trial_that_failed_until_it_is_tried_again() -> None:
    h = halving()
    for run_id in "abcd":
        h.report(run_id, 100, 4.0)
    h.drop("e")
    h.readmit("e")
    assert h.settle() == ()
    h.drop("e")
    assert {d.run_id for d in h.settle()} == set("abcd")


def test_a_trial_that_diverged_is_neither_kept_nor_awaited_later() -> None:
    h = halving(factor=5)
    for run_id, loss in zip("abcd", (5.0, 4.0, 3.0, 4.0), strict=True):
        h.report(run_id, 100, loss)
    h.report("e", 100, None)
    kept_ids = {d.run_id for d in h.settle() if d.keep}
    assert kept_ids == set("bcd")
    for run_id in kept_ids:
        h.report(run_id, 250, 3.0)
    assert {d.run_id for d in h.settle()} == kept_ids


def test_there_is_no_decision_at_the_last_rung() -> None:
    h = halving(rungs=(100,))
    for run_id in LRS:
        h.report(run_id, 100, 1.0)
    assert h.settle() == ()
    assert h.verdict("e", 100) is True


def test_an_asynchronous_rung_stops_nobody_before_there_are_two_peers() -> None:
    h = halving(by_rung=False, factor=3)
    for run_id, loss in (("c", 3.0), ("e", 9.0)):
        h.report(run_id, 100, loss)
        (decision,) = h.settle()
        assert decision.keep
    h.report("a", 100, 10.0)
    h.report("b", 100, 4.0)
    h.report("d", 100, 5.0)
    assert {d.run_id: d.keep for d in h.settle()} == {"a": False, "b": True, "d": True}


def test_k_6_at_factor_3_keeps_a_third_at_each_of_five_rungs() -> None:
    """81 LRs, 6 budgets that are no geometric series: 27, 9, 3, then the best and its neighbours; none at the last."""
    lrs = {f"r{i:02d}": 1e-3 * 1.1**i for i in range(81)}
    rungs = (1_000, 2_300, 3_100, 9_999, 10_240, 77_777)
    h = Halving([Group(name="g", lrs=lrs, rungs=rungs, by_rung=True)], factor=3)
    alive = set(lrs)
    sizes = []
    for rung in rungs:
        for run_id in alive:
            h.report(run_id, rung, abs(int(run_id[1:]) - 40.2))
        stopped = {d.run_id for d in h.settle() if not d.keep}
        alive -= stopped
        sizes.append(len(alive))
    assert sizes == [27, 9, 3, 3, 3, 3]
    assert alive == {"r39", "r40", "r41"}


@given(st.permutations(list(itertools.product("abcde", (100, 250)))), st.integers(2, 5))
def test_by_rung_decisions_do_not_depend_on_the_order_of_arrival(order: list[tuple[str, int]], factor: int) -> None:
    losses = {(r, t): random.Random(f"{r}{t}").random() for r in LRS for t in (100, 250)}

    def play(sequence: list[tuple[str, int]]) -> dict[tuple[str, int], bool]:
        h = halving(factor=factor)
        waiting = list(sequence)
        while waiting:
            # A trial reports a rung only when the rung before let it go on.
            ready = [(r, t) for r, t in waiting if t == 100 or h.verdict(r, 100)]
            dead = [(r, t) for r, t in waiting if t == 250 and h.verdict(r, 100) is False]
            if not ready:
                assert waiting == dead
                break
            run_id, rung = ready[0]
            waiting.remove((run_id, rung))
            h.report(run_id, rung, losses[run_id, rung])
            h.settle()
        return {(d.run_id, d.rung): d.keep for d in h.decisions.values()}

    assert play(order) == play(sorted(order))


@given(st.integers(0, 10), st.booleans())
def test_a_restart_decides_the_same(cut: int, by_rung: bool) -> None:
    """Killed after any number of reports, with the decisions that were on storage and the records of those reports."""
    reports = [(r, t, random.Random(f"{t}{r}").random()) for t in (100, 250) for r in "cabed"]

    def feed(h: Halving, some: list[tuple[str, int, float]]) -> None:
        for run_id, rung, loss in some:
            if rung == 100 or h.verdict(run_id, 100):
                h.report(run_id, rung, loss)
                h.settle()

    undisturbed = halving(by_rung=by_rung)
    feed(undisturbed, reports)
    first = halving(by_rung=by_rung)
    feed(first, reports[:cut])
    second = Halving(first.groups.values(), factor=2, decisions=load_decisions(first.to_json()))
    for run_id, rung, loss in reports[:cut]:
        if rung == 100 or first.verdict(run_id, 100):
            second.report(run_id, rung, loss)
    second.settle()
    feed(second, reports[cut:])
    assert second.decisions == undisturbed.decisions


def test_a_larger_grid_judges_newcomers_and_leaves_old_decisions() -> None:
    small = Halving([Group(name="g", lrs={k: LRS[k] for k in "abc"}, rungs=(1, 2), by_rung=True)], factor=3)
    for run_id, loss in zip("abc", (3.0, 2.0, 1.0), strict=True):
        small.report(run_id, 1, loss)
    small.settle()
    large = Halving(
        [Group(name="g", lrs=LRS, rungs=(1, 2), by_rung=True)], factor=5, decisions=small.decisions.values()
    )
    for run_id, loss in zip("abcde", (3.0, 2.0, 1.0, 0.5, 0.7), strict=True):
        large.report(run_id, 1, loss)
    assert {d.run_id: d.keep for d in large.settle()} == {"d": True, "e": True}
    assert large.verdict("a", 1) is True


def test_a_stopped_trial_goes_on_when_pardoned() -> None:
    h = halving(factor=5)
    for run_id, loss in zip("abcde", (1.0, 2.0, 3.0, 4.0, 5.0), strict=True):
        h.report(run_id, 100, loss)
    h.settle()
    assert h.stopped("e") is not None
    h.pardon("e")
    assert h.stopped("e") is None
    assert h.verdict("e", 100) is True
