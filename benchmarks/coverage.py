"""How often 90 % intervals cover the truth, over simulated sweeps. `python -m benchmarks.coverage [SWEEPS]`,
default 400.

Each sweep is a grid of sizes 2e6..2e8 and token counts 1e8..6.4e9 on the Chinchilla surface, one trunk a size, with
errors of log loss of standard deviation .003, half of their variance common to a trunk.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass

import numpy as np

from analysis.bootstrap import correlated_noise
from analysis.fit import fit_surface
from analysis.laws import FloatArray, LossSurface
from analysis.result import Status

LAW = LossSurface(A=406.4, B=410.7, E=1.69, alpha=0.34, beta=0.28)
DESIGNS = {12: (4, 3), 25: (5, 5), 60: (10, 6), 240: (24, 10)}
"""Points -> (sizes, token counts)."""
NOISE, TRUNK_SHARE = 0.003, 0.5


@dataclass(frozen=True, kw_only=True)
class Coverage:
    """hits: quantity -> sweeps whose interval holds the truth; NOT_IDENTIFIED counts as an unbounded interval."""

    sweeps: int
    hits: dict[str, int]
    not_identified: int


def simulate(size: int, rng: np.random.Generator) -> tuple[FloatArray, FloatArray, FloatArray, np.ndarray]:
    """One sweep: n, d, loss, trunk."""
    sizes, horizons = DESIGNS[size]
    n = np.repeat(np.geomspace(2e6, 2e8, sizes), horizons)
    d = np.tile(np.geomspace(1e8, 6.4e9, horizons), sizes)
    trunk = np.repeat(np.arange(sizes), horizons)
    errors = correlated_noise(trunk, np.full(size, NOISE), TRUNK_SHARE, 1, rng)[0]
    return n, d, LAW.loss(n, d) * np.exp(errors), trunk


def coverage(size: int, *, sweeps: int, bootstrap: int) -> Coverage:
    """Count over `sweeps` simulated sweeps of `size` points."""
    rng = np.random.default_rng(size)
    hits = {"alpha": 0, "E": 0, "N* at 10x": 0}
    not_identified = 0
    for sweep in range(sweeps):
        n, d, loss, trunk = simulate(size, rng)
        fit = fit_surface(n, d, loss, clusters=trunk, bootstrap=bootstrap, seed=sweep)
        c = 10 * float((6 * n * d).max())
        unbounded = fit.status == Status.NOT_IDENTIFIED
        not_identified += unbounded
        optimum = fit.interval(lambda law, c=c: law.n_opt(c))
        assert optimum is not None
        hits["alpha"] += unbounded or LAW.alpha in fit.intervals["alpha"]
        hits["E"] += unbounded or LAW.E in fit.intervals["E"]
        hits["N* at 10x"] += unbounded or LAW.n_opt(c) in optimum
    return Coverage(sweeps=sweeps, hits=hits, not_identified=not_identified)


def main() -> None:
    """Print one line a size; exit code 1 when a coverage leaves 85-95 %."""
    sweeps = int(sys.argv[1]) if len(sys.argv) > 1 else 400
    failed = False
    for size in DESIGNS:
        start = time.process_time()
        result = coverage(size, sweeps=sweeps, bootstrap=200)
        shares = {name: hits / sweeps for name, hits in result.hits.items()}
        outside = [name for name, share in shares.items() if not 0.85 <= share <= 0.95]
        failed |= bool(outside)
        print(
            f"{size:4d} points: "
            + ", ".join(f"{name} {share:.3f}" for name, share in shares.items())
            + f"; NOT_IDENTIFIED {result.not_identified / sweeps:.3f}; {time.process_time() - start:.0f} CPU-s"
            + (f"; outside 85-95 %: {', '.join(outside)}" if outside else "")
        )
    sys.exit(int(failed))


if __name__ == "__main__":
    main()
