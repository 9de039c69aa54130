"""Prices against arithmetic done by hand."""

from __future__ import annotations

import pytest
from rich.console import Console

from sweeps import grids
from sweeps.grid import Device, expand
from sweeps.quote import (
    Speed,
    Startup,
    assumed_speed,
    compact,
    quote,
    refused_table,
    segment_flops,
    startup_seconds,
    summary,
    table,
)
from sweeps.resources import Resources
from tinyllm.config import CorpusFacts

SOTU = CorpusFacts(name="sotu", digest="0", vocab_size=1024, seq_len=256, train_tokens=2_700_000, val_tokens=65_536)
CPU = Device(kind="cpu", name="a CPU", precision="fp32", memory_bytes=None, peak_tflops=None)


def test_the_smoke_grid_stays_under_10_tflop() -> None:
    cells = expand(grids.smoke(), SOTU, CPU)
    quotes = [quote(t, Speed(tflops=0.02, source="test")) for t in cells.trials]
    assert len(quotes) == 15
    assert cells.refused == ()
    # Trunk to the last fork and four branches, in tokens; 6 x matmul parameters + attention, in FLOPs a token.
    trunk, branches = (390 - 78) * 2048, (10 + 19 + 39 + 78) * 2048
    assert {q.tokens for q in quotes} == {trunk + branches}
    depth_3 = 6 * (3 * 12 * 48**2 + 1024 * 48) + 3 * 12 * 48 * 256
    assert max(q.flops for q in quotes) == (trunk + branches) * depth_3
    assert sum(q.flops for q in quotes) < 10e12
    assert f"{sum(q.flops for q in quotes) / 1e12:.4g} TFLOP" in summary(quotes)


def test_segments_add_up_to_the_trial() -> None:
    for trial in expand(grids.smoke(), SOTU, CPU).trials:
        parts = [segment_flops(trial, i) for i in range(len(trial.plan.budgets))]
        assert sum(parts) == trial.plan.trained_flops


def test_hours_and_money_follow_from_the_speed_of_the_depth() -> None:
    trial = expand(grids.smoke(), SOTU, CPU).trials[0]
    slow, fast = Speed(tflops=1e-3, source="t"), Speed(tflops=1e-3, source="t", by_depth={trial.depth: 2e-3})
    # Four evaluations of 65,536 tokens, each a forward pass: a third of training.
    work = trial.plan.trained_flops + 4 * 65_536 * trial.plan.flops_per_token / 3
    assert quote(trial, slow).device_hours == pytest.approx(work / 1e9 / 3600)
    assert quote(trial, slow).device_hours == 2 * quote(trial, fast).device_hours
    assert quote(trial, slow, price=3.0).cost == pytest.approx(3 * quote(trial, slow).device_hours)
    assert quote(trial, slow, startup=36.0).device_hours == pytest.approx(quote(trial, slow).device_hours + 0.01)


def test_only_what_is_left_of_a_trial_is_priced() -> None:
    trial, speed = expand(grids.smoke(), SOTU, CPU).trials[0], Speed(tflops=1e-3, source="t")
    whole = quote(trial, speed)
    last = trial.plan.budgets[-1].tokens
    rest = quote(trial, speed, budgets=[last], startup=36.0, note="3 done")
    # From the fork of the third budget on.
    assert rest.tokens == (390 - trial.plan.budgets[2].fork_step) * 2048
    assert rest.device_hours == pytest.approx(whole.device_seconds[last] / 3600 + 0.01)
    nothing = quote(trial, speed, budgets=[], startup=36.0, note="4 done")
    assert (nothing.tokens, nothing.device_hours) == (0, 0)
    assert "Total: 2 trials, 1 of 8 budgets to run" in summary([rest, nothing])


def test_start_up_is_each_trials_own_and_its_share_of_the_slots() -> None:
    one, four, startup = Resources(), Resources(workers=4), Startup(slot=10, trial=1, group=20)
    assert startup_seconds(startup, one, trials=20, slots=2) == 1 + 10 / 10
    assert startup_seconds(startup, one, trials=1, slots=2) == 1 + 10
    assert startup_seconds(startup, four, trials=4, slots=2) == 4 * (1 + 20 + 10 / 2)


def test_a_gpu_is_assumed_to_reach_a_share_of_its_peak() -> None:
    gpu = Device(kind="cuda", name="H100", precision="bf16", memory_bytes=None, peak_tflops=989.0)
    assert assumed_speed(gpu).tflops == pytest.approx(0.4 * 989)
    assert str(assumed_speed(gpu)) == "speed assumed, 396 TFLOP/s for H100 at 40% of its peak: --probe measures it"
    assert str(assumed_speed(CPU)) == "speed assumed, 20 GFLOP/s for a CPU core: --probe measures it"


def test_a_depth_that_was_not_measured_is_as_fast_as_the_nearest() -> None:
    speed = Speed(tflops=1.0, source="t", by_depth={2: 0.01, 8: 0.04})
    assert [speed.of(d) for d in (1, 2, 5, 6, 12)] == [0.01, 0.01, 0.01, 0.04, 0.04]
    assert str(speed) == "speed measured, 10 GFLOP/s at depth 2, 40 GFLOP/s at depth 8"


def test_tables_name_every_trial_and_every_refusal() -> None:
    short = CorpusFacts(name="c", digest="0", vocab_size=1024, seq_len=256, train_tokens=60_000, val_tokens=65_536)
    cells = expand(grids.smoke(), short, CPU)
    console = Console(width=200, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    quotes = [quote(t, Speed(tflops=0.02, source="test")) for t in cells.trials]
    console.print(table(quotes, Speed(tflops=0.02, source="test")), refused_table(cells.refused))
    text = console.export_text()
    assert all(t.run_id in text for t in cells.trials)
    assert "400000 tokens" in text
    assert "more than 4" in text


@pytest.mark.parametrize(("value", "text"), [(999, "999"), (98_304, "98.3k"), (1.5e6, "1.5M"), (2e9, "2B")])
def test_compact(value: float, text: str) -> None:
    assert compact(value) == text
