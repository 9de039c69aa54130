"""Which row stands at which position of the training stream, and the digest of the rows that were seen.

Order is a pure function: rank, world size, micro-batch and resume point only say which positions to read.
"""

from __future__ import annotations

import hashlib
from functools import cached_property, lru_cache

import numpy as np

from tinyllm.hashing import permutation

_TRAIN_ORDER = 1  # first part of the keys below, apart from every other use of the same seed


class RowOrder:
    """A training order over rows that lie in row groups.

    Position p belongs to epoch e = p // n_rows. An epoch visits the row groups in the order of a permutation
    keyed by (seed, e), and the rows within a group in the order of one keyed by (seed, e, group): random enough
    because `prepare` has already scattered the documents, and each group is decoded once an epoch.
    """

    def __init__(self, seed: int, row_group_rows: np.ndarray) -> None:
        """`row_group_rows`: int64 (n_groups,), the number of rows in each group, all positive."""
        assert len(row_group_rows) and row_group_rows.min() > 0
        self.seed = seed
        self.row_group_rows = np.asarray(row_group_rows, np.int64)
        # A position costs O(1) once its epoch's and its group's permutations are known; sequential reading
        # needs two of each at a time (a batch may straddle groups and epochs).
        self._epoch = lru_cache(maxsize=2)(self._epoch_uncached)
        self._group = lru_cache(maxsize=4)(self._group_uncached)

    @cached_property
    def n_rows(self) -> int:
        return int(self.row_group_rows.sum())

    def locate(self, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The group of each position (int64, shape of `positions`) and the row within that group."""
        epochs, offsets = np.divmod(np.asarray(positions, np.int64), self.n_rows)
        groups = np.empty_like(offsets)
        rows = np.empty_like(offsets)
        for epoch in np.unique(epochs).tolist():
            in_epoch = epochs == epoch
            order, starts = self._epoch(epoch)
            slots = np.searchsorted(starts, offsets[in_epoch], side="right") - 1
            groups[in_epoch] = order[slots]
            ranks = offsets[in_epoch] - starts[slots]
            picked = np.empty_like(ranks)
            for slot in np.unique(slots).tolist():
                in_slot = slots == slot
                picked[in_slot] = self._group(epoch, int(order[slot]))[ranks[in_slot]]
            rows[in_epoch] = picked
        return groups, rows

    def _epoch_uncached(self, epoch: int) -> tuple[np.ndarray, np.ndarray]:
        order = permutation(len(self.row_group_rows), _TRAIN_ORDER, self.seed, epoch)
        sizes = self.row_group_rows[order]
        return order, np.cumsum(sizes) - sizes

    def _group_uncached(self, epoch: int, group: int) -> np.ndarray:
        return permutation(int(self.row_group_rows[group]), _TRAIN_ORDER, self.seed, epoch, group)


def row_at(seed: int, positions: np.ndarray, row_group_rows: np.ndarray) -> np.ndarray:
    """The row, numbered through all groups in file order, at each position (int64, shape of `positions`)."""
    groups, rows = RowOrder(seed, row_group_rows).locate(positions)
    return (np.cumsum(row_group_rows) - row_group_rows)[groups] + rows


class TokenDigest:
    """Digest of a set of (position, row) pairs: the sum of blake2b-128(position, row) modulo 2^128, both written as
    little-endian integers, of 8 bytes and of 4 bytes an id.

    A sum does not care for order or grouping: each rank adds what it read and the ranks' values are merged, so a
    run on 1, 2 or 4 workers, or killed and resumed, ends with the same digest if and only if it saw the same rows.
    """

    def __init__(self, value: int = 0) -> None:
        self.value = value

    @property
    def hex(self) -> str:
        return f"{self.value:032x}"

    def add(self, positions: np.ndarray, rows: np.ndarray) -> None:
        """Add rows of ids, shape (len(positions), row length), of any integer type."""
        ids = np.ascontiguousarray(rows, dtype="<u4")
        total = self.value
        for position, row in zip(np.asarray(positions, "<i8"), ids, strict=True):
            hashed = hashlib.blake2b(position.tobytes() + row.tobytes(), digest_size=16)
            total += int.from_bytes(hashed.digest(), "little")
        self.value = total % 2**128

    def merge(self, value: int) -> None:
        """Add the value of another rank's digest."""
        self.value = (self.value + value) % 2**128
