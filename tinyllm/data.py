"""Rows of tokens for training and evaluation, and the feed that brings a rank its share of every batch.

Three sources answer to the same names (`TokenSource`): a prepared corpus of text, the generated Zipf chain, and
arrays in memory.
"""

from __future__ import annotations

import hashlib
from collections.abc import Generator, Iterator
from functools import cached_property, lru_cache
from itertools import count, islice
from typing import Protocol

import numpy as np

from tinyllm import storage
from tinyllm.manifest import TOKENIZER_FILE, Manifest
from tinyllm.order import RowOrder
from tinyllm.read_ahead import ReadAhead
from tinyllm.shards import ShardReader
from tinyllm.tokenizer import Tokenizer, json_digest
from tinyllm.zipf import ZipfChain

_ZIPF_TRAIN, _ZIPF_VAL = 0, 1  # streams of the chain
_ZIPF_BLOCK_ROWS = 512  # rows generated at once: the chain's cost is one array operation a step for a whole block
_ARRAY_GROUP_ROWS = 1024
_READ_TOKENS = 2**16  # read at once: a small batch alone would cost more in calls than in copying


class TokenSource(Protocol):
    """What training and evaluation read. A row holds seq_len + 1 ids: inputs are all but the last, targets all but
    the first. Ids are of any unsigned integer type. Not for use by several threads at once, except that
    `val_rows` may run beside `train_rows`.
    """

    @property
    def manifest(self) -> Manifest: ...

    @property
    def token_bytes(self) -> np.ndarray | None:
        """Bytes of text behind each id, int32 (vocab_size,), 0 for special tokens; None where ids are not text."""

    @property
    def tokenizer(self) -> Tokenizer | None: ...

    def train_rows(self, positions: np.ndarray, *, seed: int) -> np.ndarray:
        """Rows at these positions (n,) of the training stream of a seed: (n, seq_len + 1).

        A pure function of its arguments. Positions run on over the epochs.
        """

    def val_rows(self, start: int, stop: int) -> np.ndarray:
        """Validation rows start to stop, the same for everybody: (stop - start, seq_len + 1)."""


class Corpus:
    """A corpus that `tinyllm.corpus.prepare` wrote."""

    def __init__(self, path: str, manifest: Manifest) -> None:
        self.path = path
        self.manifest = manifest
        self._train = ShardReader(path, [shard for shard in manifest.shards if shard.split == "train"])
        self._val = ShardReader(path, [shard for shard in manifest.shards if shard.split == "val"])
        self._order = lru_cache(maxsize=1)(lambda seed: RowOrder(seed, self._train.row_group_rows))

    @staticmethod
    def open(path: str) -> Corpus | ZipfCorpus:
        """The corpus in a directory or at a URI. Raises ValueError, with the command to run, when there is none."""
        path = storage.absolute(path)
        manifest = Manifest.load(path)
        return ZipfCorpus(manifest) if manifest.kind == "zipf" else Corpus(path, manifest)

    @property
    def token_bytes(self) -> np.ndarray | None:
        return self.tokenizer.token_bytes

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """Raises ValueError when the file is not the one that the shards were made with."""
        file = storage.join(self.path, TOKENIZER_FILE)
        text = storage.read_bytes(file).decode(errors="replace")
        if json_digest(text) != self.manifest.tokenizer_digest:
            raise ValueError(
                f"{file} has digest {json_digest(text)}, the manifest says {self.manifest.tokenizer_digest}: it was "
                f"changed or damaged; remove {self.path} and prepare the corpus again"
            )
        return Tokenizer.from_json(text)

    def check(self) -> None:
        """Look at the footer of every file. Raises ValueError naming the one that is missing or damaged."""
        for reader in (self._val, self._train):
            reader.check()

    def train_rows(self, positions: np.ndarray, *, seed: int) -> np.ndarray:
        return self._train.gather(*self._order(seed).locate(positions))

    def val_rows(self, start: int, stop: int) -> np.ndarray:
        _check_val_range(start, stop, self.manifest)
        return self._val.slice(start, stop)


class ZipfCorpus:
    """The Zipf chain: a row for every position, generated when it is read and never repeated."""

    token_bytes = None
    tokenizer = None

    def __init__(self, manifest: Manifest) -> None:
        self.manifest = manifest
        self.chain = ZipfChain.parse(manifest.source, seed=manifest.seed)
        self._block = lru_cache(maxsize=2)(self._generate)

    def train_rows(self, positions: np.ndarray, *, seed: int) -> np.ndarray:
        positions = np.asarray(positions, np.int64)
        blocks = positions // _ZIPF_BLOCK_ROWS
        out = np.empty((len(positions), self.manifest.seq_len + 1), np.uint16)
        for block in np.unique(blocks).tolist():
            here = blocks == block
            out[here] = self._block(seed, block)[positions[here] % _ZIPF_BLOCK_ROWS]
        return out

    def val_rows(self, start: int, stop: int) -> np.ndarray:
        _check_val_range(start, stop, self.manifest)
        return self.chain.rows(np.arange(start, stop), self.manifest.seq_len + 1, _ZIPF_VAL)

    def val_oracle_loss(self, start: int, stop: int) -> float:
        """Nats per token that a model which knows the chain loses on these validation rows (about `entropy`)."""
        losses = self.chain.losses(np.arange(start, stop), self.manifest.seq_len + 1, _ZIPF_VAL)
        return float(losses[:, 1:].mean())

    def _generate(self, seed: int, block: int) -> np.ndarray:
        index = np.arange(block * _ZIPF_BLOCK_ROWS, (block + 1) * _ZIPF_BLOCK_ROWS)
        return self.chain.rows(index, self.manifest.seq_len + 1, _ZIPF_TRAIN, seed)


class ArrayCorpus:
    """Two flat arrays of ids, cut into windows of seq_len targets; a window begins with the id that ends the last."""

    tokenizer = None

    def __init__(
        self,
        tokens: np.ndarray,
        val_tokens: np.ndarray,
        *,
        vocab_size: int,
        seq_len: int,
        token_bytes: np.ndarray | None = None,
    ) -> None:
        """Raises ValueError for arrays that are not flat, not of integers in [0, vocab_size), or under one row."""
        self.token_bytes = token_bytes
        self._rows = _windows("tokens", tokens, vocab_size, seq_len)
        self._val_rows = _windows("val_tokens", val_tokens, vocab_size, seq_len)
        n_full, rest = divmod(len(self._rows), _ARRAY_GROUP_ROWS)
        self._group_rows = np.array([_ARRAY_GROUP_ROWS] * n_full + [rest] * (rest > 0), np.int64)
        self._order = lru_cache(maxsize=1)(lambda seed: RowOrder(seed, self._group_rows))
        digest = hashlib.blake2b(f"{vocab_size},{seq_len}".encode(), digest_size=16)
        for rows in (self._rows, self._val_rows):
            digest.update(rows.astype("<u4").tobytes())
        self.manifest = Manifest(
            name="array",
            kind="array",
            source="arrays in memory",
            licence="unknown",
            digest=digest.hexdigest(),
            source_digest="",
            tokenizer_digest=None,
            vocab_size=vocab_size,
            seq_len=seq_len,
            seed=0,
            train_rows=len(self._rows),
            val_rows=len(self._val_rows),
            n_documents=0,
            n_duplicates=0,
            cropped_share=0.0,
            bytes_per_token=None,
            entropy=None,
            shards=(),
            recipe={},
        )

    def train_rows(self, positions: np.ndarray, *, seed: int) -> np.ndarray:
        groups, rows = self._order(seed).locate(positions)
        return self._rows[groups * _ARRAY_GROUP_ROWS + rows]

    def val_rows(self, start: int, stop: int) -> np.ndarray:
        _check_val_range(start, stop, self.manifest)
        return self._val_rows[start:stop]


class Feed(ReadAhead[tuple[np.ndarray, np.ndarray]]):
    """Iterates over one rank's share of every global batch, for ever, reading ahead in a background thread.

    Global batch k holds positions [start + k * batch_rows, start + (k + 1) * batch_rows); a rank has the contiguous
    share of its number. What is read depends on nothing else, so a feed may start anywhere, on any number of ranks.

    Yields (positions, rows): int64 (batch_rows / world_size,) and ids (batch_rows / world_size, seq_len + 1).
    """

    def __init__(
        self,
        corpus: TokenSource,
        *,
        seed: int,
        batch_rows: int,
        rank: int = 0,
        world_size: int = 1,
        start: int = 0,
        prefetch: int = 4,
    ) -> None:
        """`prefetch`: batches that may wait. Raises ValueError when the batch does not divide among the ranks."""
        shares = rank_shares(batch_rows=batch_rows, rank=rank, world_size=world_size, start=start)
        super().__init__(_batches(corpus, seed, shares, batch_rows // world_size), prefetch)


def _batches(
    corpus: TokenSource, seed: int, shares: Iterator[np.ndarray], share_rows: int
) -> Generator[tuple[np.ndarray, np.ndarray], None, None]:
    for positions, rows in read_shares(corpus, seed, shares, _READ_TOKENS):
        for first in range(0, len(positions), share_rows):
            yield positions[first : first + share_rows], rows[first : first + share_rows]


def read_shares(
    corpus: TokenSource, seed: int, shares: Iterator[np.ndarray], n_tokens: int
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Positions and rows of the shares of several batches at a time, about `n_tokens`, at least one share."""
    while True:
        taken = [next(shares)]
        share_tokens = len(taken[0]) * corpus.manifest.seq_len
        taken += islice(shares, max(1, n_tokens // share_tokens) - 1)
        positions = np.concatenate(taken)
        yield positions, corpus.train_rows(positions, seed=seed)


def rank_shares(*, batch_rows: int, rank: int, world_size: int, start: int) -> Iterator[np.ndarray]:
    """The positions of a rank's share of each global batch from `start` on: int64 (batch_rows / world_size,).

    Raises ValueError when the batch does not divide among the ranks.
    """
    if batch_rows < 1 or batch_rows % world_size:
        raise ValueError(
            f"a batch of {batch_rows} rows does not divide among {world_size} ranks; "
            f"choose a total batch size of a multiple of {world_size} rows"
        )
    assert 0 <= rank < world_size
    assert start >= 0
    share = np.arange(batch_rows // world_size) + (start + rank * (batch_rows // world_size))
    return (share + first for first in count(0, batch_rows))


def _check_val_range(start: int, stop: int, manifest: Manifest) -> None:
    if not 0 <= start < stop <= manifest.val_rows:
        raise ValueError(f"validation rows {start} to {stop}: the corpus {manifest.name} has {manifest.val_rows}")


def _windows(name: str, tokens: np.ndarray, vocab_size: int, seq_len: int) -> np.ndarray:
    tokens = np.asarray(tokens)
    if tokens.ndim != 1 or not np.issubdtype(tokens.dtype, np.integer):
        raise ValueError(f"{name} has shape {tokens.shape} and type {tokens.dtype}: give a flat array of integer ids")
    n_rows = (len(tokens) - 1) // seq_len
    if n_rows < 1:
        raise ValueError(f"{name} has {len(tokens)} ids: a row of --seq-len {seq_len} needs {seq_len + 1}")
    low, high = int(tokens.min()), int(tokens.max())
    if low < 0 or high >= vocab_size:
        raise ValueError(f"{name} has ids from {low} to {high}: the vocabulary is 0 to {vocab_size - 1}")
    return np.lib.stride_tricks.sliding_window_view(tokens, seq_len + 1)[::seq_len]
