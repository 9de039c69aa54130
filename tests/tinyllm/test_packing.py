import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tinyllm.packing import pack, split_into_pieces

BOS = 0
lengths_of_documents = st.lists(st.integers(0, 40), max_size=30)


def pieces_of(lengths, row_length):
    """Pieces of documents of these lengths, in which no id but BOS stands twice."""
    ids = np.arange(1, sum(lengths) + 1, dtype=np.uint16)
    documents = np.split(ids, np.cumsum(lengths)[:-1]) if lengths else []
    return [piece for document in documents for piece in split_into_pieces(document, BOS, row_length)]


@given(st.integers(0, 60), st.integers(2, 12))
def test_pieces_are_the_document_cut_up(length, row_length):
    pieces = pieces_of([length], row_length)
    assert [i for piece in pieces for i in piece[1:].tolist()] == list(range(1, length + 1))
    assert all(piece[0] == BOS and 2 <= len(piece) <= row_length for piece in pieces)
    assert all(len(piece) == row_length for piece in pieces[:-1])


@given(lengths_of_documents, st.integers(2, 12))
def test_rows_hold_each_piece_once_and_crop_only_at_the_end_of_a_row(lengths, row_length):
    pieces = pieces_of(lengths, row_length)
    packed = pack(pieces, row_length, np.uint16)
    assert packed.n_tokens == sum(map(len, pieces))
    assert packed.n_cropped == packed.n_tokens - packed.rows.size >= 0
    unused = {int(piece[1]): piece.tolist() for piece in pieces}
    for row in packed.rows.tolist():
        starts = [i for i, token in enumerate(row) if token == BOS]
        assert starts[0] == 0
        for start, end in zip(starts, [*starts[1:], row_length], strict=True):
            if end - start > 1:  # a crop may leave BOS alone, which could be of any piece
                piece = unused.pop(row[start + 1])
                assert row[start:end] == piece[: end - start]
                assert end - start == len(piece) or end == row_length


@given(lengths_of_documents, st.integers(2, 12))
def test_packing_is_a_pure_function(lengths, row_length):
    first, second = (pack(pieces_of(lengths, row_length), row_length, np.uint16) for _ in range(2))
    assert first.rows.tobytes() == second.rows.tobytes()


def test_best_fit_takes_the_longest_that_fits():
    """Rows of 10: 7+3 and 6+4 fill exactly, where first-come would crop."""
    pieces = [np.full(n, n, np.uint16) for n in (7, 6, 4, 3)]
    packed = pack(pieces, 10, np.uint16)
    assert packed.rows.tolist() == [[7] * 7 + [3] * 3, [6] * 6 + [4] * 4]
    assert packed.n_cropped == 0


def test_when_nothing_fits_the_shortest_is_cropped():
    pieces = [np.full(n, n, np.uint16) for n in (8, 5, 4)]
    packed = pack(pieces, 10, np.uint16)
    assert packed.rows.tolist() == [[8] * 8 + [4] * 2]
    assert packed.n_cropped == 2 + 5


def test_realistic_lengths_crop_little():
    """Log-normal documents of about 670 tokens, as on the web, in rows of 2049: under 1 % is cropped."""
    lengths = np.random.default_rng(0).lognormal(6, 1, 3000).astype(int) + 1
    pieces = [piece for n in lengths for piece in split_into_pieces(np.ones(n, np.uint16), BOS, 2049)]
    packed = pack(pieces, 2049, np.uint16)
    assert packed.n_cropped / packed.n_tokens < 0.01


@pytest.mark.parametrize("pieces", [[], [np.ones(3, np.uint16)]])
def test_too_little_for_a_row_gives_none(pieces):
    assert pack(pieces, 10, np.uint16).rows.shape == (0, 10)
