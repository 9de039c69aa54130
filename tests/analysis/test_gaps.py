"""What is missing before a law is identified: it is there once those runs are."""

import itertools

import numpy as np
import pandas as pd
import pytest

from analysis.fit import fit_points
from analysis.gaps import missing_trials
from analysis.laws import LossSurface
from analysis.result import Caveat
from analysis.runs import load
from tinyllm.config import ModelConfig

LAW = LossSurface(A=406.4, B=410.7, E=1.69, alpha=0.34, beta=0.28)
MODEL = ModelConfig(depth=4, aspect_ratio=64, vocab_size=4096, seq_len=512)


def points(cells):
    n, d = (np.array(values) for values in zip(*cells, strict=True))
    return load(pd.DataFrame({"n_params": n, "tokens": d, "loss": LAW.loss(n, d)})).best()


@pytest.mark.parametrize("ladder", [None, MODEL], ids=["free", "ladder"])
@pytest.mark.parametrize(("sizes", "tokens"), [(1, 1), (1, 4), (2, 2), (4, 1), (3, 3)])
def test_the_missing_runs_complete_the_grid(sizes, tokens, ladder):
    cells = list(itertools.product(1e7 * 2.0 ** np.arange(sizes), 1e9 * 2.0 ** np.arange(tokens)))
    before = points(cells)
    trials = missing_trials(before, ladder=ladder, count=100)
    assert not {(trial.n, trial.d) for trial in trials} & set(cells)
    assert [trial.flops for trial in trials] == sorted(trial.flops for trial in trials)
    assert all(trial.gain is None for trial in trials)
    after = points(cells + [(trial.n, trial.d) for trial in trials])
    assert not fit_points(after, bootstrap=0).has(Caveat.FEW_SIZES)


def test_sizes_of_a_ladder_are_near_half_and_twice():
    n = float(MODEL.counts.with_head)
    trials = missing_trials(points([(n, 1e9), (n, 2e9), (n, 4e9)]), ladder=MODEL)
    assert len(trials) == 6
    below, above = sorted({trial.n for trial in trials})
    assert 0.3 * n < below < 0.8 * n
    assert 1.3 * n < above < 3 * n
    assert all(trial.depth for trial in trials)


def test_below_the_smallest_depth_there_is_nothing():
    small = float(ModelConfig(depth=1, aspect_ratio=64, vocab_size=4096, seq_len=512).counts.with_head)
    assert min(trial.n for trial in missing_trials(points([(small, 1e9)]), ladder=MODEL)) == small
