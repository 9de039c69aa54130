"""Documents of any length -> rows of one length, each starting with a beginning-of-sequence token.

Best-fit packing without padding: a document longer than a row is cut into pieces, every piece starts with BOS, and
a row takes the longest piece that still fits until none does; then the shortest piece left is cropped to fill it.
Best-fit cuts far fewer documents than concatenation: Ding et al., "Fewer Truncations Improve Language Modeling"
(arXiv 2404.10830). What is cropped is counted, never hidden.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, kw_only=True)
class PackedRows:
    rows: np.ndarray
    """Ids, shape (n_rows, row_length)."""
    n_tokens: int
    """Tokens that came in, BOS of every piece included."""

    @property
    def n_cropped(self) -> int:
        """Tokens that found no place in a row."""
        return self.n_tokens - self.rows.size


def split_into_pieces(ids: np.ndarray, bos_id: int, row_length: int) -> list[np.ndarray]:
    """Cut one document's ids (n,) into consecutive pieces of at most `row_length` with BOS in front of each."""
    room = row_length - 1
    bos = np.array([bos_id], ids.dtype)
    return [np.concatenate([bos, ids[start : start + room]]) for start in range(0, len(ids), room)]


def pack(pieces: Iterable[np.ndarray], row_length: int, dtype: type[np.unsignedinteger]) -> PackedRows:
    """Pack pieces of 1 to `row_length` ids into full rows; a pure function of the pieces in their order.

    The last row is left out when nothing is left to fill it. Pieces of equal length are taken in the order given.
    """
    waiting: list[deque[np.ndarray]] = [deque() for _ in range(row_length + 1)]
    lengths = 0  # bit n is set when a piece of n ids waits
    n_tokens = 0
    for piece in pieces:
        assert 0 < len(piece) <= row_length, f"piece of {len(piece)} ids for rows of {row_length}"
        waiting[len(piece)].append(piece)
        lengths |= 1 << len(piece)
        n_tokens += len(piece)

    rows = np.empty((n_tokens // row_length, row_length), dtype)
    n_rows = 0
    filled = 0
    while lengths and n_rows < len(rows):
        room = row_length - filled
        fitting = lengths & ((2 << room) - 1)
        length = (fitting or (lengths & -lengths)).bit_length() - 1  # longest that fits, else the shortest
        piece = waiting[length].popleft()
        if not waiting[length]:
            lengths ^= 1 << length
        taken = min(length, room)
        rows[n_rows, filled : filled + taken] = piece[:taken]
        filled += taken
        if filled == row_length:
            n_rows, filled = n_rows + 1, 0
    return PackedRows(rows=rows[:n_rows], n_tokens=n_tokens)
