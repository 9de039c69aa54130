"""Keyed 64-bit hashes of integers, whole arrays at a time.

Order of data and synthetic tokens are built on these instead of `numpy.random`, whose streams may change
between releases: a position must mean the same row on every machine, for ever.
"""

from __future__ import annotations

import numpy as np

# SplitMix64: the increment and the finaliser of Steele, Lea and Flood,
# "Fast splittable pseudorandom number generators" (OOPSLA 2014); all arithmetic is modulo 2^64.
_INCREMENT = np.uint64(0x9E3779B97F4A7C15)
_MULTIPLIERS = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))


def hash64(*parts: int | np.ndarray) -> np.ndarray:
    """Hash of a tuple of integers; arrays among the parts broadcast against each other.

    Returns uint64 of the broadcast shape. For any fixed earlier parts it is a bijection of the last one, so
    distinct last parts never collide.
    """
    state = np.zeros(1, np.uint64)
    for part in parts:
        value = np.asarray(part % 2**64 if isinstance(part, int) else part).astype(np.uint64)
        state = _finalise(state + value + _INCREMENT)
    return state


def uniform(*parts: int | np.ndarray) -> np.ndarray:
    """Float64 in [0, 1) from the 53 top bits of `hash64`."""
    return (hash64(*parts) >> np.uint64(11)) * 2.0**-53


def permutation(n: int, *key: int) -> np.ndarray:
    """The keyed permutation of range(n): indices sorted by their hash (int64, shape (n,))."""
    return np.argsort(hash64(*key, np.arange(n)), kind="stable")


def _finalise(x: np.ndarray) -> np.ndarray:
    x = (x ^ (x >> np.uint64(30))) * _MULTIPLIERS[0]
    x = (x ^ (x >> np.uint64(27))) * _MULTIPLIERS[1]
    return x ^ (x >> np.uint64(31))
