"""90 % intervals cover the truth as often as they say: 60 simulated sweeps a design (400 in benchmarks.coverage)."""

import pytest
from scipy.stats import binom

from benchmarks.coverage import CHOICES, DESIGNS, coverage, envelope_coverage

SWEEPS = 60


@pytest.mark.parametrize("design", [*DESIGNS, *CHOICES])
def test_intervals_cover(design):
    result = coverage(design, sweeps=SWEEPS, bootstrap=200)
    # 85-95 % is the claim; a count outside these bounds has a chance below 1 in 1,000 under it.
    low, high = binom.ppf(0.0005, SWEEPS, 0.85), binom.ppf(0.9995, SWEEPS, 0.95)
    for quantity, hits in result.hits.items():
        assert low <= hits <= high, quantity
    if design in (60, 240):
        assert result.not_identified <= binom.ppf(0.999, SWEEPS, 0.05)
    if design == 25:
        assert result.not_identified <= binom.ppf(0.999, SWEEPS, 0.5)


@pytest.mark.parametrize("size", DESIGNS)
def test_intervals_of_an_envelope_cover_at_least_as_often_as_they_say(size):
    """Which points lie on it is chosen, and at the edge of the grid for want of others: lines alone covered 2 %."""
    result = envelope_coverage(size, sweeps=SWEEPS, draws=200)
    for quantity, hits in result.hits.items():
        assert hits >= binom.ppf(0.0005, SWEEPS, 0.85), quantity
    assert result.not_identified <= binom.ppf(0.999, SWEEPS, 0.5 if size < 60 else 0.05)
