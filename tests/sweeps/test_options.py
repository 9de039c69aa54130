"""Flags that no sweep could run with are refused where they are read: a dry run accepts what a sweep does, no more."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sweeps.limit import Limit
from sweeps.options import SweepOptions
from tinyllm.options import RunOptions


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"slots": 0}, "--slots 0: at least one trial runs at a time"),
        ({"slots": -2}, "--slots -2: at least one"),
        ({"reduction_factor": 1}, "--reduction-factor 1: at least 2, or --no-early-stop"),
        ({"cpus_per_worker": 0}, "more than 0 CPUs"),
        ({"cpus_per_worker": math.nan}, "more than 0 CPUs"),
        ({"cpus_per_worker": math.inf}, "more than 0 CPUs"),
        ({"gpus_per_worker": -1}, "0 or more GPUs"),
        ({"cpus_per_worker": 1.5}, "above 1, Ray gives whole CPUs only"),
        ({"gpus_per_worker": 2}, "a worker computes on one GPU"),
        ({"gpus_per_worker": 0.5, "workers": ("3=2",)}, "or on a part of one where it is alone"),
        ({"workers": ("two",)}, "--workers 'two': write DEPTH=WORKERS"),
        ({"workers": ("3=0",)}, "--workers 3=0: a trial has at least one worker"),
        ({"workers": ("3=2", "3=4")}, "--workers 3=2 3=4: depth 3 stands twice"),
        ({"seeds": (-1,)}, "--seeds -1: a seed is a whole number from 0"),
        ({"seeds": (2**63,)}, "--seeds 9223372036854775808: a seed"),
        ({"run": RunOptions(resume_from=5)}, "--resume-from 5 is for a single run"),
        ({"run": RunOptions(stop_after=5)}, "--stop-after 5 is for a single run"),
        ({"name": "a/b"}, "--name 'a/b': a name without / is wanted"),
        *(({"price": v}, "--price .*: must be positive and finite") for v in (0, -1, math.nan, math.inf)),
        *(({"max_gpu_hours": v}, "--max-gpu-hours .*: must be positive") for v in (0, -1, math.nan, math.inf)),
        *(({"max_cost": v, "price": 1}, "--max-cost .*: must be positive") for v in (0, -1, math.nan, math.inf)),
        ({"max_cost": 3.0}, "--max-cost 3 needs the price of a device for an hour: --price"),
    ],
)
def test_what_no_sweep_could_run_with_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SweepOptions(**given)


def test_workers_by_depth_take_the_entry_at_or_below() -> None:
    options = SweepOptions(workers=("24=8", "12=2"), gpus_per_worker=1)
    assert [options.resources(d, on_gpu=True).workers for d in (4, 12, 20, 24, 48)] == [1, 2, 2, 8, 8]


def test_the_lower_limit_counts_and_only_what_is_too_low_is_raised() -> None:
    limit = Limit(gpu_hours=2.0, cost=9.0, price=3.0)
    assert limit.hours == 2.0
    assert limit.raised(1.9) == []
    assert limit.raised(2.5) == ["--max-gpu-hours", "2.5"]
    assert limit.raised(4.0001) == ["--max-gpu-hours", "4.01", "--max-cost", "12.1"]
    assert Limit(cost=9.0, price=3.0).hours == 3.0
    assert Limit(price=3.0).hours is None


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("x --max-gpu-hours 1 --name s", "x --name s --max-gpu-hours 2.5"),
        ("x --max-gpu-hours=1 --name 's t'", "x --name 's t' --max-gpu-hours 2.5"),
        ("x --max_gpu_hours 1", "x --max-gpu-hours 2.5"),
    ],
)
def test_a_command_with_a_higher_limit(command: str, expected: str) -> None:
    assert Limit(gpu_hours=1.0).command(command, 2.5) == expected
    assert Limit(gpu_hours=3.0).command(command, 2.5) == command


def test_a_limit_below_the_cheapest_segment_is_refused_with_one_that_is_not() -> None:
    limit = Limit(gpu_hours=0.5)
    with pytest.raises(ValueError, match=r"--max-gpu-hours 0.5: .*quoted at 0.6, .* give --max-gpu-hours 0.6 or more"):
        limit.refuse(0.0, [0.9, 0.6])
    with pytest.raises(ValueError, match=r"0.4 of 0.5 device-hours are spent.* give --max-gpu-hours 0.6 or more"):
        limit.refuse(0.4, [0.9, 0.2])
    limit.refuse(0.4, [0.9, 0.1])
    limit.refuse(0.4, [])
    Limit().refuse(0.4, [9.0])


SETTINGS = ["model.vocab_size=64", "model.seq_len=32", "model.aspect_ratio=16", "model.target_head_dim=8"]
SETTINGS += ["optim.total_batch_size=128", "optim.warmup_tokens=512", "data.eval_tokens=1024"]


def refused(tmp_path: Path, *flags: str) -> str:
    """What a user reads whose sweep is refused, before Ray starts."""
    command = [sys.executable, "-m", "sweeps.depth_grid", "--address", "local", "--preset", "base", "--depths", "1"]
    command += ["--lrs", "0.01", "0.02", "--budgets", "30", "60", "--unit", "steps", "--data", "zipf:V=64,s=1.5"]
    command += ["--storage", str(tmp_path), *flags, "--set", *SETTINGS]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2, done.stdout + done.stderr
    assert "Started Ray" not in done.stdout
    return done.stderr


@pytest.mark.parametrize("dry", [["--dry-run"], []])
def test_what_does_not_fit_is_refused_before_ray_starts(dry: list[str], tmp_path: Path) -> None:
    asked = refused(tmp_path, "--cpus-per-worker", "999", "--slots", "3", *dry)
    assert "can't hold a trial of 1 worker(s) with 999 CPUs and 0 GPUs: ask for less" in asked
    text = refused(tmp_path, "--max-gpu-hours", "0.0001", *dry)
    assert "error: --max-gpu-hours 0.0001: that is 0.0001 device-hours, and the cheapest segment to be run" in text
    assert text.rstrip().endswith("or more")
