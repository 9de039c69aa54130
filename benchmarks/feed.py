"""Speed of the feeds: the default one, Ray Data's, and `streaming_split` as it comes.

    python -m benchmarks.feed [--data PATH] [--batch-rows 8] [--rounds 5] [--tokens 4000000]

The three take turns, so that a busy moment of the machine hits all alike. Each turn opens the feed anew, waits for the
first batch, and then takes batches without doing anything with them. Prints tokens per second after the first batch and
the seconds until it, medians with the least and the greatest, and one line of JSON last.
"""

from __future__ import annotations

import json
import logging
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import ray
import ray.data
import tyro

from tinyllm import storage
from tinyllm.corpus import default_corpus
from tinyllm.data import Corpus, Feed
from tinyllm.ray_feed import RayFeed, token_dataset


@dataclass(frozen=True, kw_only=True)
class Options:
    data: str | None = None
    """A prepared corpus of text; by default the built-in one."""
    seq_len: int = 256
    """Of the built-in corpus."""
    vocab_size: int = 1024
    """Of the built-in corpus."""
    batch_rows: int = 8
    """Rows of a batch; one rank reads it whole."""
    rounds: int = 5
    """Turns of each feed."""
    tokens: int = 4_000_000
    """Tokens of a turn."""


def main(options: Options) -> None:
    path = default_corpus(options.data, vocab_size=options.vocab_size, seq_len=options.seq_len)
    corpus = Corpus.open(path)
    manifest = corpus.manifest
    assert manifest.kind == "text", "streaming_split reads shards, and a generated corpus has none"
    files = [storage.join(path, shard.file) for shard in manifest.shards if shard.split == "train"]
    n_batches = min(options.tokens // manifest.seq_len, manifest.train_rows) // options.batch_rows

    def default() -> Iterator[int]:
        with Feed(corpus, seed=0, batch_rows=options.batch_rows) as feed:
            for _, rows in feed:
                yield len(rows)

    def ray_data() -> Iterator[int]:
        with RayFeed(token_dataset(path, seed=0), batch_rows=options.batch_rows) as feed:
            for _, rows in feed:
                yield len(rows)

    def streaming_split() -> Iterator[int]:
        (shard,) = ray.data.read_parquet(files).streaming_split(1, equal=True)
        for batch in shard.iter_batches(batch_size=options.batch_rows):
            yield len(batch["tokens"])

    feeds: dict[str, Callable[[], Iterator[int]]] = {
        "default": default,
        "ray_data": ray_data,
        "streaming_split": streaming_split,
    }
    results: dict[str, list[tuple[float, float]]] = {name: [] for name in feeds}
    ray.init(address="local", include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    ray.data.DataContext.get_current().enable_progress_bars = False
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    try:
        for _ in range(options.rounds):
            for name, feed in feeds.items():
                results[name].append(measure(feed(), n_batches, manifest.seq_len))
    finally:
        ray.shutdown()

    summary = {}
    for name, turns in results.items():
        speeds, firsts = (sorted(values) for values in zip(*turns, strict=True))
        rate = [f"{value / 1e6:.2f}" for value in (statistics.median(speeds), speeds[0], speeds[-1])]
        wait = [f"{value:.3f}" for value in (statistics.median(firsts), firsts[0], firsts[-1])]
        print(f"{name:16} {rate[0]:>6} M tokens/s ({rate[1]} to {rate[2]})", end="")
        print(f"   first batch after {wait[0]:>6} s ({wait[1]} to {wait[2]})")
        summary[name] = {"tokens_per_second": speeds, "first_batch_seconds": firsts}
    shape = {"batch_rows": options.batch_rows, "seq_len": manifest.seq_len, "batches": n_batches}
    print(json.dumps({"benchmark": "feed", **shape, **summary}))


def measure(batches: Iterator[int], n_batches: int, seq_len: int) -> tuple[float, float]:
    """Tokens per second after the first batch, and the seconds until it."""
    began = time.perf_counter()
    next(batches)
    first = time.perf_counter()
    rows = sum(next(batches) for _ in range(n_batches - 1))
    return rows * seq_len / (time.perf_counter() - first), first - began


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
