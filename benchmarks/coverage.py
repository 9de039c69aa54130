"""How often 90 % intervals cover the truth, over simulated sweeps. `python -m benchmarks.coverage [SWEEPS]`,
default 400.

Each sweep is a grid of sizes 2e6..2e8 and token counts 1e8..6.4e9 on the Chinchilla surface, one trunk a size, with
errors of log loss of standard deviation .003, half of their variance common to a trunk. In the last designs each size
is trained at 5 LRs, a trunk each, and the lowest loss is chosen: among LRs that hardly differ (the second best is .0006
of log loss above the best) or that differ by more than the noise (.006).
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from analysis.bootstrap import correlated_noise
from analysis.fit import fit_envelope, fit_points, fit_surface
from analysis.laws import FloatArray, LossSurface
from analysis.result import Fit, Status
from analysis.runs import Points, load

LAW = LossSurface(A=406.4, B=410.7, E=1.69, alpha=0.34, beta=0.28)
DESIGNS = {12: (4, 3), 25: (5, 5), 60: (10, 6), 240: (24, 10)}
"""Points -> (sizes, token counts)."""
CHOICES = {"40 of 5 LRs, near ties": 0.0006, "40 of 5 LRs, apart": 0.006}
"""Design -> log loss of the second best LR above the best; it rises with the square of the steps between LRs."""
NOISE, TRUNK_SHARE = 0.003, 0.5
QUANTITIES = ("alpha", "E", "N* at 10x", "loss", "loss at 10x")


@dataclass(frozen=True, kw_only=True)
class Coverage:
    """hits: quantity -> sweeps whose interval holds the truth; NOT_IDENTIFIED counts as an unbounded interval."""

    sweeps: int
    hits: dict[str, int]
    not_identified: int


def grid(sizes: int, horizons: int) -> tuple[FloatArray, FloatArray]:
    """n and d of each point, sizes outermost."""
    n = np.repeat(np.geomspace(2e6, 2e8, sizes), horizons)
    return n, np.tile(np.geomspace(1e8, 6.4e9, horizons), sizes)


def simulate(size: int, rng: np.random.Generator) -> tuple[FloatArray, FloatArray, FloatArray, np.ndarray]:
    """One sweep: n, d, loss, trunk."""
    sizes, horizons = DESIGNS[size]
    n, d = grid(sizes, horizons)
    trunk = np.repeat(np.arange(sizes), horizons)
    errors = correlated_noise(trunk, np.full(size, NOISE), TRUNK_SHARE, 1, rng)[0]
    return n, d, LAW.loss(n, d) * np.exp(errors), trunk


def simulate_choice(curvature: float, rng: np.random.Generator) -> Points:
    """The points of one sweep of 8 sizes, 5 token counts and 5 LRs, of which the middle one is the best."""
    n, d = (np.repeat(values, 5) for values in grid(8, 5))
    step = np.tile(np.arange(-2, 3), 40)
    trunk = np.unique(np.column_stack([n, step]), axis=0, return_inverse=True)[1].ravel()
    errors = correlated_noise(trunk, np.full(len(n), NOISE), TRUNK_SHARE, 1, rng)[0]
    loss = LAW.loss(n, d) * np.exp(curvature * step**2 + errors)
    return load(pd.DataFrame({"n_params": n, "tokens": d, "loss": loss, "lr": 0.02 * 1.4**step})).best()


def fits(design: int | str, sweeps: int, bootstrap: int) -> Iterator[tuple[Fit[Any], float]]:
    """The surface of each simulated sweep, and its largest compute."""
    rng = np.random.default_rng(design if isinstance(design, int) else list(CHOICES).index(design))
    for sweep in range(sweeps):
        if isinstance(design, int):
            n, d, loss, trunk = simulate(design, rng)
            yield fit_surface(n, d, loss, clusters=trunk, bootstrap=bootstrap, seed=sweep), float((6 * n * d).max())
        else:
            points = simulate_choice(CHOICES[design], rng)
            yield fit_points(points, bootstrap=bootstrap, seed=sweep), float(points.flops.max())


def coverage(design: int | str, *, sweeps: int, bootstrap: int) -> Coverage:
    """Count over `sweeps` simulated sweeps of one design: a number of points, or a name of CHOICES.

    Of "loss" and "loss at 10x" the truth is that of the law at its own optimum of the largest compute, and of 10 times
    that.
    """
    hits = dict.fromkeys(QUANTITIES, 0)
    not_identified = 0
    for fit, largest in fits(design, sweeps, bootstrap):
        c = 10 * largest
        unbounded = fit.status == Status.NOT_IDENTIFIED
        not_identified += unbounded
        found = {
            "alpha": fit.intervals["alpha"],
            "E": fit.intervals["E"],
            "N* at 10x": fit.interval(lambda law, c=c: law.n_opt(c)),
            "loss": fit.predict(LAW.n_opt(largest), LAW.d_opt(largest)).interval,
            "loss at 10x": fit.predict(LAW.n_opt(c), LAW.d_opt(c)).interval,
        }
        truth = {
            "alpha": LAW.alpha,
            "E": LAW.E,
            "N* at 10x": LAW.n_opt(c),
            "loss": LAW.loss(LAW.n_opt(largest), LAW.d_opt(largest)),
            "loss at 10x": LAW.loss(LAW.n_opt(c), LAW.d_opt(c)),
        }
        for name, interval in found.items():
            assert interval is not None
            hits[name] += unbounded or truth[name] in interval
    return Coverage(sweeps=sweeps, hits=hits, not_identified=not_identified)


def envelope_coverage(size: int, *, sweeps: int, draws: int) -> Coverage:
    """The same of approach 1, for its exponent of N* and N* at 10x; its loss has no floor and is not counted."""
    rng = np.random.default_rng(size)
    hits = {"exponent of N*": 0, "N* at 10x": 0}
    not_identified = 0
    for sweep in range(sweeps):
        n, d, loss, trunk = simulate(size, rng)
        flops = 6 * n * d
        fit = fit_envelope(flops, n, d, loss, clusters=trunk, draws=draws, seed=sweep)
        c = 10 * float(flops.max())
        unbounded = fit.status == Status.NOT_IDENTIFIED
        not_identified += unbounded
        optimum = fit.interval(lambda law, c=c: law.n_opt(c))
        assert optimum is not None
        hits["exponent of N*"] += unbounded or LAW.a in fit.intervals["n_exponent"]
        hits["N* at 10x"] += unbounded or LAW.n_opt(c) in optimum
    return Coverage(sweeps=sweeps, hits=hits, not_identified=not_identified)


def main() -> None:
    """Print one line a design; exit code 1 when a coverage of the surface leaves 85-95 %, or one of the envelope is
    below 85 %.
    """
    sweeps = int(sys.argv[1]) if len(sys.argv) > 1 else 400
    failed = False

    def show(name: str, result: Coverage, seconds: float, most: float) -> bool:
        shares = {quantity: hits / sweeps for quantity, hits in result.hits.items()}
        outside = [quantity for quantity, share in shares.items() if not 0.85 <= share <= most]
        print(
            f"{name}: "
            + ", ".join(f"{quantity} {share:.3f}" for quantity, share in shares.items())
            + f"; NOT_IDENTIFIED {result.not_identified / sweeps:.3f}; {seconds:.0f} CPU-s"
            + (f"; outside 85-95 %: {', '.join(outside)}" if outside else ""),
            flush=True,
        )
        return bool(outside)

    designs: tuple[int | str, ...] = (*DESIGNS, *CHOICES)
    for design in designs:
        start = time.process_time()
        result = coverage(design, sweeps=sweeps, bootstrap=200)
        name = f"{design:4d} points" if isinstance(design, int) else design
        failed |= show(name, result, time.process_time() - start, 0.95)
    for size in DESIGNS:
        start = time.process_time()
        result = envelope_coverage(size, sweeps=sweeps, draws=200)
        failed |= show(f"{size:4d} points, envelope", result, time.process_time() - start, 1.0)
    sys.exit(int(failed))


if __name__ == "__main__":
    main()
