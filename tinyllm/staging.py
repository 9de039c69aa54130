"""The two steps of preparation that run on workers: placing documents, and turning a shard's documents into rows.

Both are pure functions of their input and the recipe, so the result is the same for any number of workers, and any
task may be run again. A document's place is decided by a keyed hash of its text: first the split, then the shard,
then the order within it. Equal texts meet in one shard, where all but one are dropped.
"""

from __future__ import annotations

import hashlib
import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq

from tinyllm import storage
from tinyllm.hashing import permutation
from tinyllm.packing import pack, split_into_pieces
from tinyllm.shards import id_dtype, write_shard
from tinyllm.tokenizer import Tokenizer

_ROW_SHUFFLE = 4  # first part of the key, apart from every other use of the same seed
_ENCODE_BYTES = 2**20  # text handed to the tokenizer at once: what it returns is far larger than the ids


@dataclass(frozen=True, kw_only=True)
class Layout:
    """How documents are spread over splits and shards."""

    seed: int
    val_fraction: float
    train_shards: int
    val_shards: int

    @property
    def shard_names(self) -> list[str]:
        """Training first, then validation; also the order of the shards in the manifest."""
        train = [_shard_name("train", i) for i in range(self.train_shards)]
        return train + [_shard_name("val", i) for i in range(self.val_shards)]

    def key_of(self, text: str) -> bytes:
        """blake2b-128 of a document, keyed by the seed."""
        seed = self.seed.to_bytes(8, "little", signed=True)
        return hashlib.blake2b(text.encode(), digest_size=16, key=seed).digest()

    def shard_of(self, key: bytes) -> str:
        """Shard of the document with this key."""
        number = int.from_bytes(key[8:12], "big")
        if int.from_bytes(key[:8], "big") < self.val_fraction * 2**64:
            return _shard_name("val", number % self.val_shards)
        return _shard_name("train", number % self.train_shards)


@dataclass(frozen=True, kw_only=True)
class StageJob:
    """The first step: write the documents of any batch to the staging files of their shards."""

    documents: str
    """Directory of the staging files."""
    text_column: str
    layout: Layout

    def __call__(self, batch: pa.Table) -> pa.Table:
        """Stage the non-empty documents of a batch, white space around them cut; returns their number."""
        texts = [text.strip() for text in batch[self.text_column].to_pylist() if text and not text.isspace()]
        by_shard: dict[str, dict[bytes, str]] = defaultdict(dict)
        for text in texts:
            key = self.layout.key_of(text)
            by_shard[self.layout.shard_of(key)][key] = text
        for shard, documents in by_shard.items():
            # Named by content: a task that runs twice writes the same file twice.
            name = hashlib.blake2b(b"".join(documents), digest_size=16).hexdigest()
            columns = {
                "key": pa.array(documents.keys(), pa.binary(16)),
                "text": pa.array(documents.values(), pa.large_string()),
            }
            buffer = pa.BufferOutputStream()
            pq.write_table(pa.table(columns), buffer)
            path = storage.join(self.documents, shard, f"{name}.parquet")
            storage.write_bytes(path, buffer.getvalue().to_pybytes())
        return pa.table({"n_documents": [len(texts)]})


def read_staged(documents: str, shard: str) -> dict[bytes, str]:
    """Documents of one shard by key and in the order of their keys, each once, from all its staging files."""
    directory = storage.join(documents, shard)
    found: dict[bytes, str] = {}
    for name in storage.list_names(directory):
        if name.endswith(".parquet"):
            table = pq.read_table(pa.BufferReader(storage.read_bytes(storage.join(directory, name))))
            found.update(zip(table["key"].to_pylist(), table["text"].to_pylist(), strict=True))
    return dict(sorted(found.items()))


def sample_texts(documents: str, shards: Sequence[str], max_bytes: int) -> Iterator[str]:
    """Documents up to a number of bytes, shard after shard. Hashes placed them, so this is a random sample."""
    left = max_bytes
    for shard in shards:
        for text in read_staged(documents, shard).values():
            yield text
            left -= len(text.encode())
            if left <= 0:
                return


@dataclass(frozen=True, kw_only=True)
class PackJob:
    """The second step, for any shard: tokenise, pack and write its documents."""

    out: str
    documents: str
    tokenizer_json: str
    seq_len: int
    layout: Layout
    tag: str
    """Written into the shard: identifies recipe and tokenizer, so that no shard of another corpus is taken for it."""

    def __call__(self, row: dict[str, str]) -> dict[str, str]:
        """Make the shard named in `row["shard"]`; the row comes back when its file is complete."""
        # Ray runs one task a CPU: a tokenizer with threads of its own would only make them fight.
        os.environ["TOKENIZERS_PARALLELISM"] = "false"
        self.write(row["shard"])
        return row

    def write(self, shard: str) -> None:
        tokenizer = Tokenizer.from_json(self.tokenizer_json)
        dtype = id_dtype(tokenizer.vocab_size)
        documents = read_staged(self.documents, shard)
        pieces = [
            piece
            for batch in _batched(documents.values())
            for ids in tokenizer.encode_batch(batch, dtype)
            for piece in split_into_pieces(ids, tokenizer.bos_id, self.seq_len + 1)
        ]
        packed = pack(pieces, self.seq_len + 1, dtype)
        # Packing leaves pieces of one document, and rows of like composition, next to each other.
        split, _, number = shard.partition("-")
        order = permutation(len(packed.rows), _ROW_SHUFFLE, self.layout.seed, split == "val", int(number))
        rows = packed.rows[order]
        target_bytes = tokenizer.token_bytes[rows[:, 1:]]
        facts = {
            "tag": self.tag,
            "n_documents": len(documents),
            "key_sum": f"{sum(int.from_bytes(key, 'big') for key in documents) % 2**128:032x}",
            "n_tokens": packed.n_tokens,
            "n_cropped": packed.n_cropped,
            "target_bytes": int(target_bytes.sum()),
            "target_tokens": int((target_bytes > 0).sum()),
        }
        write_shard(storage.join(self.out, f"{shard}.parquet"), split, rows, facts)


def _batched(texts: Iterable[str]) -> Iterator[list[str]]:
    batch: list[str] = []
    size = 0
    for text in texts:
        batch.append(text)
        size += len(text)
        if size >= _ENCODE_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _shard_name(split: str, number: int) -> str:
    return f"{split}-{number:05d}"
