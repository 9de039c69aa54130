"""Runs and tables that are wrong are named before any advice, and sound ones are not."""

import numpy as np
import pandas as pd
import pytest

from analysis.cautions import cautions
from analysis.fit import fit_points
from analysis.laws import LossSurface
from analysis.result import Caveat
from analysis.runs import load

LAW = LossSurface(A=406.4, B=410.7, E=1.69, alpha=0.34, beta=0.28)
CHECKS = {Caveat.OUTLIER_LOSS, Caveat.OFF_LAW, Caveat.LACK_OF_FIT, Caveat.REPEATS}


def table(rng_seed=0, noise=0.01, best=0.01, seeds=(0, 1)):
    """5 sizes, 4 horizons, 5 LRs."""
    grid = [np.geomspace(1e7, 1e9, 5), [2e8, 8e8, 3.2e9, 1.28e10], 0.01 * 2.0 ** np.arange(-2, 3), list(seeds)]
    n, d, lr, seed = (g.ravel() for g in np.meshgrid(*grid, indexing="ij"))
    error = noise * np.random.default_rng(rng_seed).standard_normal(len(n))
    loss = LAW.loss(n, d) * (1 + 0.02 * np.log2(lr / best) ** 2) * np.exp(error)
    return pd.DataFrame({"n_params": n, "tokens": d, "lr": lr, "seed": seed.astype(int), "loss": loss})


def fitted(frame):
    return fit_points(load(frame).best(), bootstrap=0)


def found(frame):
    return {warn.kind for warn in fitted(frame).warnings} & CHECKS


@pytest.mark.parametrize("seeds", [(0,), (0, 1)])
def test_sound_sweeps_raise_no_caution(seeds):
    raised = [found(table(i, seeds=seeds)) for i in range(20)]
    # Four noise widths, or five of a scatter that 15 residuals show, are rare and not impossible.
    assert sum(map(bool, raised)) <= 1
    assert cautions(fitted(table(3, seeds=seeds)).warnings, 20) == []


def test_a_run_off_the_law_is_named():
    frame = table()
    largest = (frame["n_params"] > 9e8) & (frame["tokens"] > 1e10)
    frame.loc[largest, "loss"] *= 0.9
    (warn,) = [warn for warn in fitted(frame).warnings if warn.kind == Caveat.OFF_LAW]
    assert len(warn.points) == 1 and int(warn.points[0].split()[1]) in np.flatnonzero(largest)
    assert "Check first: " in cautions((warn,), 20)[0]
    one_seed = table(seeds=(0,))
    one_seed.loc[(one_seed["n_params"] > 9e8) & (one_seed["tokens"] > 1e10), "loss"] *= 0.85
    assert Caveat.OFF_LAW in found(one_seed)


def test_a_law_that_misses_the_losses_by_more_than_their_noise_is_no_law():
    frame = table(noise=0.001)
    bend = 0.02 * np.where(np.log(frame["tokens"]).rank(method="dense") % 2, 1, -1)
    assert Caveat.LACK_OF_FIT in found(frame.assign(loss=frame["loss"] * np.exp(bend)))


def test_rows_far_below_all_larger_runs_are_named_first():
    frame = table()
    frame.loc[[3, 77], "loss"] = 0.5
    first = load(frame).warnings[0]
    assert first.kind == Caveat.OUTLIER_LOSS and set(first.points) == {"row 3", "row 77"}
    last = table()
    last.loc[len(last) - 1, "loss"] = 0.5
    assert load(last).warnings[0].points == (f"row {len(last) - 1}",)


def test_rows_that_nothing_tells_apart_are_not_taken_without_a_word():
    bare = table().drop(columns=["lr", "seed"])
    assert Caveat.REPEATS in found(bare)
    assert not found(bare.drop_duplicates(["n_params", "tokens"]))


def test_losses_at_the_edge_of_the_lrs_are_called_upper_bounds():
    said = cautions(fitted(table(best=0.0002)).warnings, 20)
    assert len(said) == 1 and "upper bounds" in said[0]
