"""The whole of a sweep: what is fitted, what is refused, what disagrees."""

import numpy as np
import pandas as pd
import pytest

from analysis import sample
from analysis.laws import LossSurface
from analysis.result import Caveat, Interval, Status
from analysis.runs import load
from analysis.study import conventions, disagreements, study
from tinyllm import record

LAW = LossSurface(A=406.4, B=410.7, E=1.69, alpha=0.34, beta=0.28)


@pytest.fixture(scope="module")
def whole(sample_runs):
    return study(sample_runs, bootstrap=300)


def test_sample_is_fitted_and_holds_its_own_truth(whole):
    assert whole.headline == "surface"
    surface = whole.fits["surface"]
    assert surface.status == Status.CONVERGED
    # The lowest of a grid of LRs lies a little above the law: E and alpha still within their 99 % intervals.
    for name in ("alpha", "beta", "E"):
        low, high = np.quantile(surface.draws[name], [0.005, 0.995])
        assert low <= getattr(sample.TRUE_LAW, name) <= high, name
    assert whole.lr.law.n_exponent == pytest.approx(sample.TRUE_LR.n_exponent, abs=0.05)


def test_advice_rises_with_the_budget(whole):
    assert [advice.flops / whole.points.flops.max() for advice in whole.advice] == pytest.approx([1, 10, 100])
    assert sorted(advice.n for advice in whole.advice) == [advice.n for advice in whole.advice]
    assert sorted((advice.loss.value for advice in whole.advice), reverse=True) == [a.loss.value for a in whole.advice]
    assert whole.advice[2].extrapolation > 10
    assert any(warn.kind == Caveat.EXTRAPOLATION for warn in whole.advice[2].warnings)


def test_conventions_stand_in_one_table_with_a_warning(whole):
    table = whole.conventions
    assert set(table["params"]) == {"with_head", "total", "non_embedding"}
    assert set(table["flops"]) == {"exact", "6nd"}
    exponents = table["surface"].dropna()
    assert any(warn.kind == Caveat.CONVENTION_CHANGES_EXPONENT for warn in whole.warnings) == (np.ptp(exponents) > 0.05)
    # With one convention there is nothing to change.
    single = conventions(load(whole.runs.records.drop(columns=["n_params_total", "n_params_non_embedding"])))
    assert np.ptp(single["surface"]) < 0.05


def test_targets_of_the_user_replace_the_default(sample_runs):
    assert [advice.flops for advice in study(sample_runs, bootstrap=50, targets=(1e15,)).advice] == [1e15]


def as_runs(n, d, loss):
    return load(pd.DataFrame({"n_params": n, "tokens": d, "loss": loss}))


def test_one_size_is_not_identified_and_still_reported():
    runs = load(record.frame(sample.records(depths=(3,))))
    found = study(runs, bootstrap=50)
    assert found.headline == "envelope"
    assert found.fit.status == Status.NOT_IDENTIFIED
    assert found.fits["surface"].status == Status.NOT_IDENTIFIED
    assert found.influence is None
    assert any(warn.kind == Caveat.WIDE_INTERVAL for warn in found.advice[1].warnings)
    # Draws of a law that the grid leaves open are no knowledge of it.
    for fit in found.fits.values():
        assert fit.interval(lambda law: law.n_opt(1e14)) == Interval.unbounded(0.9)
    assert found.advice[1].loss.interval == found.advice[1].n_interval == Interval.unbounded(0.9)
    assert found.advice[1].lr.interval == Interval.unbounded(0.9)
    assert not any(warn.kind == Caveat.APPROACHES_DISAGREE for warn in found.warnings)
    assert "1 model size," in found.next_refusal
    assert {trial.depth for trial in found.next_trials if not trial.why} == {2, 4}
    assert found.missing[0] == "2 more sizes (1 measured, 3 needed)"


@pytest.mark.parametrize(("rows", "headline"), [
    ({}, "surface"),
    ({"depths": (2, 3), "budgets": (200_000, 400_000)}, "envelope"),
    ({"depths": (3,)}, "envelope"),
    ({"budgets": (1_000_000,)}, "envelope"),
], ids=["whole", "two by two", "one size", "one budget"])  # fmt: skip
def test_whatever_the_headline_it_says_what_to_run_next(rows, headline):
    found = study(load(record.frame(sample.records(**rows))), bootstrap=50)
    assert found.headline == headline
    assert found.next_trials
    assert bool(found.next_refusal) == any(trial.gain is None for trial in found.next_trials)


def test_without_a_bootstrap_there_is_a_report_without_intervals(sample_runs):
    found = study(sample_runs, bootstrap=0)
    assert found.advice[0].loss.interval is None
    assert "without bootstrap draws" in found.next_refusal


def test_refusals_say_why():
    n, d = (g.ravel() for g in np.meshgrid(np.geomspace(1e6, 1e7, 3), np.geomspace(1e8, 1e9, 3)))
    found = study(as_runs(n, d, LAW.loss(n, d)), bootstrap=50)
    assert "needs a minimum at 2 budgets" in found.refusals["isoflop"]
    assert "needs the column lr" in found.refusals["learning rate"]
    assert found.lr is None and found.ladder is None


@pytest.mark.parametrize("bootstrap", [0, 10])
@pytest.mark.parametrize("cells", [[(1e6, 1e8)], [(1e6, 1e8), (2e6, 1e8)], [(1e6, 1e8), (1e6, 2e8)]])
def test_too_little_for_any_fit_is_told_and_what_is_missing(cells, bootstrap):
    n, d = (np.array(values) for values in zip(*cells, strict=True))
    found = study(as_runs(n, d, LAW.loss(n, d)), bootstrap=bootstrap)
    assert found.headline == "surface" and not found.fit.determined
    assert not any(advice.identified for advice in found.advice)
    assert {"envelope", "isoflop"} <= set(found.refusals)
    assert "size" in found.missing[0]
    assert found.next_trials


def test_approaches_that_disagree_are_named_with_their_intervals(whole):
    fits = {"surface": whole.fits["surface"]}
    assert disagreements({**fits, "envelope": whole.fits["surface"]}, 1e15, 0.9) == []
    shifted = load(whole.runs.records.assign(n_params_with_head=10 * whole.runs.records["n_params_with_head"]))
    other = study(shifted, bootstrap=100).fits["surface"]
    (warn,) = disagreements({**fits, "other": other}, 1e15, 0.9)
    assert warn.kind == Caveat.APPROACHES_DISAGREE
    assert "surface [" in warn.detail and "other [" in warn.detail
