"""90 % intervals cover the truth as often as they say: 60 simulated sweeps a size (400 in benchmarks.coverage)."""

import pytest
from scipy.stats import binom

from benchmarks.coverage import DESIGNS, coverage

SWEEPS = 60


@pytest.mark.parametrize("size", DESIGNS)
def test_intervals_cover(size):
    result = coverage(size, sweeps=SWEEPS, bootstrap=200)
    # 85-95 % is the claim; a count outside these bounds has a chance below 1 in 1,000 under it.
    low, high = binom.ppf(0.0005, SWEEPS, 0.85), binom.ppf(0.9995, SWEEPS, 0.95)
    for quantity, hits in result.hits.items():
        assert low <= hits <= high, quantity
    if size >= 60:
        assert result.not_identified <= binom.ppf(0.999, SWEEPS, 0.05)
    if size == 25:
        assert result.not_identified <= binom.ppf(0.999, SWEEPS, 0.5)
