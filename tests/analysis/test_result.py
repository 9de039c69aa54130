"""A fit as a value: it goes to JSON and back without loss, and predicts with its distance from the data."""

import dataclasses
import json

import numpy as np
import pandas as pd
import pytest

from analysis.fit import fit_envelope, fit_power_law, fit_surface
from analysis.laws import LossSurface, parameters
from analysis.result import Fit, Interval
from analysis.runs import load

LAW = LossSurface(A=406.4, B=410.7, E=1.69, alpha=0.34, beta=0.28)
N, D = (g.ravel() for g in np.meshgrid(np.geomspace(1e6, 1e8, 5), np.geomspace(1e8, 1e10, 5)))
LOSS = LAW.loss(N, D) * np.exp(0.002 * np.random.default_rng(0).standard_normal(25))


@pytest.mark.parametrize(
    "fit",
    [
        fit_surface(N, D, LOSS, bootstrap=20),
        fit_surface(N[:6], D[:6], LOSS[:6], bootstrap=5),
        fit_surface(N, D, LOSS, form="kaplan"),
        fit_power_law([1.0, 10.0], [3.0, 2.0]),
        fit_envelope(6 * N * D, N, D, LOSS, draws=10),
    ],
    ids=["surface", "unidentified", "kaplan", "power", "envelope"],
)
def test_json_round_trip_is_exact(fit):
    back = Fit.from_json(fit.to_json())
    assert back.law == fit.law
    for field in dataclasses.fields(fit):
        ours, theirs = getattr(fit, field.name), getattr(back, field.name)
        if field.name == "draws":
            assert ours.keys() == theirs.keys()
            for name in ours:
                np.testing.assert_array_equal(ours[name], theirs[name])
        else:
            np.testing.assert_equal(theirs, ours)
    assert back.to_json() == fit.to_json()

    def refuse(name):
        raise AssertionError(f"{name} is no JSON")

    json.loads(fit.to_json(), parse_constant=refuse)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"no JSON \(.*\): pass the text that Fit.to_json wrote"),
        ("{", "no JSON"),
        ("[]", "no saved Fit: it lacks agreement"),
        ("3", "no saved Fit"),
        ('{"law": {}}', r"it lacks .*form.*status"),
        ('{"source": "x", "fits": {"surface": {}, "envelope": {}}}', "holds the fits envelope, surface: pass one of"),
    ],
)
def test_a_text_that_is_no_fit_is_refused_with_the_remedy(text, message):
    with pytest.raises(ValueError, match=message):
        Fit.from_json(text)


def test_a_fit_damaged_in_any_field_is_refused():
    whole = json.loads(fit_surface(N, D, LOSS, bootstrap=20).to_json())
    for name in set(whole) - {"agreement", "objective", "noise", "settings"}:
        for wrong in (None, 7):
            with pytest.raises(ValueError, match="is not one of" if name == "form" else "a damaged Fit"):
                Fit.from_json(json.dumps({**whole, name: wrong}))
        with pytest.raises(ValueError, match=f"lacks {name}"):
            Fit.from_json(json.dumps({key: value for key, value in whole.items() if key != name}))


@pytest.mark.parametrize("bootstrap", [0, 4000])
def test_a_fit_prints_short_with_what_counts(bootstrap):
    fit = fit_surface(N, D, LOSS, bootstrap=bootstrap, ids=[f"a-long-name-of-a-run@{i}" for i in range(len(N))])
    assert str(fit) == repr(fit) == f"{fit}"
    assert len(str(fit)) < 600
    for part in ("LossSurface(", f"E={fit.law.E:.5g}", fit.status, f"{len(N)} points used", f"{bootstrap} draws"):
        assert part in str(fit)
    assert ("alpha [" in str(fit)) == bool(bootstrap)


def test_unknown_form_is_refused():
    text = fit_power_law([1.0, 10.0], [3.0, 2.0]).to_json().replace('"power"', '"spline"')
    with pytest.raises(ValueError, match="form='spline' is not one of"):
        Fit.from_json(text)


def test_prediction_states_its_extrapolation_and_its_interval():
    fit = fit_surface(N, D, LOSS, bootstrap=200)
    inside = fit.predict(1e7, 1e9)
    assert inside.beyond == 1
    assert LAW.loss(1e7, 1e9) in inside.interval
    outside = fit.predict(1e9, 1e8)
    assert outside.extrapolation == pytest.approx({"n": 10.0, "d": 1.0})
    below = fit.predict(1e5, 1e9)
    assert below.extrapolation["n"] == pytest.approx(10.0)
    wide, narrow = fit.predict(1e7, 1e9, level=0.9).interval, fit.predict(1e7, 1e9, level=0.5).interval
    assert wide.low < narrow.low < narrow.high < wide.high


def test_fits_and_points_compare():
    fit, other = fit_surface(N, D, LOSS, bootstrap=20), fit_surface(N, D, LOSS, bootstrap=20, seed=1)
    assert fit == Fit.from_json(fit.to_json())
    assert fit != other and fit != "a text"
    points = load(pd.DataFrame({"n_params": N, "tokens": D, "loss": LOSS, "lr": 0.1}))
    assert points == points and points.best() != points.best() and points.best().rivals != None  # noqa: E711


def test_prediction_refuses_wrong_inputs():
    fit = fit_surface(N, D, LOSS)
    with pytest.raises(ValueError, match="LossSurface takes n, d; got 1 values"):
        fit.predict(1e7)
    with pytest.raises(ValueError, match="must be positive"):
        fit.predict(0.0, 1e9)
    for wrong in ("a", None, [1e7], np.inf, np.nan):
        with pytest.raises(ValueError, match="positive finite"):
            fit.predict(wrong, 1e9)
    assert fit.predict(1e7, 1e9).interval is None
    with pytest.raises(ValueError, match=r"level=90"):
        Interval.of(np.arange(5.0), 90)


def test_interval_of_any_quantity_comes_from_the_draws():
    fit = fit_surface(N, D, LOSS, bootstrap=100)
    expected = [LossSurface(**dict(zip(parameters(LAW), row, strict=True))).n_opt(1e20)
                for row in np.column_stack([fit.draws[name] for name in parameters(LAW)])]  # fmt: skip
    assert fit.interval(lambda law: law.n_opt(1e20)).low == pytest.approx(np.quantile(expected, 0.05), rel=1e-12)


def test_an_interval_of_draws_that_overflow_has_an_infinite_end():
    draws = np.array([1.0, 2.0, 3.0, 4.0, np.inf, np.inf, np.inf, np.inf])
    interval = Interval.of(draws, 0.9)
    assert (interval.low, interval.high, interval.se) == (1.0, np.inf, np.inf)
    assert np.isfinite([Interval.of(draws[:4], 0.9).high, Interval.of(draws[:4], 0.9).se]).all()
