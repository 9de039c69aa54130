"""Probes: as many as slow each other down, with a trial's threads, of a speed that a trial has."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import pytest

from sweeps import cluster, probe
from sweeps.grid import Grid, expand
from sweeps.options import SweepOptions
from sweeps.resources import Resources
from tinyllm.data import Corpus
from tinyllm.options import RunOptions
from tinyllm.worker import corpus_facts

Make = Callable[..., tuple[SweepOptions, Grid]]
NODES = [{"CPU": 8.0, "GPU": 2.0}, {"CPU": 4.0}]


@pytest.mark.parametrize(
    ("resources", "slots", "expected"),
    [
        (Resources(), None, 12),
        (Resources(cpus=3), None, 3),
        (Resources(), 2, 2),
        (Resources(workers=4), 2, 8),
        (Resources(gpus=1), None, 1),
        (Resources(gpus=0.25), None, 4),
        (Resources(cpus=64), None, 1),  # of a cluster that is to grow
    ],
)
def test_as_many_probes_run_as_trials_slow_each_other_down(
    resources: Resources, slots: int | None, expected: int
) -> None:
    assert probe.at_once(resources, NODES, slots) == expected


def test_a_probe_has_the_threads_of_a_trial(make_sweep: Make) -> None:
    _, grid = make_sweep(depths=(1, 2), lrs=(0.01,))
    corpus = Corpus.open(str(grid.base.data.data))
    configs = [t.config for t in expand(grid, corpus_facts(corpus), cluster.this_machines_device("cpu")).trials]
    speeds = probe.measured_here(configs, RunOptions(), Resources(cpus=2), 2)
    assert len(speeds) == 2
    assert min(speeds) > 0
    code = f"""
import torch
from sweeps.probe import _measure
from tinyllm.config import TrainConfig
from tinyllm.options import RunOptions
_measure([TrainConfig.from_json({configs[0].to_json()!r})], RunOptions(), 1.0, threads=2)
print(torch.get_num_threads())
"""
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout == "2\n"
