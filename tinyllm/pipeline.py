"""The passes over a text corpus with Ray Data: documents to staging files, a tokenizer, staged shards to rows.

Tasks take one CPU each and no actor pool holds CPUs, so that reading never starves.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pyarrow as pa
import ray
import ray.data

from tinyllm import sources, storage
from tinyllm.manifest import TOKENIZER_FILE
from tinyllm.recipe import STAGING_DIR, Recipe, digest
from tinyllm.shards import describe_shard
from tinyllm.sources import TextFiles
from tinyllm.staging import Layout, PackJob, StageJob, sample_texts
from tinyllm.tokenizer import Tokenizer

_log = logging.getLogger(__name__)

TOKENIZER_SAMPLE_BYTES = 100 * 2**20
_READ_BYTES = 8 * 2**20
_MAX_READ_TASKS = 200
_MEMORY_BLOCKS = 4


@contextmanager
def running_ray(num_cpus: int | None) -> Iterator[None]:
    """The Ray that runs, else a local one for the time being. A ValueError of a task comes out as it was raised."""
    own = not ray.is_initialized()
    if own:
        ray.init(
            address="local",
            num_cpus=num_cpus,
            include_dashboard=False,
            log_to_driver=False,
            logging_level=logging.ERROR,
        )
    context = ray.data.DataContext.get_current()
    bars, context.enable_progress_bars = context.enable_progress_bars, False
    # Ray Data reports every error by several stack traces, and raises it besides.
    logger = logging.getLogger("ray.data")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, ValueError):
            raise ValueError(str(error.cause).partition("\n")[0]) from error
        raise
    finally:
        logger.setLevel(level)
        context.enable_progress_bars = bars
        if own:
            ray.shutdown()


def stage(text: TextFiles | list[str], out: str, layout: Layout) -> int:
    """First pass: every document into the staging files of its shard. Begins anew if it was interrupted.

    Returns the number of documents that are not empty, repetitions included.
    """
    complete = storage.join(out, STAGING_DIR, "complete.json")
    if storage.exists(complete):
        return json.loads(storage.read_bytes(complete))["n_documents"]
    _log.info("reading documents")
    documents = storage.join(out, STAGING_DIR, "documents")
    storage.delete_dir(documents)
    column = text.text_column if isinstance(text, TextFiles) and text.format == "parquet" else "text"
    job = StageJob(documents=documents, text_column=column, layout=layout)
    staged = _dataset(text).map_batches(job, batch_size=None, batch_format="pyarrow")
    n_documents = sum(row["n_documents"] for row in staged.iter_rows())
    storage.write_bytes(complete, json.dumps({"n_documents": n_documents}).encode())
    return n_documents


def train_tokenizer(out: str, vocab_size: int, layout: Layout) -> Tokenizer:
    """The tokenizer of a random sample of the training documents."""
    path = storage.join(out, STAGING_DIR, TOKENIZER_FILE)
    if storage.exists(path):
        return Tokenizer.from_json(storage.read_bytes(path).decode())
    _log.info("training a tokenizer of %d tokens", vocab_size)
    documents = storage.join(out, STAGING_DIR, "documents")
    train = [shard for shard in layout.shard_names if shard.startswith("train")]
    tokenizer = Tokenizer.train(sample_texts(documents, train, TOKENIZER_SAMPLE_BYTES), vocab_size)
    storage.write_bytes(path, tokenizer.to_json().encode())
    return tokenizer


def pack_shards(out: str, tokenizer: Tokenizer, layout: Layout, recipe: Recipe) -> None:
    """Second pass: one task for each shard that is not there yet."""
    tag = digest([recipe, tokenizer.digest])
    present = set(storage.list_names(out))
    missing = [
        shard
        for shard in layout.shard_names
        if f"{shard}.parquet" not in present or describe_shard(storage.join(out, f"{shard}.parquet"))[1]["tag"] != tag
    ]
    if not missing:
        return
    job = PackJob(
        out=out,
        documents=storage.join(out, STAGING_DIR, "documents"),
        tokenizer_json=tokenizer.to_json(),
        seq_len=recipe["seq_len"],
        layout=layout,
        tag=tag,
    )
    items = [{"shard": shard} for shard in missing]
    n_shards = len(layout.shard_names)
    packed = ray.data.from_items(items, override_num_blocks=len(items)).map(job)
    for done, row in enumerate(packed.iter_rows(), start=n_shards - len(missing) + 1):
        _log.info("shard %s is complete: %d of %d", row["shard"], done, n_shards)


def _dataset(text: TextFiles | list[str]) -> ray.data.Dataset:
    """Documents as a Ray Dataset with a column of texts."""
    if isinstance(text, list):
        blocks = [text[start::_MEMORY_BLOCKS] for start in range(_MEMORY_BLOCKS)]
        return ray.data.from_arrow([pa.table({"text": pa.array(block, pa.large_string())}) for block in blocks])
    if text.format == "parquet":
        dataset = ray.data.read_parquet(list(text.paths), filesystem=text.filesystem)
        return dataset.select_columns([text.text_column])
    paths = [{"path": path} for path in text.paths]
    dataset = ray.data.from_items(paths, override_num_blocks=min(len(paths), _MAX_READ_TASKS))
    return dataset.map_batches(_read_files, batch_size=None, fn_kwargs={"source": text})


def _read_files(batch: dict[str, np.ndarray], source: TextFiles) -> Iterator[pa.Table]:
    """Documents of text files in tables of a few megabytes: a file may be larger than a worker's memory."""
    texts: list[str] = []
    size = 0
    for path in batch["path"].tolist():
        for text in sources.read_documents(source, path):
            texts.append(text)
            size += len(text)
            if size >= _READ_BYTES:
                yield pa.table({"text": pa.array(texts, pa.large_string())})
                texts, size = [], 0
    yield pa.table({"text": pa.array(texts, pa.large_string())})
