"""What to run next: trials that nobody ran, by a command that runs them."""

import dataclasses
import json
import shlex
import subprocess
import sys

import numpy as np
import pytest

from analysis import sample
from analysis.lr import fit_lr_optimum
from analysis.runs import load
from analysis.study import study
from analysis.trials import Trial, around_best, commands, known_sweep, with_lrs
from tinyllm import record


def runs_of(**rows):
    return load(record.frame(sample.records(**rows)))


def held(runs, trial):
    """LRs and seeds that the records hold at the trial's size and token count."""
    table = runs.table[np.isclose(runs.table["n"], trial.n) & (np.abs(runs.table["d"] / trial.d - 1) < 0.09)]
    return {(float(f"{lr:.2g}"), seed) for lr, seed in zip(table["lr"], table["seed"], strict=True)}


@pytest.mark.parametrize(
    "rows",
    [
        {},
        {"depths": (3,)},
        {"depths": (2, 3), "budgets": (200_000, 400_000), "lrs": (0.005, 0.01)},
        {"lrs": (0.03,)},
        {"depths": (2, 3, 4), "seeds": (0, 1)},
    ],
    ids=["whole", "one size", "edge", "one LR", "two seeds"],
)
def test_nothing_is_advised_that_was_run(rows):
    runs = runs_of(**rows)
    trials = study(runs, bootstrap=50).next_trials
    assert trials
    for trial in trials:
        assert trial.lrs
        assert not {(lr, trial.seed) for lr in trial.lrs} & held(runs, trial), trial
        assert len(set(trial.lrs)) == len(trial.lrs)


def test_a_new_size_gets_lrs_around_its_best():
    runs = runs_of()
    law = fit_lr_optimum(runs)
    (trial,) = with_lrs([Trial(depth=8, n=2e6, d=1e7, flops=1e15, gain=0.5)], runs, law)
    low, centre, high = trial.lrs
    assert low < sample.TRUE_LR(2e6, 1.0) < high
    assert high / centre == pytest.approx(np.sqrt(2), rel=0.06) and centre / low == pytest.approx(np.sqrt(2), rel=0.06)


@pytest.mark.parametrize(
    ("lrs", "beyond"),
    [((0.005, 0.01), (0.02, 0.04)), ((0.04, 0.08), (0.02, 0.01)), ((0.03,), (0.015, 0.06))],
    ids=["high edge", "low edge", "one LR"],
)
def test_an_edge_is_gone_beyond_at_all_its_token_counts(lrs, beyond):
    runs = runs_of(depths=(3, 4), budgets=(1_000_000, 2_000_000), lrs=lrs)
    trials = around_best(runs, another_seed=False)
    assert [trial.depth for trial in trials] == [3, 4]
    tokens = sorted(runs.table["d"].unique())
    for trial in trials:
        assert set(trial.lrs) == set(beyond)
        assert (*trial.branches, trial.d) == tuple(tokens)
    assert around_best(runs_of(), another_seed=False) == []


def test_another_seed_repeats_a_trial_and_says_so():
    runs = runs_of(depths=(3, 4, 5))
    (trial,) = around_best(runs, another_seed=True)
    assert (trial.depth, trial.seed) == (3, 1) and "another seed" in trial.why
    assert {(trial.lrs[0], 0)} <= held(runs, trial)


def test_commands_go_on_with_the_sweep_and_run(tmp_path):
    runs = runs_of(depths=(2, 3), budgets=(200_000, 400_000), lrs=(0.005, 0.01))
    place = f"--name {tmp_path.name} --storage {tmp_path.parent} --address local"
    started = f"python -m sweeps.isoflop --preset smoke --data zipf {place}"
    (tmp_path / "sweep.json").write_text(json.dumps({"command": f"{started} --flops 1e11 2e11 --lrs 0.1 --seeds 7"}))
    trials = [
        Trial(depth=4, n=1e5, d=d, flops=1e12, gain=None, lrs=(0.01, 0.02), seed=seed)
        for d in (4e5, 123456.0)
        for seed in (0, 1)
    ]
    nameless = dataclasses.replace(trials[0], depth=None)
    found = commands([*trials, nameless], dataclasses.replace(runs, source=str(tmp_path)))
    base = started.replace("isoflop", "depth_grid")
    assert found == [f"{base} --depths 4 --lrs 0.01 0.02 --budgets 123000 400000 --seeds {seed}" for seed in (0, 1)]
    words = shlex.split(found[0])[1:]
    done = subprocess.run([sys.executable, *words, "--dry-run"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "2 trials" in done.stdout


@pytest.mark.parametrize("content", ['{"project": "other"}', "[1]", '{"command": null}'])
def test_a_file_of_another_program_beside_the_records_is_no_command(tmp_path, content):
    (tmp_path / "sweep.json").write_text(content)
    runs = dataclasses.replace(runs_of(), source=str(tmp_path))
    assert not known_sweep(runs.source)
    (found,) = commands([Trial(depth=4, n=1e5, d=4e5, flops=1e12, gain=None, lrs=(0.01,), seed=0)], runs)
    assert found.startswith("python -m sweeps.depth_grid --depths 4 ")


def test_a_sweep_of_two_seeds_goes_on_with_both():
    runs = runs_of(depths=(2, 3), budgets=(200_000, 400_000), seeds=(0, 1))
    trials = study(runs, bootstrap=0).next_trials
    found = commands(trials, runs)
    assert found and all(command.endswith(" --seeds 0 1") for command in found)
    # A seed of its own is what that trial is for.
    probe = dataclasses.replace(next(trial for trial in trials if trial.lrs), seed=2)
    assert commands([probe], runs)[0].endswith(" --seeds 2")


def test_a_sweep_that_left_no_command_gets_a_bare_one(sample_runs):
    trial = Trial(depth=4, n=1e5, d=4e5, flops=1e12, gain=None, lrs=(0.01,))
    assert commands([trial], sample_runs) == [
        "python -m sweeps.depth_grid --depths 4 --lrs 0.01 --budgets 400000 --seeds 0"
    ]
