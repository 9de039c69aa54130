"""The same stream of batches as `tinyllm.data.Feed`, read by Ray Data: other machines may read ahead of the training.

The corpus goes to a TorchTrainer as a Ray Dataset (`token_dataset`) with `WholeDataConfig`; in the training function
`RayFeed(ray.train.get_dataset_shard(name), ...)` reads this rank's share from any position.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from functools import lru_cache

import numpy as np
import pyarrow as pa
import ray.data
import ray.train

from tinyllm import storage
from tinyllm.data import Corpus, TokenSource, rank_shares, read_shares
from tinyllm.read_ahead import ReadAhead

_BLOCK_BYTES = 4 * 2**20  # large enough to amortise what Ray Data spends on a block, small enough to come soon


def token_dataset(corpus: str, *, seed: int) -> ray.data.Dataset:
    """The training stream of a corpus as a Ray Dataset: one row that names it, from which any rows can be read.

    A dataset of the rows themselves would have to be read from its beginning; this one opens at any position in O(1).
    """
    return ray.data.from_items([{"corpus": storage.absolute(corpus), "seed": seed}])


class WholeDataConfig(ray.train.DataConfig):
    """Gives every rank the whole dataset: which rows are its own follows from their positions, not from a split.

    Ray's own split hands blocks to whoever asks first, so the order would depend on timing.
    """

    def __init__(self) -> None:
        super().__init__(datasets_to_split=[])

    def configure(
        self, datasets: dict[str, ray.data.Dataset], world_size: int, *args: object, **kwargs: object
    ) -> list[dict[str, ray.data.Dataset]]:
        return [dict(datasets) for _ in range(world_size)]


class RayFeed(ReadAhead[tuple[np.ndarray, np.ndarray]]):
    """One rank's share of every global batch, like `tinyllm.data.Feed`, through Ray Data.

    One task reads in order and is held back when its blocks wait. It asks for no CPU, so that it also runs where
    training has taken them all.
    """

    def __init__(
        self,
        dataset: ray.data.Dataset,
        *,
        batch_rows: int,
        rank: int = 0,
        world_size: int = 1,
        start: int = 0,
        prefetch: int = 4,
    ) -> None:
        """Arguments as of `Feed`; the dataset knows corpus and seed."""
        share = {"batch_rows": batch_rows, "rank": rank, "world_size": world_size, "start": start}
        rank_shares(**share)  # refuses a batch that does not divide here, not in a task
        one_task = ray.data.TaskPoolStrategy(size=1)
        blocks = dataset.map_batches(_read_blocks, batch_size=None, num_cpus=0, compute=one_task, fn_kwargs=share)
        blocks.context.target_max_block_size = _BLOCK_BYTES
        blocks.context.execution_options.preserve_order = True
        blocks.context.enable_progress_bars = False
        super().__init__(_batches(blocks, batch_rows // world_size), prefetch)


def _batches(blocks: ray.data.Dataset, share_rows: int) -> Generator[tuple[np.ndarray, np.ndarray], None, None]:
    """Batches from blocks that Ray Data has cut anywhere."""
    rest: pa.Table | None = None
    for block in blocks.iter_batches(batch_size=None, batch_format="pyarrow"):
        table = (block if rest is None else pa.concat_tables([rest, block])).combine_chunks()
        whole = len(table) - len(table) % share_rows
        positions = table["position"].to_numpy()
        rows = table["tokens"].chunk(0).flatten().to_numpy().reshape(len(table), -1)
        for first in range(0, whole, share_rows):
            yield positions[first : first + share_rows], rows[first : first + share_rows]
        rest = table.slice(whole)


def _read_blocks(
    stream: dict[str, np.ndarray], *, batch_rows: int, rank: int, world_size: int, start: int
) -> Iterator[pa.Table]:
    """In a task: blocks of positions and rows, of a few batches each, for as long as somebody takes them."""
    corpus, seed = _open(str(stream["corpus"][0])), int(stream["seed"][0])
    shares = rank_shares(batch_rows=batch_rows, rank=rank, world_size=world_size, start=start)
    for positions, rows in read_shares(corpus, seed, shares, _BLOCK_BYTES // 8):
        tokens = pa.FixedSizeListArray.from_arrays(pa.array(rows.ravel()), rows.shape[1])
        yield pa.table({"position": positions, "tokens": tokens})


@lru_cache(maxsize=2)
def _open(path: str) -> TokenSource:
    """A task's process serves many starts: the corpus stays open in it."""
    return Corpus.open(path)
