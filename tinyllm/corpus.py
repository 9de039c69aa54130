"""`prepare`: text of any source -> tokenizer, token shards and a manifest; and the rule that picks a run's corpus.

Two passes with Ray Data (`tinyllm.pipeline`). The first reads the documents and stages each in the shard that its
hash names; the second turns each staged shard into one Parquet file of packed rows. Files appear whole or not at
all, the manifest last: a preparation that was killed continues at the next call with the shards it lacks.
"""

from __future__ import annotations

import logging
import math
import os
import re
from dataclasses import dataclass

import numpy as np

from tinyllm import sources, storage
from tinyllm.config import DataConfig, check_seed
from tinyllm.manifest import MANIFEST_FILE, SCHEMA_VERSION, TOKENIZER_FILE, Manifest
from tinyllm.recipe import STAGING_DIR, Recipe, claim, digest, exclusive
from tinyllm.shards import describe_shard
from tinyllm.sources import Documents, TextFiles
from tinyllm.staging import Layout
from tinyllm.tokenizer import Tokenizer, check_vocab_size
from tinyllm.zipf import ZipfChain

_log = logging.getLogger(__name__)

DEFAULT_SEQ_LEN = 2048
DEFAULT_VOCAB_SIZE = 32768
DEFAULT_VAL_FRACTION = 0.01
# The built-in text is small: a smaller vocabulary suits it, and 1 % of its 249 speeches would be two or three.
SOTU_VOCAB_SIZE, SOTU_VAL_FRACTION = 4096, 0.05
ZIPF_SEQ_LEN = 256
# Rows of the chain are generated, never stored, and never repeat: the epoch is longer than any run.
ZIPF_TRAIN_ROWS = 2**40
ZIPF_VAL_ROWS = 4096

_SHARD_BYTES = 64 * 2**20
_MIN_SHARDS, _ONE_SHARD_BYTES = 4, 4 * 2**20  # a small corpus still uses several cores, a tiny one is one file
_MIN_VAL_ROWS = 8


def prepare(
    source: str,
    out: str,
    *,
    vocab_size: int | None = None,
    seq_len: int | None = None,
    seed: int = 0,
    val_fraction: float | None = None,
    shards: int | None = None,
    documents: Documents = "files",
    text_column: str = "text",
    num_cpus: int | None = None,
) -> Manifest:
    """Prepare a corpus in the directory `out` (local or any pyarrow.fs URI), or use again what is there.

    `source` is `sotu`, `zipf` (or `zipf:V=256,s=1.5,order2=0.5`), or files of text, JSON lines or Parquet: a file,
    directory, glob, or URI (s3://, gs://, hf://). Validation is `val_fraction` of the documents, chosen by a hash of
    their text keyed by `seed`, before packing. `documents` says what a document of a plain text file is. `shards`
    is the number of training files, by default one for each 64 MiB of source. `num_cpus` bounds the Ray that is
    started here when none is running.

    The result depends on none of: number of workers, names and order of the files, interruptions. Raises ValueError,
    with the remedy, for a source that cannot be used and for an `out` that holds another corpus.
    """
    out = storage.absolute(out)
    if seq_len is not None and seq_len < 2:
        raise ValueError(f"--seq-len {seq_len}: a row needs at least 2 tokens")
    check_seed(seed)
    if num_cpus is not None and num_cpus < 1:
        raise ValueError(f"--num-cpus {num_cpus}: give 1 or more")
    if is_zipf(source):
        chain = ZipfChain.parse(source, vocab_size=vocab_size, seed=seed)
        return _prepare_zipf(chain, out, seq_len or ZIPF_SEQ_LEN)
    text = _find_text(source, documents=documents, text_column=text_column)
    fraction = text.val_fraction if val_fraction is None else val_fraction
    if not 0 < fraction < 1:
        raise ValueError(f"--val-fraction {fraction}: a share of the documents between 0 and 1 is needed")
    if shards is not None and shards < 1:
        raise ValueError(f"--shards {shards}: give 1 or more")
    vocab_size = check_vocab_size(text.vocab_size if vocab_size is None else vocab_size)
    if isinstance(text.content, TextFiles) and sources.is_one_document(text.content):
        raise ValueError(_one_document(source))
    if shards is None:
        small = text.n_bytes <= _ONE_SHARD_BYTES
        shards = 1 if small else max(_MIN_SHARDS, math.ceil(text.n_bytes / _SHARD_BYTES))
    layout = Layout(seed=seed, val_fraction=fraction, train_shards=shards, val_shards=math.ceil(shards * fraction))
    recipe: Recipe = {
        "schema_version": SCHEMA_VERSION,
        "files": text.digest,
        "documents": documents,
        "text_column": text_column,
        "vocab_size": vocab_size,
        "seq_len": seq_len or DEFAULT_SEQ_LEN,
        "seed": seed,
        "val_fraction": fraction,
        "train_shards": shards,
    }
    with exclusive(out):
        return claim(out, recipe) or _prepare_text(text, out, layout, recipe, num_cpus)


def default_corpus(
    data: str | None = None, *, vocab_size: int | None = None, seq_len: int | None = None, cache: str | None = None
) -> str:
    """Path of the corpus of a run: `data`, else $TINYLLM_DATA, else the built-in `sotu`.

    A built-in name (`sotu`, `zipf`, `zipf:...`) means a corpus of that vocabulary and sequence length in `cache`
    (directory or URI; by default under the user's cache directory), prepared on first use, once even if several
    processes ask at the same time. Anything else is returned as the path of a corpus that is there already.
    """
    data = DataConfig(data=data).source
    if is_zipf(data):
        chain = ZipfChain.parse(data, vocab_size=vocab_size)
        data, vocab_size, seq_len = chain.source, chain.vocab_size, ZIPF_SEQ_LEN if seq_len is None else seq_len
        name = data.translate(str.maketrans(":=,", "---"))
    elif data == "sotu":
        vocab_size = SOTU_VOCAB_SIZE if vocab_size is None else vocab_size
        seq_len = DEFAULT_SEQ_LEN if seq_len is None else seq_len
        name = f"sotu-V-{vocab_size}"
    else:
        return storage.absolute(data)
    if cache is None:
        cache = os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "tinyllm")
    path = storage.join(cache, f"{name}-T-{seq_len}-v{SCHEMA_VERSION}")
    prepare(data, path, vocab_size=vocab_size, seq_len=seq_len)
    return path


def is_zipf(source: str) -> bool:
    return source == "zipf" or source.startswith("zipf:")


@dataclass(frozen=True, kw_only=True)
class _Text:
    """A source of text with what depends on which source it is."""

    name: str
    source: str
    licence: str
    content: TextFiles | list[str]
    n_bytes: int
    digest: str
    vocab_size: int
    val_fraction: float


def _find_text(source: str, *, documents: Documents, text_column: str) -> _Text:
    if source == "sotu":
        speeches = sources.sotu_speeches()
        return _Text(
            name="sotu",
            source=source,
            licence=sources.SOTU_LICENCE,
            content=speeches,
            n_bytes=sum(len(speech) for speech in speeches),
            digest=sources.SOTU_SHA256,
            vocab_size=SOTU_VOCAB_SIZE,
            val_fraction=SOTU_VAL_FRACTION,
        )
    files = sources.find_text(source, documents=documents, text_column=text_column)
    return _Text(
        name=source.partition("?")[0].rstrip("/").rpartition("/")[2],
        source=source,
        licence="that of the source",
        content=files,
        n_bytes=files.n_bytes,
        digest=files.listing_digest,
        vocab_size=DEFAULT_VOCAB_SIZE,
        val_fraction=DEFAULT_VAL_FRACTION,
    )


def _prepare_text(text: _Text, out: str, layout: Layout, recipe: Recipe, num_cpus: int | None) -> Manifest:
    from tinyllm import pipeline  # loads Ray, which takes seconds and is needed for work alone

    try:
        with pipeline.running_ray(num_cpus):
            n_staged = pipeline.stage(text.content, out, layout)
            if n_staged == 0:
                raise ValueError(f"source {text.source!r} holds no text: every document is empty")
            if n_staged == 1:
                raise ValueError(_one_document(text.source))
            tokenizer = pipeline.train_tokenizer(out, recipe["vocab_size"], layout)
            pipeline.pack_shards(out, tokenizer, layout, recipe)
        manifest = _text_manifest(text, out, n_staged, tokenizer, layout, recipe)
    except ValueError:
        # The data cannot serve this recipe: what was staged would only stand in the way of another.
        storage.delete_dir(storage.join(out, STAGING_DIR))
        raise
    storage.write_bytes(storage.join(out, TOKENIZER_FILE), tokenizer.to_json().encode())
    _finish(out, manifest)
    return manifest


def _one_document(source: str) -> str:
    return (
        f"source {source!r} is a single document, and training and validation take different ones: cut text files with "
        "--documents paragraphs (or lines), or give more documents"
    )


def _text_manifest(
    text: _Text, out: str, n_staged: int, tokenizer: Tokenizer, layout: Layout, recipe: Recipe
) -> Manifest:
    described = [describe_shard(storage.join(out, f"{shard}.parquet")) for shard in layout.shard_names]
    facts = [each for _, each in described]
    n_documents = sum(each["n_documents"] for each in facts)
    rows = {split: sum(shard.rows for shard, _ in described if shard.split == split) for split in ("train", "val")}
    for split, least in (("train", 1), ("val", _MIN_VAL_ROWS)):
        if rows[split] < least:
            raise ValueError(
                f"source {text.source!r}: {n_documents} documents at --val-fraction {layout.val_fraction} give "
                f"{rows[split]} rows of {split} data, at least {least} are needed; give another --val-fraction or "
                f"--seed, a shorter --seq-len or more text, or cut text files with --documents paragraphs"
            )
    in_val = [each for each in facts if each["split"] == "val"]
    content = {
        "vocab_size": recipe["vocab_size"],
        "seq_len": recipe["seq_len"],
        "tokenizer": tokenizer.digest,
        "shards": [[shard.split, shard.rows, shard.row_group_rows, shard.digest] for shard, _ in described],
    }
    return Manifest(
        name=text.name,
        kind="text",
        source=text.source,
        licence=text.licence,
        digest=digest(content),
        source_digest=f"{sum(int(each['key_sum'], 16) for each in facts) % 2**128:032x}",
        tokenizer_digest=tokenizer.digest,
        vocab_size=recipe["vocab_size"],
        seq_len=recipe["seq_len"],
        seed=layout.seed,
        train_rows=rows["train"],
        val_rows=rows["val"],
        n_documents=n_documents,
        n_duplicates=n_staged - n_documents,
        cropped_share=sum(each["n_cropped"] for each in facts) / sum(each["n_tokens"] for each in facts),
        bytes_per_token=sum(each["target_bytes"] for each in in_val) / sum(each["target_tokens"] for each in in_val),
        entropy=None,
        shards=tuple(shard for shard, _ in described),
        recipe=recipe,
    )


def _prepare_zipf(chain: ZipfChain, out: str, seq_len: int) -> Manifest:
    """The chain's rows are generated when they are read, so its corpus is a manifest alone."""
    recipe: Recipe = {
        "schema_version": SCHEMA_VERSION,
        "source": chain.source,
        "seq_len": seq_len,
        "seed": chain.seed,
    }
    with exclusive(out):
        if finished := claim(out, recipe):
            return finished
        manifest = Manifest(
            name="zipf",
            kind="zipf",
            source=chain.source,
            licence="none: generated",
            digest=digest([recipe, chain.rows(np.arange(256), seq_len + 1).tolist()]),
            source_digest="",
            tokenizer_digest=None,
            vocab_size=chain.vocab_size,
            seq_len=seq_len,
            seed=chain.seed,
            train_rows=ZIPF_TRAIN_ROWS,
            val_rows=ZIPF_VAL_ROWS,
            n_documents=0,
            n_duplicates=0,
            cropped_share=0.0,
            bytes_per_token=None,
            entropy=chain.entropy,
            shards=(),
            recipe=recipe,
        )
        _finish(out, manifest)
    return manifest


def _finish(out: str, manifest: Manifest) -> None:
    storage.write_bytes(storage.join(out, MANIFEST_FILE), manifest.to_json().encode())
    storage.delete_dir(storage.join(out, STAGING_DIR))
    _delete_leftovers(out, manifest)
    _log.info("prepared %s: %s tokens for training, %s for validation", out, manifest.train_tokens, manifest.val_tokens)


def _delete_leftovers(out: str, manifest: Manifest) -> None:
    """Remove temporary files of killed attempts and shards of refused ones; files of other names are not ours."""
    shards = {shard.file for shard in manifest.shards}
    for name in storage.list_names(out):
        if re.fullmatch(r"(train|val)-\d{5}\.parquet|.*\.[0-9a-f]{32}\.tmp", name) and name not in shards:
            filesystem, inner = storage.open_fs(storage.join(out, name))
            filesystem.delete_file(inner)
