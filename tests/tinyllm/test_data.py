import threading
from itertools import islice

import numpy as np
import pytest

from tinyllm.corpus import prepare
from tinyllm.data import ArrayCorpus, Corpus, Feed, ZipfCorpus
from tinyllm.order import TokenDigest

TOKENS = np.arange(2000, dtype=np.int64) % 97


@pytest.fixture(scope="module")
def arrays():
    return ArrayCorpus(TOKENS, TOKENS[:100], vocab_size=97, seq_len=8)


@pytest.fixture(scope="module")
def zipf(tmp_path_factory):
    path = str(tmp_path_factory.mktemp("zipf"))
    prepare("zipf:V=32", path, seq_len=16)
    return Corpus.open(path)


# -- sources -------------------------------------------------------------------------------------------------


def test_array_windows_share_one_id(arrays):
    assert (arrays.manifest.train_rows, arrays.manifest.val_rows) == (249, 12)
    assert arrays.val_rows(0, 2).tolist() == [list(range(9)), list(range(8, 17))]
    rows = arrays.train_rows(np.arange(249), seed=0)
    expected = [TOKENS[8 * i : 8 * i + 9].tolist() for i in range(249)]
    assert sorted(rows.tolist()) == sorted(expected)


def test_array_digest_is_of_content_not_of_type(arrays):
    def digest(tokens=TOKENS, val=TOKENS[:100], **options):
        return ArrayCorpus(tokens, val, **{"vocab_size": 97, "seq_len": 8} | options).manifest.digest

    assert digest(TOKENS.astype(np.uint16)) == arrays.manifest.digest
    others = {digest(TOKENS[::-1]), digest(val=TOKENS[1:101]), digest(seq_len=9), digest(vocab_size=98)}
    assert len(others | {arrays.manifest.digest}) == 5


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        (TOKENS.reshape(2, -1), r"shape \(2, 1000\)"),
        (TOKENS / 2, "type float64: give a flat array of integer ids"),
        (TOKENS[:8], "has 8 ids: a row of --seq-len 8 needs 9"),
        (TOKENS + 1, "ids from 1 to 97: the vocabulary is 0 to 96"),
        (TOKENS - 1, "ids from -1 to 95"),
    ],
)
def test_bad_arrays_are_refused(tokens, message):
    with pytest.raises(ValueError, match=f"^tokens.*{message}"):
        ArrayCorpus(tokens, TOKENS, vocab_size=97, seq_len=8)
    with pytest.raises(ValueError, match=f"^val_tokens.*{message}"):
        ArrayCorpus(TOKENS, tokens, vocab_size=97, seq_len=8)


def test_zipf_rows_never_repeat_and_do_not_depend_on_the_company(zipf):
    assert isinstance(zipf, ZipfCorpus)
    assert zipf.token_bytes is None
    positions = np.arange(500, 530)  # straddles two blocks
    rows = zipf.train_rows(positions, seed=0)
    assert rows.shape == (30, 17)
    assert len({tuple(row) for row in zipf.train_rows(np.arange(5000), seed=0).tolist()}) == 5000
    for position, row in zip(positions, rows, strict=True):
        assert zipf.train_rows(np.array([position]), seed=0)[0].tolist() == row.tolist()
    assert zipf.train_rows(positions, seed=1).tolist() != rows.tolist()
    assert zipf.val_rows(500, 530).tolist() != rows.tolist()


def test_zipf_oracle_loss_is_about_the_entropy(zipf):
    assert zipf.val_oracle_loss(0, 4096) == pytest.approx(zipf.manifest.entropy, abs=0.02)
    assert zipf.val_oracle_loss(0, 4096) != zipf.manifest.entropy


@pytest.mark.parametrize(("start", "stop"), [(-1, 2), (3, 3), (0, 13)])
def test_validation_rows_beyond_the_end_are_refused(arrays, start, stop):
    with pytest.raises(ValueError, match=f"validation rows {start} to {stop}: the corpus array has 12"):
        arrays.val_rows(start, stop)


# -- feed ----------------------------------------------------------------------------------------------------


def batches(corpus, n, **options):
    with Feed(corpus, **{"seed": 3, "batch_rows": 8} | options) as feed:
        return list(islice(feed, n))


@pytest.mark.parametrize("source", ["arrays", "zipf"])
@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_any_number_of_ranks_sees_the_same_batches(source, world_size, request):
    """70 batches of 8 are more than two epochs of the 249 rows, and batches straddle them."""
    corpus = request.getfixturevalue(source)
    expected = corpus.train_rows(np.arange(560), seed=3)
    digest = TokenDigest()
    digest.add(np.arange(560), expected)
    ranks = [batches(corpus, 70, rank=rank, world_size=world_size) for rank in range(world_size)]
    for k in range(70):
        positions, rows = (np.concatenate(parts) for parts in zip(*(rank[k] for rank in ranks), strict=True))
        assert positions.tolist() == list(range(8 * k, 8 * k + 8))
        assert np.array_equal(rows, expected[positions])
    merged = TokenDigest()
    for rank in ranks:
        own = TokenDigest()
        for positions, rows in rank:
            own.add(positions, rows)
        merged.merge(own.value)
    assert merged.value == digest.value


@pytest.mark.parametrize("start", [1, 248, 249, 1001])
def test_a_feed_that_starts_anywhere_goes_on_as_if_it_had_been_there(arrays, start):
    whole = arrays.train_rows(np.arange(1100), seed=3)
    for positions, rows in batches(arrays, 5, start=start, world_size=2, rank=1):
        assert np.array_equal(rows, whole[positions])
    assert positions.tolist() == list(range(start + 36, start + 40))


def test_each_epoch_sees_every_row_once_in_another_order(arrays):
    n = arrays.manifest.train_rows
    first, second = (arrays.train_rows(np.arange(e * n, (e + 1) * n), seed=0).tolist() for e in (0, 1))
    assert first != second
    assert sorted(first) == sorted(second)


def test_a_batch_that_does_not_divide_is_refused(arrays):
    with pytest.raises(ValueError, match="a batch of 9 rows does not divide among 2 ranks; choose"):
        Feed(arrays, seed=0, batch_rows=9, world_size=2)


BIG = 2**13  # rows of a batch that the feed reads alone


class Failing:
    """Reads two big batches, then fails."""

    def __init__(self, corpus):
        self.corpus, self.manifest, self.token_bytes, self.tokenizer = corpus, corpus.manifest, None, None
        self.val_rows = corpus.val_rows

    def train_rows(self, positions, *, seed):
        if positions[0] >= 2 * BIG:
            raise ValueError("shard 7 is damaged")
        return self.corpus.train_rows(positions, seed=seed)


def test_an_error_of_the_thread_reaches_the_consumer_after_what_was_read(arrays):
    feed = Feed(Failing(arrays), seed=0, batch_rows=BIG)
    assert [next(feed)[0][0], next(feed)[0][0]] == [0, BIG]
    with pytest.raises(ValueError, match="shard 7 is damaged"):
        next(feed)
    with pytest.raises(StopIteration):
        next(feed)
    assert not feed._thread.is_alive()


def test_closing_ends_the_thread_whatever_it_is_doing(arrays):
    before = threading.active_count()
    for taken in (0, 1, 9):
        feed = Feed(arrays, seed=0, batch_rows=8, prefetch=2)
        list(islice(feed, taken))
        feed.close()
        feed.close()
        assert not feed._thread.is_alive()
    assert threading.active_count() == before


class Slow(Failing):
    """Gives a batch only once it is released."""

    def __init__(self, corpus):
        super().__init__(corpus)
        self.release = threading.Event()

    def train_rows(self, positions, *, seed):
        self.release.wait()
        return self.corpus.train_rows(positions, seed=seed)


def test_waiting_is_measured(arrays):
    slow = Slow(arrays)
    with Feed(slow, seed=0, batch_rows=8) as feed:
        threading.Timer(0.2, slow.release.set).start()
        next(feed)
        assert 0.1 < feed.wait_seconds < 10
