"""Surface, power law and envelope against laws known in closed form and against published fits."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import least_squares

from analysis.fit import fit_envelope, fit_power_law, fit_surface
from analysis.laws import KaplanSurface, LossSurface, parameters
from analysis.result import Caveat, Status

SURFACES = [
    LossSurface(A=400.0, B=400.0, E=1.69, alpha=0.31, beta=0.31),
    LossSurface(A=406.4, B=410.7, E=1.69, alpha=0.34, beta=0.28),
    LossSurface(A=406.4, B=410.7, E=1.69, alpha=0.465, beta=0.155),
]


def isoflop_points(law, spread, budgets=5, sizes=15):
    """(c, n, d) at log-spaced budgets 1e17..1e21, sizes within x/div `spread` of the optimum, D = C / 6N."""
    c = np.repeat(np.geomspace(1e17, 1e21, budgets), sizes)
    n = law.n_opt(c) * np.tile(np.geomspace(1 / spread, spread, sizes), budgets)
    return c, n, c / (6 * n)


@pytest.mark.parametrize("law", SURFACES)
def test_noise_free_surface_is_recovered(law):
    _, n, d = isoflop_points(law, 8)
    fit = fit_surface(n, d, law.loss(n, d))
    assert fit.status == Status.CONVERGED
    for name, value in parameters(law).items():
        assert getattr(fit.law, name) == pytest.approx(value, rel=1e-6)


def test_kaplan_constants_are_recovered():
    law = KaplanSurface(n_c=6.4e13, d_c=1.8e13, alpha_n=0.076, alpha_d=0.103)
    n, d = (grid.ravel() for grid in np.meshgrid(np.geomspace(1e6, 1e9, 6), np.geomspace(1e8, 1e11, 6)))
    fit = fit_surface(n, d, law.loss(n, d), form="kaplan")
    for name, value in parameters(law).items():
        assert getattr(fit.law, name) == pytest.approx(value, rel=1e-6)
    assert fit.law.a == pytest.approx(0.57542, abs=5e-6)


def test_tied_exponents_are_recovered_and_equal():
    law = SURFACES[0]
    _, n, d = isoflop_points(law, 8)
    fit = fit_surface(n, d, law.loss(n, d), form="tied")
    assert fit.law.alpha == fit.law.beta == pytest.approx(0.31, rel=1e-6)


def test_chinchilla_as_replicated_by_besiroglu_et_al(chinchilla):
    fit = fit_surface(*chinchilla)
    assert fit.status == Status.CONVERGED
    for name, published, tolerance in (
        ("A", 477.83, {"rel": 0.002}),
        ("B", 2143.4, {"rel": 0.003}),
        ("E", 1.81722, {"abs": 2e-4}),
        ("alpha", 0.34731, {"abs": 2e-4}),
        ("beta", 0.36717, {"abs": 2e-4}),
    ):
        assert getattr(fit.law, name) == pytest.approx(published, **tolerance), name
    assert fit.objective <= 0.00101827403
    assert fit.law.a == pytest.approx(0.5139, abs=5e-5)


def test_chinchilla_in_the_limit_of_least_absolute_deviations(chinchilla):
    fit = fit_surface(*chinchilla, objective="log_lad")
    for name, published, tolerance in (
        ("A", 482.006, {"rel": 0.002}),
        ("B", 2085.434, {"rel": 0.003}),
        ("E", 1.81686, {"abs": 2e-4}),
        ("alpha", 0.34781, {"abs": 2e-4}),
        ("beta", 0.36585, {"abs": 2e-4}),
    ):
        assert getattr(fit.law, name) == pytest.approx(published, **tolerance), name
    n, d, loss = chinchilla
    assert fit.objective == pytest.approx(np.abs(np.log(loss / fit.law.loss(n, d))).sum(), rel=1e-5)


def test_chinchilla_bootstrap_standard_errors(chinchilla):
    fit = fit_surface(*chinchilla, bootstrap=4000)
    for name, se, tolerance in (
        ("A", 124.5, 0.05),
        ("B", 1293, 0.12),
        ("E", 0.02566, 0.05),
        ("alpha", 0.0154, 0.05),
        ("beta", 0.0206, 0.05),
        ("a", 0.020, 0.05),
    ):
        assert fit.intervals[name].se == pytest.approx(se, rel=tolerance), name


def test_squares_agree_with_an_independent_optimiser(chinchilla):
    n, d, loss = chinchilla

    def residual(theta):
        a, b, e, alpha, beta = theta
        return np.log(loss) - np.logaddexp(np.logaddexp(a - alpha * np.log(n), b - beta * np.log(d)), e)

    reference = least_squares(residual, [6.0, 7.0, 0.5, 0.35, 0.35], xtol=1e-15, ftol=1e-15, gtol=1e-15, x_scale="jac")
    fit = fit_surface(n, d, loss, objective="log_mse")
    assert fit.objective == pytest.approx(reference.cost, rel=1e-9)
    assert (fit.law.alpha, fit.law.beta) == pytest.approx(tuple(reference.x[3:]), rel=1e-5)


@pytest.mark.parametrize("objective", ["log_huber", "least_squares", "huber"])
def test_units_order_weights_and_start_do_not_matter(chinchilla, objective):
    n, d, loss = chinchilla
    fit = fit_surface(n, d, loss, objective=objective)
    order = np.random.default_rng(0).permutation(len(n))
    start = LossSurface(A=300.0, B=900.0, E=1.5, alpha=0.3, beta=0.3)
    others = [
        fit_surface(n / 1e6, d / 1e9, loss, objective=objective),
        fit_surface(n[order], d[order], loss[order], objective=objective),
        fit_surface(n, d, loss, objective=objective, weights=np.full(len(n), 1e4)),
        fit_surface(n, d, loss, objective=objective, start=start),
    ]
    for other in others:
        for name in ("alpha", "beta", "E"):
            assert getattr(other.law, name) == pytest.approx(getattr(fit.law, name), rel=1e-6)


def test_unit_of_loss_scales_the_floor_alone(chinchilla):
    n, d, loss = chinchilla
    nats, bits = fit_surface(n, d, loss).law, fit_surface(n, d, loss / np.log(2)).law
    assert (bits.alpha, bits.beta) == pytest.approx((nats.alpha, nats.beta), rel=1e-6)
    ratio = nats.E / bits.E
    assert ratio == pytest.approx(np.log(2), rel=1e-6)


@settings(max_examples=30)
@given(
    a=st.floats(-1.0, 3.0),
    alpha=st.floats(0.15, 0.8),
    beta=st.floats(0.15, 0.8),
    b=st.floats(-1.0, 3.0),
    e=st.floats(-0.5, 1.0),
)
def test_any_noise_free_surface_is_recovered(a, b, e, alpha, beta):
    n, d = (g.ravel() for g in np.meshgrid(np.geomspace(1e5, 1e8, 7), np.geomspace(1e7, 1e10, 7)))
    law = LossSurface(A=np.exp(a) * 1e5**alpha, B=np.exp(b) * 1e7**beta, E=np.exp(e), alpha=alpha, beta=beta)
    fit = fit_surface(n, d, law.loss(n, d))
    for name in ("alpha", "beta", "E"):
        assert getattr(fit.law, name) == pytest.approx(getattr(law, name), rel=1e-4), name


def test_gadre_predicts_two_held_out_runs_as_published(published):
    """Their form E + p N^b + q 6^(b/2) (M N)^b is the tied surface over N and D = M N; 5 small runs fit it."""
    table = published("gadre").query("dataset == 'rpj'")
    small = ["d=96_l=8_h=4", "d=512_l=8_h=4", "d=576_l=24_h=8", "d=1024_l=24_h=8"]
    train = table[
        (table["model"].isin(small) & (table["tok_mult"] == 20))
        | ((table["model"] == small[0]) & (table["tok_mult"] == 320))
    ]
    assert len(train) == 5
    law = fit_surface(
        train["N"], train["tok_mult"] * train["N"], train["loss_c4_val"], form="tied", objective="least_squares"
    ).law
    for model, multiplier, published_error in (("open_lm_1b", 640, 0.007103), ("open_lm_7b", 20, 0.007320)):
        run = table[(table["model"] == model) & (table["tok_mult"] == multiplier)].iloc[0]
        predicted = law.loss(run["N"], multiplier * run["N"])
        assert abs(predicted / run["loss_c4_val"] - 1) == pytest.approx(published_error, abs=1e-4)


def test_gemstones_envelope(published):
    table = published("gemstones_hot_477")
    fit = fit_envelope(table["flops"], table["params"], table["tokens"], table["loss"])
    assert fit.law.n_exponent == pytest.approx(0.49938022, rel=1e-6)
    assert fit.law.n_intercept == pytest.approx(-2.845108, rel=1e-6)
    assert fit.law.d_exponent == pytest.approx(0.48098882, rel=1e-6)
    assert len(fit.used) == 21
    assert len(fit.used) + len(fit.left_out) == len(table)


@pytest.mark.parametrize(
    ("convention", "n_exponent", "d_exponent"),
    [
        ("kaplan_style_transformer_plus_lm_head", 0.54, 0.49),
        ("chinchilla_style_all_params", 0.37, 0.50),
        ("transformer_only", 0.70, 0.41),
    ],
)
def test_nanochat_exponents_by_convention(published, convention, n_exponent, d_exponent):
    table = published("nanochat_2026-01").query("convention == @convention")
    assert fit_power_law(table["flops"], table["eff_params"]).law.exponent == pytest.approx(n_exponent, abs=0.005)
    assert fit_power_law(table["flops"], table["tokens"]).law.exponent == pytest.approx(d_exponent, abs=0.005)


def test_power_law_interval_covers_as_often_as_it_says():
    rng = np.random.default_rng(0)
    x = np.geomspace(1, 100, 5)
    hits = sum(
        -0.3 in fit_power_law(x, 2 * x**-0.3 * np.exp(0.02 * rng.standard_normal(5)), draws=2).intervals["exponent"]
        for _ in range(400)
    )
    # Binomial(400, .9): four standard deviations.
    assert abs(hits / 400 - 0.9) < 4 * np.sqrt(0.09 / 400)


def test_power_law_prediction_interval_widens_outside_the_data():
    rng = np.random.default_rng(1)
    x = np.geomspace(1, 100, 8)
    fit = fit_power_law(x, x**-0.3 * np.exp(0.02 * rng.standard_normal(8)), draws=4000)
    inside, outside = fit.predict(10.0), fit.predict(1e4)
    assert outside.beyond == pytest.approx(100)
    assert inside.beyond == 1
    assert outside.interval.high / outside.interval.low > 2 * inside.interval.high / inside.interval.low - 1


def test_two_points_are_no_evidence():
    fit = fit_power_law([1, 10], [3.0, 2.0])
    assert fit.status == Status.NOT_IDENTIFIED
    assert fit.has(Caveat.PERFECT_BY_CONSTRUCTION)
    assert fit.intervals["exponent"].high == np.inf
    assert not fit_power_law([1, 10, 100], [3.0, 2.0, 1.4]).has(Caveat.PERFECT_BY_CONSTRUCTION)


def test_mistakes_are_refused_with_the_value():
    good = np.array([1.0, 2.0, 3.0])
    with pytest.raises(ValueError, match=r"loss\[1\] = nan is not a positive finite number"):
        fit_surface(good, good, [3.0, np.nan, 2.0])
    with pytest.raises(ValueError, match=r"n\[0\] = 0.0"):
        fit_surface([0.0, 1, 2], good, good)
    with pytest.raises(ValueError, match="one length, got 3, 3, 2"):
        fit_surface(good, good, [3.0, 2.0])
    with pytest.raises(ValueError, match="form='cubic' is not one of"):
        fit_surface(good, good, good, form="cubic")
    with pytest.raises(ValueError, match="objective='l2' is not one of"):
        fit_surface(good, good, good, objective="l2")
    for options, message in (
        ({"delta": 0.0}, "delta=0.0 must be positive"),
        ({"bootstrap": 1}, "bootstrap=1 resamples give no interval"),
        ({"bootstrap": -1}, "bootstrap=-1 resamples"),
        ({"clusters": ["a"], "bootstrap": 10}, "clusters has 1 labels for 3 points"),
        ({"weights": [1.0]}, "weights has 1 values for 3 points"),
        ({"ids": ["a"]}, "ids has 1 values for 3 points"),
        ({"form": "kaplan", "start": SURFACES[0]}, "start is a LossSurface, which is no law of form='kaplan'"),
    ):
        with pytest.raises(ValueError, match=message):
            fit_surface(good, good, good, **options)
    with pytest.raises(ValueError, match="n must be numbers"):
        fit_surface(["a", "b", "c"], good, good)
    with pytest.raises(ValueError, match="two distinct x"):
        fit_power_law([1.0, 1.0], [2.0, 3.0])
    with pytest.raises(ValueError, match="at least 3 budgets"):
        fit_envelope([1e9, 2e9], [1e3, 2e3], [1e5, 1e5], [3.0, 2.0])
