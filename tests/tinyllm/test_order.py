import hashlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tinyllm.order import RowOrder, TokenDigest, row_at

groups = st.lists(st.integers(1, 20), min_size=1, max_size=8).map(np.array)


@given(groups, st.integers(0, 2**31), st.integers(0, 5))
def test_each_epoch_is_a_permutation_of_all_rows(row_group_rows, seed, epoch):
    n = row_group_rows.sum()
    rows = row_at(seed, np.arange(epoch * n, (epoch + 1) * n), row_group_rows)
    assert sorted(rows.tolist()) == list(range(n))


@settings(max_examples=50)
@given(groups, st.integers(0, 2**31), st.integers(0, 300), st.integers(1, 100))
def test_any_window_is_a_piece_of_the_whole(row_group_rows, seed, start, length):
    """A window may begin anywhere and straddle groups and epochs; position by position gives the same."""
    whole = row_at(seed, np.arange(400), row_group_rows)
    window = RowOrder(seed, row_group_rows).locate(np.arange(start, start + length))
    first = np.cumsum(row_group_rows) - row_group_rows
    assert (first[window[0]] + window[1]).tolist() == whole[start : start + length].tolist()
    assert int(row_at(seed, np.array([start]), row_group_rows)[0]) == whole[start]


def test_a_group_is_read_in_one_stretch():
    """So that each is decoded once an epoch."""
    order = RowOrder(0, np.full(10, 7))
    visited = order.locate(np.arange(70))[0]
    assert (np.diff(visited) != 0).sum() == 9


def test_epochs_seeds_and_groups_are_ordered_differently():
    order, other = RowOrder(0, np.full(20, 30)), RowOrder(1, np.full(20, 30))
    first, rows = order.locate(np.arange(600))
    second = order.locate(np.arange(600, 1200))[0]
    assert first.tolist() != second.tolist()
    assert first.tolist() != other.locate(np.arange(600))[0].tolist()
    assert rows[:30].tolist() != rows[30:60].tolist()


def test_far_positions_cost_what_near_ones_do():
    """Position 10^15 needs no walk over the epochs before it."""
    assert 0 <= row_at(0, np.array([10**15]), np.array([1000, 24]))[0] < 1024


def expected_digest(pairs):
    total = 0
    for position, row in pairs:
        data = int(position).to_bytes(8, "little") + b"".join(int(i).to_bytes(4, "little") for i in row)
        total += int.from_bytes(hashlib.blake2b(data, digest_size=16).digest(), "little")
    return total % 2**128


@pytest.mark.parametrize("dtype", [np.uint16, np.uint32, np.int64])
def test_digest_is_the_sum_it_says_whatever_the_type(dtype):
    rows = np.arange(40).reshape(8, 5).astype(dtype)
    digest = TokenDigest()
    digest.add(np.arange(100, 108), rows)
    assert digest.value == expected_digest(zip(range(100, 108), rows, strict=True))
    assert digest.hex == f"{digest.value:032x}"


@given(st.permutations(range(8)), st.integers(0, 8))
def test_digest_ignores_order_and_grouping(order, cut):
    positions, rows = np.arange(8), np.arange(40).reshape(8, 5)
    whole = TokenDigest()
    whole.add(positions, rows)
    one, two = TokenDigest(), TokenDigest()
    one.add(positions[order[:cut]], rows[order[:cut]])
    two.add(positions[order[cut:]], rows[order[cut:]])
    one.merge(two.value)
    assert one.value == whole.value


def test_digest_sees_a_changed_id_a_moved_row_and_a_repeated_one():
    positions, rows = np.arange(4), np.arange(20).reshape(4, 5)

    def digest(positions, rows):
        digest = TokenDigest()
        digest.add(positions, rows)
        return digest.value

    changed = rows.copy()
    changed[2, 3] += 1
    values = {
        digest(positions, rows),
        digest(positions, changed),
        digest(positions[[1, 0, 2, 3]], rows),
        digest(np.append(positions, 3), np.append(rows, rows[3:], axis=0)),
    }
    assert len(values) == 4
