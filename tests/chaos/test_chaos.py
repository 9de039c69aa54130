"""Crash and continue: SIGKILL of a worker, a trial's driver, a node and the sweep itself, at every moment of a trial.

Each kill once and each moment at least once run with every test; `make soak` runs the rest of the matrix.
"""

from __future__ import annotations

import itertools

import pytest
from chaos import Chaos, Moment, Victim, assert_same

from tinyllm.record import RunRecord

MOMENTS: tuple[Moment, ...] = ("trunk", "branch", "checkpoint", "record")
VICTIMS: tuple[Victim, ...] = ("worker", "trial", "raylet", "sweep", "driver")
SQUARE = set(zip(VICTIMS, (*MOMENTS, "branch"), strict=True))
MATRIX = [
    pytest.param(victim, moment, marks=() if (victim, moment) in SQUARE else pytest.mark.soak)
    for victim, moment in itertools.product(VICTIMS, MOMENTS)
]


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("victim", "moment"), MATRIX)
def test_a_killed_sweep_ends_as_if_nothing_had_happened(
    victim: Victim, moment: Moment, chaos: Chaos, undisturbed: dict[tuple[float, int], RunRecord]
) -> None:
    workers = 2 if victim in ("worker", "driver") else 1
    chaos.ask_for(moment, node="second" if victim == "raylet" else "any")
    sweep = chaos.start(workers=workers)
    pid = chaos.wait_for_moment()
    chaos.kill(victim, sweep, pid)
    if victim == "sweep":
        sweep = chaos.start(workers=workers)
    text = chaos.finish(sweep)
    assert "4 budgets: 4 done" in text
    assert_same(chaos.records(), undisturbed)
