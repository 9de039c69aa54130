"""Speed of the fits in CPU-seconds, n = 240. `python -m benchmarks.fits`; exit code 1 beyond the limits."""

from __future__ import annotations

import sys
import time

import numpy as np

from analysis.fit import fit_surface
from benchmarks.coverage import simulate

SURFACE_LIMIT, BOOTSTRAP_LIMIT = 1.0, 15.0


def main() -> None:
    """Time one surface fit and one with 4,000 bootstraps, by row and by trunk."""
    n, d, loss, trunk = simulate(240, np.random.default_rng(0))
    fit_surface(n[:20], d[:20], loss[:20])  # the first call pays for loading the linear algebra
    failed = False
    for name, limit, options in (
        ("surface", SURFACE_LIMIT, {}),
        ("surface, least absolute deviations", SURFACE_LIMIT, {"objective": "log_lad"}),
        ("4,000 bootstraps by row", BOOTSTRAP_LIMIT, {"bootstrap": 4000}),
        ("4,000 bootstraps by trunk", BOOTSTRAP_LIMIT, {"bootstrap": 4000, "clusters": trunk}),
    ):
        start = time.process_time()
        fit_surface(n, d, loss, **options)  # type: ignore[arg-type]
        spent = time.process_time() - start
        failed |= spent > limit
        print(f"{name}: {spent:.2f} CPU-s (limit {limit:g})")
    sys.exit(int(failed))


if __name__ == "__main__":
    main()
