"""Fits of the laws: the surface (approach 3), a power law, and the envelope (approach 1)."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from analysis import bootstrap as boot
from analysis import envelope, path_checks, surface_checks
from analysis.forms import FORMS
from analysis.inputs import point_ids, positive
from analysis.laws import FloatArray, KaplanSurface, LossSurface, OptimalPath, PowerLaw
from analysis.linear import least_squares
from analysis.problem import SurfaceProblem
from analysis.result import Caveat, Fit, Interval, Reason, Status, Warn
from analysis.runs import Points, Rivals

OBJECTIVES = ("log_huber", "log_lad", "log_mse", "least_squares", "huber")


def fit_surface(
    n: ArrayLike,
    d: ArrayLike,
    loss: ArrayLike,
    *,
    delta: float = 1e-3,
    objective: str = "log_huber",
    weights: ArrayLike | None = None,
    clusters: Sequence[object] | np.ndarray | None = None,
    bootstrap: int = 0,
    seed: int = 0,
    form: str = "chinchilla",
    level: float = 0.9,
    noise: float | None = None,
    trunk_share: float = 0.5,
    rivals: Rivals | None = None,
    ids: Sequence[str] | None = None,
    start: LossSurface | KaplanSurface | None = None,
    max_iter: int = 300,
) -> Fit[Any]:
    """Fit L(N, D) to losses at `n` parameters and `d` tokens, vectors of equal length.

    Minimises the weighted *sum* over points of the Huber function (scale `delta`) of log L - log L(N, D), as
    Hoffmann et al. 2022 and Besiroglu et al. 2024. objective: "log_huber", "log_lad" (delta to 0), "log_mse" (delta
    to infinity), "huber" and "least_squares" (the same on raw loss). form: "chinchilla", "tied" (alpha = beta),
    "kaplan".

    `bootstrap` resamples give intervals at `level` for every parameter and the exponents a, b. Without `clusters`
    rows are resampled. With `clusters` (one label a point: the run_id of its trunk) residuals are, by cluster; with
    fewer than 6 clusters, errors are drawn with standard deviation `noise` of log loss (from seeds; else that of the
    residuals, or .002 where hardly any are left over), of whose variance `trunk_share` is common to a trunk.

    `rivals` (`Points.rivals`) are the other LRs of each point: each resample chooses the lowest among them again.
    `start` replaces the grid of starts. Raises ValueError for a value that is not positive and finite, lengths that
    differ, an unknown form or objective, a start of another form, a delta or a number of resamples out of range.
    """
    n_, d_, loss_ = positive("n", n), positive("d", d), positive("loss", loss)
    if not len(n_) == len(d_) == len(loss_):
        raise ValueError(f"n, d and loss must have one length, got {len(n_)}, {len(d_)}, {len(loss_)}")
    if form not in FORMS:
        raise ValueError(f"form={form!r} is not one of {sorted(FORMS)}")
    if objective not in OBJECTIVES:
        raise ValueError(f"objective={objective!r} is not one of {OBJECTIVES}")
    if not delta > 0:
        raise ValueError(f"delta={delta} must be positive (Hoffmann et al. take 1e-3); delta to 0 is log_lad")
    if bootstrap < 0 or bootstrap == 1:
        raise ValueError(f"bootstrap={bootstrap} resamples give no interval: 0 for none, else 1000 or so")
    if clusters is not None and len(clusters) != len(n_):
        raise ValueError(f"clusters has {len(clusters)} labels for {len(n_)} points")
    if start is not None and not isinstance(start, KaplanSurface if form == "kaplan" else LossSurface):
        raise ValueError(f"start is a {type(start).__name__}, which is no law of form={form!r}")
    problem = SurfaceProblem(n_, d_, loss_, np.ones_like(n_) if weights is None else positive("weights", weights), form)
    best, agreement = problem.solve(objective, delta, start, max_iter)
    law = problem.law(best.theta)

    theta_draws, assumed = problem.resample(
        best.theta[0], objective, delta, clusters, rivals, bootstrap, seed, noise, trunk_share
    )
    draws = problem.law_arrays(theta_draws) if bootstrap else {}
    fit: Fit[Any] = Fit(
        law=law,
        status=surface_checks.solver_status(best),
        objective=float(best.objective[0]) * problem.objective_unit(objective),
        agreement=agreement,
        used=point_ids(ids, len(n_)),
        draws=draws,
        domain={name: (float(x.min()), float(x.max())) for name, x in (("n", n_), ("d", d_), ("flops", 6 * n_ * d_))},
        noise=problem.noise(best.theta),
        settings={"form": form, "objective": objective, "delta": delta, "bootstrap": bootstrap, "seed": seed},
    )
    return surface_checks.judge(fit, n_, d_, loss_, level=level, noise_assumed=assumed)


def fit_points(points: Points, *, bootstrap: int = 1000, seed: int = 0, level: float = 0.9, **options: Any) -> Fit[Any]:
    """The surface of a sweep's points: seeds as weights, residuals resampled by trunk, the choice of LR repeated.

    What is fitted is `points.corrected_loss`; `options` go to `fit_surface`.
    """
    fit = fit_surface(
        points.n,
        points.d,
        points.corrected_loss,
        weights=points.weights,
        clusters=points.clusters,
        rivals=points.rivals,
        noise=points.noise,
        bootstrap=bootstrap,
        seed=seed,
        level=level,
        ids=points.ids,
        **options,
    )
    domain = {**fit.domain, "flops": (float(points.flops.min()), float(points.flops.max()))}
    off = () if fit.has(Caveat.FEW_SIZES) else surface_checks.off_law(fit, points)
    warnings = (*points.warnings, *off, *fit.warnings)
    return dataclasses.replace(fit, left_out=points.left_out, warnings=warnings, domain=domain)


def fit_power_law(
    x: ArrayLike,
    y: ArrayLike,
    *,
    weights: ArrayLike | None = None,
    level: float = 0.9,
    draws: int = 1000,
    seed: int = 0,
    ids: Sequence[str] | None = None,
) -> Fit[PowerLaw]:
    """Fit y = coef x^exponent by (weighted) least squares of log y on log x.

    Intervals are Student's t, exact under independent Gaussian errors of log y; `draws` samples of (intercept,
    exponent) from the same t distribution serve `predict`. Two points give a line and no interval:
    PERFECT_BY_CONSTRUCTION, unbounded. Raises ValueError for values that are not positive and finite, or with fewer
    than two distinct x.
    """
    x_, y_ = positive("x", x), positive("y", y)
    if len(x_) != len(y_):
        raise ValueError(f"x and y must have one length, got {len(x_)} and {len(y_)}")
    if len(np.unique(x_)) < 2:
        raise ValueError(f"a power law needs two distinct x, got {np.unique(x_).tolist()}")
    w = np.ones_like(x_) if weights is None else positive("weights", weights)
    log_x, log_y = np.log(x_), np.log(y_)
    centre = float(np.average(log_x, weights=w))
    line = least_squares(np.column_stack([np.ones_like(log_x), log_x - centre]), log_y, w)
    mean, slope = line.coef
    warnings: list[Warn] = []
    sampled: dict[str, FloatArray] = {}
    if line.spare and draws:
        drawn = line.draws(draws, seed)
        sampled = {"intercept": drawn[:, 0] - drawn[:, 1] * centre, "exponent": drawn[:, 1]}
    if not line.spare:
        detail = "two points define a power law: R^2 = 1 says nothing"
        warnings.append(Warn(kind=Caveat.PERFECT_BY_CONSTRUCTION, detail=detail))
    return Fit(
        law=PowerLaw(intercept=float(mean - slope * centre), exponent=float(slope)),
        status=Status.CONVERGED if line.spare else Status.NOT_IDENTIFIED,
        objective=line.objective,
        intervals={"exponent": line.interval(1, level)},
        used=point_ids(ids, len(x_)),
        warnings=tuple(warnings),
        draws=sampled,
        domain={"x": (float(x_.min()), float(x_.max()))},
        noise=line.noise,
    )


def fit_envelope(
    flops: ArrayLike,
    n: ArrayLike,
    d: ArrayLike,
    loss: ArrayLike,
    *,
    clusters: Sequence[object] | np.ndarray | None = None,
    level: float = 0.9,
    draws: int = 1000,
    seed: int = 0,
    ids: Sequence[str] | None = None,
) -> Fit[OptimalPath]:
    """Approach 1: power laws N*(C), D*(C), L*(C) through the points on the lower envelope of loss against compute.

    Points above the envelope are `left_out: off_envelope`. `clusters` (one label a point: the run_id of its trunk)
    are what is resampled, rows without it: each resample has an envelope of its own, since which points lie on it is
    chosen by their errors too, and every other one leaves out its points at an edge of the grid. Fewer than 6 cannot
    show that; then the intervals are Student's t of the line through the one envelope. The interval of the loss is
    the line's alone, which has no floor. NOT_IDENTIFIED with fewer than 3 points or 3 sizes on the envelope, or where
    the interval of an exponent includes 0. `draws=0`: no intervals, and so no such judgement. Raises ValueError for
    values that are not positive and finite, or when the envelope has fewer than two points.
    """
    c_, n_, d_, loss_ = positive("flops", flops), positive("n", n), positive("d", d), positive("loss", loss)
    if not len(c_) == len(n_) == len(d_) == len(loss_):
        raise ValueError(f"flops, n, d, loss must have one length, got {len(c_)}, {len(n_)}, {len(d_)}, {len(loss_)}")
    if clusters is not None and len(clusters) != len(c_):
        raise ValueError(f"clusters has {len(clusters)} labels for {len(c_)} points")
    names = point_ids(ids, len(c_))
    if len(c_) < 3 or len(np.unique(c_)) < 3:
        raise ValueError(f"an envelope needs at least 3 budgets, got {len(np.unique(c_))} distinct flops: add budgets")
    hull = envelope.lower_hull(c_, loss_)
    if len(hull) < 2:
        raise ValueError(
            f"only {len(hull)} of {len(c_)} points on the envelope: the loss does not fall with compute, check the runs"
        )
    values = {"n": n_, "d": d_, "loss": loss_}
    parts = {
        key: fit_power_law(c_[hull], y[hull], level=level, draws=draws, seed=seed + i)
        for i, (key, y) in enumerate(values.items())
    }
    drawn = {f"{k}_{name}": sample for k, p in parts.items() for name, sample in p.draws.items()}
    intervals = {f"{k}_exponent": p.intervals["exponent"] for k, p in parts.items()} if draws else {}
    cluster = boot.cluster_index(np.arange(len(c_)) if clusters is None else clusters)
    resampled = draws > 0 and cluster.max() + 1 >= boot.MIN_CLUSTERS
    if resampled:
        drawn = envelope.resample(c_, values, cluster, draws, seed)
        intervals = {f"{k}_exponent": Interval.of(drawn[f"{k}_exponent"], level) for k in values}
    no_floor = "L*(C) is a pure power law without a floor: far extrapolation is optimistic"
    warnings = [Warn(kind=Caveat.NO_FLOOR, detail=no_floor), *parts["loss"].warnings]
    edge = hull[envelope.at_edge(n_, d_)[hull]]
    if len(edge) > len(hull) / 2:
        detail = (
            f"{len(edge)} of {len(hull)} points on the envelope are of the smallest or largest size or token count: "
            "what is best at their compute may lie outside those tried"
        )
        points = tuple(names[i] for i in edge)
        warnings.append(Warn(kind=Caveat.OPTIMUM_OUTSIDE_GRID, detail=detail, points=points))
    on_hull = set(hull.tolist())
    fit = Fit(
        law=OptimalPath(
            **{f"{k}_intercept": p.law.intercept for k, p in parts.items()},
            **{f"{k}_exponent": p.law.exponent for k, p in parts.items()},
        ),
        status=Status.CONVERGED,
        objective=parts["loss"].objective,
        intervals=intervals,
        used=tuple(names[i] for i in hull),
        left_out={name: Reason.OFF_ENVELOPE for i, name in enumerate(names) if i not in on_hull},
        warnings=tuple(warnings),
        draws=drawn,
        domain={"flops": (float(c_[hull].min()), float(c_[hull].max()))},
        noise=parts["loss"].noise,
        settings={"draws": draws, "seed": seed, "spare": None if resampled else len(hull) - 2},
    )
    return path_checks.judge(fit, envelope.too_few(n_[hull], d_[hull]))
