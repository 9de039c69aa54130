"""The hashes that fix the order of data for ever: published vectors and basic randomness."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tinyllm.hashing import hash64, permutation, uniform

# The first outputs of SplitMix64 seeded with 1234567, as published with the Rosetta Code task "Pseudo-random
# numbers/Splitmix64". Its k-th output is the finaliser of seed + k * increment.
SPLITMIX64_1234567 = [6457827717110365317, 3203168211198807973, 9817491932198370423]


def test_one_part_is_splitmix64():
    increment = 0x9E3779B97F4A7C15
    states = [1234567 + k * increment for k in range(3)]
    assert [int(hash64(state)[0]) for state in states] == SPLITMIX64_1234567


def test_the_order_of_data_never_changes():
    """A literal: a change here silently reorders every corpus and must raise TRAINING_VERSION."""
    assert permutation(10, 1, 2, 3).tolist() == [7, 0, 4, 1, 8, 2, 5, 6, 3, 9]


@given(st.integers(0, 200), st.lists(st.integers(-(2**63), 2**63 - 1), max_size=4))
def test_permutation_is_one(n, key):
    assert sorted(permutation(n, *key).tolist()) == list(range(n))


@pytest.mark.parametrize("other", [(1, 3), (2, 2), (2, 1), (1,), (1, 2, 0)])
def test_keys_that_differ_give_other_permutations(other):
    assert permutation(50, 1, 2).tolist() != permutation(50, *other).tolist()


def test_uniform_is_uniform():
    u = uniform(7, np.arange(100)[:, None], np.arange(1000))
    assert u.shape == (100, 1000)
    assert u.min() >= 0 and u.max() < 1
    # 100k draws: the mean of a uniform has sd 1/sqrt(12 n) = 0.0009, a bin of 20 has sd 0.0007.
    assert abs(u.mean() - 0.5) < 0.004
    assert np.abs(np.histogram(u, 20, (0, 1))[0] / u.size - 0.05).max() < 0.003
    assert abs(np.corrcoef(u[:-1].ravel(), u[1:].ravel())[0, 1]) < 0.015
