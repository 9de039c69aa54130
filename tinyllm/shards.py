"""The file format of token rows: Parquet row groups of fixed-length lists, each checked when it is decoded.

A plain list column, so that any Parquet reader opens it. A leaner encoding would buy nothing: with this one the whole
feed gave 32 M tokens/s to one rank (`python -m benchmarks.feed`, two busy cores, batches of 8 x 256).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tinyllm import storage
from tinyllm.manifest import Shard, prepare_command

COLUMN = "tokens"
# 0.5 MiB of uint16: large enough to compress and to fetch from an object store in one request, small enough that
# every rank of a node may decode every group and that a small corpus still has many groups to permute.
ROW_GROUP_TOKENS = 2**18
_DIGESTS = b"tinyllm.row_group_digests"
_FACTS = b"tinyllm.facts"


def id_dtype(vocab_size: int) -> type[np.unsignedinteger]:
    """uint16 where every id fits, else uint32."""
    return np.uint16 if vocab_size <= 2**16 else np.uint32


def write_shard(path: str, split: str, rows: np.ndarray, facts: dict[str, Any]) -> None:
    """Write rows of ids, shape (n, seq_len + 1), whole or not at all; `facts` (JSON) are kept in the footer."""
    row_group_rows = _row_group_rows(rows.shape[1])
    digests = [_digest(rows[start : start + row_group_rows]) for start in range(0, len(rows), row_group_rows)]
    column = pa.FixedSizeListArray.from_arrays(pa.array(rows.ravel()), rows.shape[1])
    facts = facts | {"split": split}
    table = pa.table({COLUMN: column}).replace_schema_metadata(
        {_DIGESTS: json.dumps(digests), _FACTS: json.dumps(facts)}
    )
    buffer = pa.BufferOutputStream()
    pq.write_table(table, buffer, row_group_size=row_group_rows, compression="zstd")
    storage.write_bytes(path, buffer.getvalue().to_pybytes())


def describe_shard(path: str) -> tuple[Shard, dict[str, Any]]:
    """A shard and the facts it was written with, from its footer alone."""
    with _open(path) as file:
        facts = json.loads(file.schema_arrow.metadata[_FACTS])
        shard = Shard(
            file=path.partition("?")[0].rsplit("/", 1)[-1],
            split=facts["split"],
            rows=file.metadata.num_rows,
            row_group_rows=_row_group_rows(file.schema_arrow.field(COLUMN).type.list_size),
            digest=_shard_digest(file),
        )
    return shard, facts


class ShardReader:
    """Reads row groups of several shards, numbered through in the order of the shards.

    Each group is checked against the digests in its file's footer, and those against the manifest. Not for use by
    several threads at once.
    """

    def __init__(self, root: str, shards: Sequence[Shard]) -> None:
        self._root, self._shards = root, shards
        self._groups = [(shard, index) for shard in shards for index in range(-(-shard.rows // shard.row_group_rows))]
        self.row_group_rows = np.array(
            [min(shard.row_group_rows, shard.rows - i * shard.row_group_rows) for shard, i in self._groups], np.int64
        )
        self._starts = np.cumsum(self.row_group_rows) - self.row_group_rows
        # A batch may straddle two groups; sequential reading decodes each group once.
        self._read = lru_cache(maxsize=2)(self._read_uncached)
        self._file = lru_cache(maxsize=4)(self._checked_file)

    def read(self, group: int) -> np.ndarray:
        """Ids of one row group, shape (row_group_rows[group], seq_len + 1), read-only.

        Raises ValueError naming the file and the remedy when its bytes are missing, damaged or not the manifest's.
        """
        return self._read(group)

    def check(self) -> None:
        """Look at the footer of every shard, not at its rows. Raises ValueError as `read`."""
        for shard in self._shards:
            file, _ = self._checked_file(shard)
            file.close()

    def gather(self, groups: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """Ids of given rows of given groups, shape (len(rows), seq_len + 1)."""
        out: np.ndarray | None = None
        for group in np.unique(groups).tolist():
            ids = self.read(group)
            here = groups == group
            if out is None:
                out = np.empty((len(rows), ids.shape[1]), ids.dtype)
            out[here] = ids[rows[here]]
        assert out is not None, "no rows asked for"
        return out

    def slice(self, start: int, stop: int) -> np.ndarray:
        """Ids of rows start to stop in file order."""
        index = np.arange(start, stop)
        groups = np.searchsorted(self._starts, index, side="right") - 1
        return self.gather(groups, index - self._starts[groups])

    def _read_uncached(self, group: int) -> np.ndarray:
        shard, index = self._groups[group]
        file, digests = self._file(shard)
        try:
            column = file.read_row_group(index, use_threads=False)[COLUMN].combine_chunks()
            rows = column.values.to_numpy().reshape(len(column), -1)
        except Exception as error:  # a flipped bit in the file's own tables may surface as almost any error
            raise self._damaged(shard, repr(error)) from error
        if _digest(rows) != digests[index]:
            raise self._damaged(shard, f"the ids of row group {index} do not match their digest")
        return rows

    def _checked_file(self, shard: Shard) -> tuple[pq.ParquetFile, list[str]]:
        try:
            file = _open(storage.join(self._root, shard.file))
            digests = json.loads(file.schema_arrow.metadata[_DIGESTS])
            found = _shard_digest(file)
        except Exception as error:  # see above
            raise self._damaged(shard, repr(error)) from error
        if found != shard.digest:
            raise self._damaged(shard, f"its digest is {found}, the manifest says {shard.digest}")
        return file, digests

    def _damaged(self, shard: Shard, reason: str) -> ValueError:
        path = storage.join(self._root, shard.file)
        command = prepare_command("SOURCE", self._root)
        there = storage.exists(path)
        state, remedy = (f"damaged: {reason}", "delete that file and run") if there else ("missing", "run")
        return ValueError(
            f"shard {path} is {state}; {remedy} `{command}` with the options that made this corpus: it rebuilds what "
            "is missing"
        )


def _open(path: str) -> pq.ParquetFile:
    filesystem, inner = storage.open_fs(path)
    return pq.ParquetFile(inner, filesystem=filesystem)


def _row_group_rows(row_length: int) -> int:
    return max(1, ROW_GROUP_TOKENS // (row_length - 1))


def _digest(rows: np.ndarray) -> str:
    return hashlib.blake2b(rows.tobytes(), digest_size=16).hexdigest()


def _shard_digest(file: pq.ParquetFile) -> str:
    return hashlib.blake2b(file.schema_arrow.metadata[_DIGESTS], digest_size=16).hexdigest()
