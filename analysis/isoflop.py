"""Approach 2: at each FLOPs budget the size that minimises the loss, then power laws through those minima."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.interpolate import Akima1DInterpolator

from analysis import path_checks
from analysis.inputs import point_ids, positive
from analysis.laws import FloatArray, OptimalPath, Parabola
from analysis.linear import least_squares
from analysis.result import Caveat, Fit, Interval, Reason, Status, Warn

SAME_BUDGET = 1.1
"""Budgets within this factor are one level: a horizon is rounded to whole steps."""
MIN_SIZES, MIN_BUDGETS = 3, 3
"""Sizes for a minimum, and minima for a law: with fewer R^2 = 1 by construction."""
AKIMA_POINTS = 25
"""Grid points between neighbouring sizes, and the floor of .33 grid steps x 25 below: Porian et al. 2024, appendix."""
AKIMA_FLOOR = 0.33


@dataclass(frozen=True, kw_only=True, eq=False)
class Level:
    """One FLOPs budget. `points`: rows of the input, by size. `reason`: why it gives no minimum, or None.

    n_opt, d_opt, loss_opt: at the minimum (nan without one). bound: what an edge still tells about N*, in words.
    curve: the parabola of loss over N, None under "akima". Under "akima" alone: log_n_sd, the standard deviation of
    log n_opt, and n_draws (draws,), its noisy copies, nan where the minimum fell on an edge.
    """

    flops: float
    points: np.ndarray
    n_opt: float
    d_opt: float
    loss_opt: float
    reason: Reason | None = None
    log_n_sd: float = float("nan")
    curve: Parabola | None = None
    bound: str = ""
    n_draws: FloatArray | None = None


def group_levels(flops: FloatArray) -> list[np.ndarray]:
    """Rows of each budget, ascending: sorted flops are cut where neighbours differ by more than `SAME_BUDGET`."""
    order = np.argsort(flops, kind="stable")
    cuts = np.flatnonzero(np.diff(np.log(flops[order])) > np.log(SAME_BUDGET)) + 1
    return np.split(order, cuts)


def fit_levels(
    flops: ArrayLike,
    n: ArrayLike,
    d: ArrayLike,
    loss: ArrayLike,
    *,
    method: str = "parabola",
    noise: float = 0.002,
    draws: int = 1000,
    seed: int = 0,
) -> list[Level]:
    """The minimum of each budget. ValueError for an unknown method or values that are not positive and finite."""
    if method not in ("parabola", "akima"):
        raise ValueError(f"method={method!r}: take parabola or akima")
    c_, n_, d_, loss_ = positive("flops", flops), positive("n", n), positive("d", d), positive("loss", loss)
    if not len(c_) == len(n_) == len(d_) == len(loss_):
        raise ValueError(f"flops, n, d, loss must have one length, got {len(c_)}, {len(n_)}, {len(d_)}, {len(loss_)}")
    rng = np.random.default_rng(seed)
    levels = []
    for rows in group_levels(c_):
        rows = rows[np.argsort(n_[rows], kind="stable")]
        budget = float(np.exp(np.log(c_[rows]).mean()))
        if len(np.unique(n_[rows])) < MIN_SIZES:
            levels.append(_no_minimum(budget, rows, Reason.TOO_FEW_SIZES, ""))
        elif method == "parabola":
            levels.append(_parabola_level(budget, rows, n_, d_, loss_))
        else:
            levels.append(_akima_level(budget, rows, n_, d_, loss_, noise, draws, rng))
    return levels


def _no_minimum(flops: float, rows: np.ndarray, reason: Reason, bound: str, curve: Parabola | None = None) -> Level:
    nan = float("nan")
    return Level(flops=flops, points=rows, n_opt=nan, d_opt=nan, loss_opt=nan, reason=reason, bound=bound, curve=curve)


def _parabola(x: FloatArray, y: FloatArray) -> Parabola:
    """Least-squares quadratic of y in log x. A concave one has its maximum at `x_min`: check `curvature`."""
    log_x = np.log(x)
    centre = log_x.mean()
    c2, c1, c0 = np.polyfit(log_x - centre, y, 2)
    vertex = -c1 / (2 * c2) if c2 else np.inf
    x_min = float(np.exp(np.clip(centre + vertex, -700, 700)))
    return Parabola(x_min=x_min, y_min=float(c0 + c1 * vertex / 2), curvature=float(c2))


def _parabola_level(flops: float, rows: np.ndarray, n: FloatArray, d: FloatArray, loss: FloatArray) -> Level:
    curve, by_tokens = _parabola(n[rows], loss[rows]), _parabola(d[rows], loss[rows])
    if curve.curvature <= 0:
        return _no_minimum(flops, rows, Reason.CONCAVE, "", curve)
    smallest, largest = n[rows[0]], n[rows[-1]]
    if curve.x_min <= smallest:
        return _no_minimum(flops, rows, Reason.OUTSIDE_GRID, f"N* < {smallest:.3g}: an upper bound", curve)
    if curve.x_min >= largest:
        return _no_minimum(flops, rows, Reason.OUTSIDE_GRID, f"N* > {largest:.3g}: a lower bound", curve)
    return Level(flops=flops, points=rows, n_opt=curve.x_min, d_opt=by_tokens.x_min, loss_opt=curve.y_min, curve=curve)


def _akima_level(
    flops: float,
    rows: np.ndarray,
    n: FloatArray,
    d: FloatArray,
    loss: FloatArray,
    noise: float,
    draws: int,
    rng: np.random.Generator,
) -> Level:
    """Porian et al. 2024: Akima interpolation of log loss over log N, minima of `draws` noisy copies, their median."""
    log_n = np.log(n[rows])
    grid = np.linspace(log_n[0], log_n[-1], AKIMA_POINTS * (len(rows) - 1))
    noisy = loss[rows] + noise * rng.standard_normal((draws, len(rows)))
    curves = Akima1DInterpolator(log_n, np.log(noisy).T)(grid)
    lowest = np.argmin(curves, axis=0)
    inside = (lowest > 0) & (lowest < len(grid) - 1)
    if inside.mean() < 0.5:
        side = (
            f"N* < {n[rows[0]]:.3g}: an upper bound"
            if np.median(lowest) == 0
            else f"N* > {n[rows[-1]]:.3g}: a lower bound"
        )
        return _no_minimum(flops, rows, Reason.OUTSIDE_GRID, side)
    minima = grid[lowest[inside]]
    floor = AKIMA_FLOOR * AKIMA_POINTS * (grid[1] - grid[0])
    n_opt = float(np.exp(np.median(minima)))
    tokens = np.exp(np.interp(np.log(n_opt), log_n, np.log(d[rows])))
    clean = Akima1DInterpolator(log_n, np.log(loss[rows]))
    return Level(
        flops=flops,
        points=rows,
        n_opt=n_opt,
        d_opt=float(tokens),
        loss_opt=float(np.exp(clean(np.log(n_opt)))),
        log_n_sd=float(max(minima.std(), floor) * draws / inside.sum()),
        n_draws=np.where(inside, np.exp(grid[lowest]), np.nan),
    )


def fit_isoflop(
    flops: ArrayLike,
    n: ArrayLike,
    d: ArrayLike,
    loss: ArrayLike,
    *,
    method: str = "parabola",
    noise: float = 0.002,
    draws: int = 1000,
    seed: int = 0,
    level: float = 0.9,
    ids: Sequence[str] | None = None,
) -> Fit[OptimalPath]:
    """Approach 2: power laws of C through each budget's minimum N*, D*, L*.

    method "parabola": least-squares quadratic of loss in log N (and in log D) a budget; equal weights. "akima":
    Porian et al. 2024, with `draws` copies whose losses carry Gaussian errors of `noise` nats; weights 1 / variance
    of log N*. Budgets without a minimum inside their sizes are left out with the reason. NOT_IDENTIFIED with fewer than
    three minima, or where the interval of an exponent includes 0. ValueError with fewer than two minima.
    """
    levels = fit_levels(flops, n, d, loss, method=method, noise=noise, draws=draws, seed=seed)
    names = point_ids(ids, len(np.asarray(flops)))
    good = [item for item in levels if item.reason is None]
    left_out = {names[i]: item.reason for item in levels if item.reason is not None for i in item.points}
    if len(good) < 2:
        reasons = [item.reason for item in levels if item.reason is not None]
        told = ", ".join(f"{reasons.count(reason)} {reason}" for reason in dict.fromkeys(reasons))
        raise ValueError(
            f"approach 2 needs a minimum at 2 budgets at least, found {len(good)} of {len(levels)} "
            f"(the others: {told}): run 3 or more sizes a budget, on both sides of the best"
        )
    c = np.array([item.flops for item in good])
    sd = np.array([item.log_n_sd for item in good])
    weights = 1 / sd**2 if method == "akima" else np.ones(len(good))
    centre = float(np.average(np.log(c), weights=weights))
    design = np.column_stack([np.ones(len(c)), np.log(c) - centre])
    lines = {
        name: least_squares(design, np.log([getattr(item, f"{name}_opt") for item in good]), weights)
        for name in ("n", "d", "loss")
    }
    drawn = {k: line.draws(draws, seed + i) for i, (k, line) in enumerate(lines.items()) if line.spare}
    intervals = {f"{name}_exponent": line.interval(1, level) for name, line in lines.items()}
    if method == "akima":
        drawn["n"] = _slopes_of_draws(np.log(np.array([item.n_draws for item in good])), np.log(c) - centre, weights)
        intervals["n_exponent"] = Interval.of(drawn["n"][:, 1], level)
    fit = Fit(
        law=OptimalPath(
            **{k: float(v[0]) for k, v in _path({k: ln.coef[None] for k, ln in lines.items()}, centre).items()}
        ),
        status=Status.CONVERGED,
        objective=lines["n"].objective,
        intervals=intervals,
        used=tuple(names[i] for item in good for i in item.points),
        left_out=left_out,
        warnings=tuple(_warnings(levels, good, names, positive("n", n), positive("loss", loss), method)),
        draws=_path(drawn, centre) if len(good) >= MIN_BUDGETS else {},
        domain={"flops": (float(c.min()), float(c.max()))},
        noise=lines["loss"].noise / float(np.sqrt(weights.mean())),
        settings={"method": method, "draws": draws, "seed": seed, "spare": len(good) - 2},
    )
    few = len(good) < MIN_BUDGETS
    return path_checks.judge(fit, f"{len(good)} budgets have a minimum, {MIN_BUDGETS} are the least" if few else "")


def _path(coef: dict[str, FloatArray], centre: float) -> dict[str, FloatArray]:
    """Parameters of the path from centred lines, name -> (draws, 2)."""
    found = {}
    for name, pairs in coef.items():
        found[f"{name}_intercept"] = pairs[:, 0] - pairs[:, 1] * centre
        found[f"{name}_exponent"] = pairs[:, 1]
    return found


def _slopes_of_draws(log_n: FloatArray, log_c: FloatArray, weights: FloatArray) -> FloatArray:
    """Weighted line through each draw's minima, edges skipped: log_n (levels, draws) -> (draws, 2)."""
    w = np.where(np.isfinite(log_n), weights[:, None], 0.0)
    y = np.where(np.isfinite(log_n), log_n, 0.0)
    total = w.sum(0)
    x_mean, y_mean = (w * log_c[:, None]).sum(0) / total, (w * y).sum(0) / total
    x = log_c[:, None] - x_mean
    slope = (w * x * (y - y_mean)).sum(0) / (w * x * x).sum(0)
    return np.column_stack([y_mean - slope * x_mean, slope])


def asymmetry(levels: Sequence[Level], n: FloatArray, loss: FloatArray) -> tuple[float, float]:
    """(z, shift): pooled z value of a cubic term in log N over all budgets, and the mean shift of log N* it causes.

    A parabola is symmetric; the loss around the optimum is not unless alpha = beta, and then the vertex is biased,
    the more the wider the sizes are spread. (0, 0) where no budget has the five sizes that a cubic and its error
    need.
    """
    scores, shifts = [], []
    for item in levels:
        if item.reason is not None or len(item.points) < 5:
            continue
        u = np.log(n[item.points]) - np.log(item.n_opt)
        design = np.vander(u, 4)
        line = least_squares(design, loss[item.points], np.ones(len(u)))
        c3, c2, c1 = line.coef[:3]
        scores.append(c3 / max(float(np.sqrt(line.covariance[0, 0])), 1e-12))
        root = c2**2 - 3 * c3 * c1
        if root > 0:
            # The minimum of the cubic, by the form that stays finite as c3 tends to 0.
            shifts.append(-c1 / (c2 + np.sqrt(root)))
    if not scores:
        return 0.0, 0.0
    return float(np.sum(scores) / np.sqrt(len(scores))), float(np.mean(shifts)) if shifts else 0.0


def _warnings(
    levels: Sequence[Level], good: Sequence[Level], names: Sequence[str], n: FloatArray, loss: FloatArray, method: str
) -> list[Warn]:
    found = []
    for kind, reason in (
        (Caveat.OPTIMUM_OUTSIDE_GRID, Reason.OUTSIDE_GRID),
        (Caveat.CONCAVE_ISOFLOP, Reason.CONCAVE),
    ):
        for item in levels:
            if item.reason == reason:
                detail = f"budget {item.flops:.3g}: {item.bound or 'the losses bend the wrong way'}"
                found.append(Warn(kind=kind, detail=detail, points=tuple(names[i] for i in item.points)))
    if len(good) < MIN_BUDGETS:
        found.append(
            Warn(kind=Caveat.PERFECT_BY_CONSTRUCTION, detail="two budgets define a line: R^2 = 1 says nothing")
        )
    if method == "parabola":
        exact = [item for item in good if len(item.points) == 3]
        if exact:
            detail = f"{len(exact)} budgets have 3 sizes: their parabola passes through every point"
            found.append(Warn(kind=Caveat.PERFECT_BY_CONSTRUCTION, detail=detail))
        z, shift = asymmetry(good, n, loss)
        if abs(z) > 2:
            detail = f"isoFLOP curves are not symmetric (z = {z:.1f}): a cubic moves N* by {np.expm1(shift):+.2%}"
            found.append(Warn(kind=Caveat.PARABOLA_BIAS, detail=detail + "; narrow the sizes or use the surface"))
    return found
