"""Preparation, on a real local Ray: what comes out, that it depends on nothing but the text, and that it survives."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from moto.server import ThreadedMotoServer

from tinyllm import storage
from tinyllm.corpus import default_corpus, prepare
from tinyllm.data import Corpus
from tinyllm.manifest import Manifest

pytestmark = pytest.mark.usefixtures("s3", "local_ray")  # in this order: the workers inherit the keys

SMALL = {"vocab_size": 300, "seq_len": 32, "val_fraction": 0.1}
WORDS = ["ham", "eggs", "spam", "toast", "beans", "sausage", "tomato", "cheese", "bacon", "lobster", "thermidor"]


def make_documents(n=400):
    """Documents of 5 to 124 words; each names its number, so that rows can be traced back to it."""
    rng = np.random.default_rng(0)
    return [f"Order {i}: {' '.join(rng.choice(WORDS, 5 + i % 120))}." for i in range(n)]


DOCUMENTS = make_documents()


@pytest.fixture(scope="module")
def s3():
    """A bucket on this machine: a function from a key to its URI."""
    keys = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_EC2_METADATA_DISABLED": "true"}
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    host, port = server.get_host_and_port()
    options = f"scheme=http&endpoint_override={host}:{port}&region=us-east-1&allow_bucket_creation=true"
    with pytest.MonkeyPatch.context() as patch:
        for name, value in keys.items():
            patch.setenv(name, value)
        filesystem, _ = storage.open_fs(f"s3://bucket?{options}")
        filesystem.create_dir("bucket")
        yield lambda key: f"s3://bucket/{key}?{options}"
    server.stop()


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    path = tmp_path_factory.mktemp("source") / "orders.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in DOCUMENTS))
    return str(path)


@pytest.fixture(scope="module")
def corpus(source, tmp_path_factory):
    out = str(tmp_path_factory.mktemp("corpus"))
    prepare(source, out, shards=5, **SMALL)
    return Corpus.open(out)


def rows_of(corpus, split):
    if split == "val":
        return corpus.val_rows(0, corpus.manifest.val_rows)
    return corpus.train_rows(np.arange(corpus.manifest.train_rows), seed=0)


def numbers_in(corpus, split):
    text = " ".join(corpus.tokenizer.decode(row) for row in rows_of(corpus, split).tolist())
    return {int(number) for number in re.findall(r"Order (\d+):", text)}


def files_of(out):
    return {path.name: path.read_bytes() for path in Path(out).iterdir() if path.suffix in (".parquet", ".json")}


# -- what comes out -----------------------------------------------------------------------------------------


def test_every_row_is_text_of_one_split(corpus):
    manifest = corpus.manifest
    bos = corpus.tokenizer.bos_id
    train, val = numbers_in(corpus, "train"), numbers_in(corpus, "val")
    assert not train & val
    assert len(train | val) > 390  # a crop may lose a document's head
    assert 10 < len(val) < 80
    for split in ("train", "val"):
        rows = rows_of(corpus, split)
        assert rows.dtype == np.uint16
        assert (rows[:, 0] == bos).all()
        assert rows.max() < manifest.vocab_size
    assert manifest.n_documents == 400
    assert manifest.n_duplicates == 0
    assert manifest.train_tokens == manifest.train_rows * 32


def test_counts_agree_with_the_text(corpus):
    manifest = corpus.manifest
    n_tokens = sum(
        len(corpus.tokenizer.encode(text)) + -(-len(corpus.tokenizer.encode(text)) // 32) for text in DOCUMENTS
    )
    kept = (manifest.train_rows + manifest.val_rows) * 33
    assert manifest.cropped_share == pytest.approx(1 - kept / n_tokens, abs=1e-12)
    assert 0 <= manifest.cropped_share < 0.05

    targets = rows_of(corpus, "val")[:, 1:]
    text = [i for i in targets.ravel().tolist() if i != corpus.tokenizer.bos_id]
    n_bytes = sum(len(corpus.tokenizer.decode([i])) for i in text)  # the text is ASCII: a character is a byte
    assert manifest.bytes_per_token == pytest.approx(n_bytes / len(text), rel=1e-12)


def test_documents_are_scattered(corpus):
    """Neighbours in the source, and pieces of one document, are not neighbours in the shards."""
    file = Path(corpus.path) / "train-00000.parquet"
    rows = np.stack(pq.read_table(file).to_pandas()["tokens"])
    numbers = [re.findall(r"Order (\d+):", corpus.tokenizer.decode(row)) for row in rows.tolist()]
    first = [int(found[0]) for found in numbers if found]
    assert abs(np.corrcoef(first[:-1], first[1:])[0, 1]) < 0.3


# -- that it depends on the text alone ----------------------------------------------------------------------


def run_prepare(source, out, num_cpus):
    """A preparation in a process of its own, with a Ray of its own; its log is read line by line."""
    code = (
        "import logging, sys; logging.basicConfig(level=logging.INFO, stream=sys.stdout, format='%(message)s');"
        "from tinyllm.corpus import prepare;"
        f"prepare({source!r}, {out!r}, shards=5, num_cpus={num_cpus}, **{SMALL!r})"
    )
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, start_new_session=True)


def test_killed_half_way_it_continues_and_ends_with_the_same_bytes(source, corpus, tmp_path):
    out = tmp_path / "out"
    process = run_prepare(source, str(out), num_cpus=1)
    for line in process.stdout:
        if line.startswith("shard") and "2 of 6" in line:
            break
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    done = {path: path.stat().st_mtime_ns for path in out.glob("*.parquet")}
    assert 2 <= len(done) < 6
    with pytest.raises(ValueError, match="no corpus at"):
        Corpus.open(str(out))

    again = run_prepare(source, str(out), num_cpus=3)
    log = again.stdout.read()
    assert again.wait() == 0
    assert "reading documents" not in log
    assert "training a tokenizer" not in log
    assert {path: path.stat().st_mtime_ns for path in done} == done
    assert files_of(out) == files_of(corpus.path)
    assert not (out / "staging").exists()


@pytest.mark.parametrize("form", ["parquet", "files", "lines"])
def test_format_order_and_cut_of_the_files_do_not_matter(form, corpus, tmp_path):
    source, out = tmp_path / "source", str(tmp_path / "out")
    source.mkdir()
    shuffled = np.random.default_rng(1).permutation(DOCUMENTS).tolist()
    if form == "parquet":
        for number, part in enumerate(np.array_split(shuffled, 3)):
            pq.write_table(pa.table({"id": range(len(part)), "text": part.tolist()}), source / f"{number}.parquet")
    elif form == "files":
        for number, text in enumerate(shuffled):
            (source / f"{number}.txt").write_text(text + "\n")
    else:
        (source / "all.txt").write_text("\n".join(shuffled))
    manifest = prepare(str(source), out, shards=5, documents="lines" if form == "lines" else "files", **SMALL)
    assert manifest.digest == corpus.manifest.digest
    assert manifest.source_digest == corpus.manifest.source_digest


def test_an_object_store_serves_as_source_and_as_place(s3, corpus):
    table = pa.table({"text": DOCUMENTS})
    buffer = pa.BufferOutputStream()
    pq.write_table(table, buffer)
    storage.write_bytes(s3("texts/0.parquet"), buffer.getvalue().to_pybytes())
    out = s3("corpora/orders")
    prepare(s3("texts"), out, shards=5, **SMALL)
    remote = Corpus.open(out)
    assert remote.manifest.digest == corpus.manifest.digest
    assert np.array_equal(rows_of(remote, "val"), rows_of(corpus, "val"))
    assert storage.list_names(out) == sorted(files_of(corpus.path))
    assert prepare(s3("texts"), out, shards=5, **SMALL) == remote.manifest


def test_repeated_and_empty_documents_are_dropped(corpus, tmp_path):
    (tmp_path / "all.txt").write_text("\n\n".join(DOCUMENTS + ["", "  "] + [f" {text} " for text in DOCUMENTS[::3]]))
    manifest = prepare(str(tmp_path / "all.txt"), str(tmp_path / "out"), shards=5, documents="lines", **SMALL)
    assert (manifest.n_documents, manifest.n_duplicates) == (400, 134)
    assert manifest.digest == corpus.manifest.digest


def test_another_seed_chooses_other_validation_documents(source, corpus, tmp_path):
    prepare(source, str(tmp_path), shards=5, seed=1, **SMALL)
    other = Corpus.open(str(tmp_path))
    assert numbers_in(other, "val") != numbers_in(corpus, "val")
    assert other.manifest.digest != corpus.manifest.digest


# -- what is there already ----------------------------------------------------------------------------------


def test_a_finished_corpus_is_used_again(source, corpus):
    before = {path: path.stat().st_mtime_ns for path in Path(corpus.path).iterdir()}
    assert prepare(source, corpus.path, shards=5, **SMALL) == corpus.manifest
    assert {path: path.stat().st_mtime_ns for path in Path(corpus.path).iterdir()} == before


def test_another_recipe_is_refused_with_the_difference(source, corpus):
    expected = rf"{corpus.path} holds another corpus: seq_len is 32, not 64; choose another --out, or remove it: rm -r"
    with pytest.raises(ValueError, match=expected):
        prepare(source, corpus.path, shards=5, **SMALL | {"seq_len": 64})
    with pytest.raises(ValueError, match="source is None, not 'zipf:V=256"):
        prepare("zipf", corpus.path)


@pytest.mark.parametrize("damage", ["lost", "of another corpus"])
def test_a_lost_shard_is_made_again(source, corpus, tmp_path, damage):
    out = tmp_path / "out"
    prepare(source, str(out), shards=5, **SMALL)
    (out / "train-00002.parquet").unlink()
    if damage == "of another corpus":
        (out / "manifest.json").unlink()
        prepare(source, str(tmp_path / "other"), shards=5, seed=7, **SMALL)
        (tmp_path / "other" / "train-00002.parquet").rename(out / "train-00002.parquet")
    (out / f"train-00001.parquet.{'0' * 32}.tmp").write_text("half a shard")
    (out / "train-00009.parquet").write_text("a shard of an attempt that was refused")
    (out / "notes.txt").write_text("not ours")
    prepare(source, str(out), shards=5, **SMALL)
    assert files_of(out) == files_of(corpus.path)
    assert sorted(path.name for path in out.iterdir() if path.suffix in (".tmp", ".txt")) == ["notes.txt"]


def test_a_changed_tokenizer_is_noticed(source, corpus, tmp_path):
    prepare(source, str(tmp_path), shards=5, **SMALL)
    file = tmp_path / "tokenizer.json"
    file.write_text(file.read_text().replace("Ġspam", "Ġmaps"))
    with pytest.raises(ValueError, match=r"tokenizer.json has digest .*, the manifest says"):
        assert Corpus.open(str(tmp_path)).tokenizer


# -- mistakes -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("only one document", {"vocab_size": 257}, "is a single document.* --documents paragraphs"),
        ("\n".join(DOCUMENTS), {"vocab_size": 5000}, "--vocab-size 5000 is more than this text can fill"),
        ("\n".join(DOCUMENTS), {"val_fraction": 1e-6}, r"give 0 rows of val data, at least 8 .* --val-fraction"),
        ("\n".join(DOCUMENTS), {"seq_len": 1}, "--seq-len 1: a row needs at least 2"),
        ("\n".join(DOCUMENTS), {"val_fraction": 1.0}, "--val-fraction 1.0: a share"),
        ("\n".join(DOCUMENTS), {"shards": 0}, "--shards 0: give 1 or more"),
        (" \n \n", {}, "every document is empty"),
        ("fine\nbinary \0\n", {}, "line 2 holds NUL bytes"),
    ],
)
def test_data_that_cannot_serve_is_refused_and_leaves_the_way_free(text, options, message, corpus, source, tmp_path):
    (tmp_path / "bad.txt").write_text(text)
    out = str(tmp_path / "out")
    with pytest.raises(ValueError, match=message):
        prepare(str(tmp_path / "bad.txt"), out, documents="lines", **SMALL | options)
    assert prepare(source, out, shards=5, **SMALL).digest == corpus.manifest.digest


def test_one_file_that_is_one_document_is_refused_before_ray_starts(tmp_path, monkeypatch):
    (tmp_path / "book.txt").write_text("A book.\n\nIts second paragraph.\n" * 100)

    def never(*args):
        raise AssertionError("started to read")

    monkeypatch.setattr("tinyllm.pipeline.running_ray", never)
    with pytest.raises(ValueError, match=r"single document.* --documents paragraphs"):
        prepare(str(tmp_path / "book.txt"), str(tmp_path / "out"), **SMALL)
    assert not (tmp_path / "out").exists()


def test_a_bad_line_behind_a_good_first_file_is_named(tmp_path):
    (tmp_path / "0.jsonl").write_text('{"text": "good"}\n')
    (tmp_path / "1.jsonl").write_text('{"text": "good"}\n{"text"\n')
    with pytest.raises(ValueError, match=r"1.jsonl line 2 is no JSON \(.*\); one object a line is expected$"):
        prepare(str(tmp_path), str(tmp_path / "out"), **SMALL)


# -- the corpus of a run ------------------------------------------------------------------------------------


def test_the_corpus_rule(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("TINYLLM_DATA", str(tmp_path / "mine"))
    assert default_corpus() == str(tmp_path / "mine")
    assert default_corpus(str(tmp_path / "other")) == str(tmp_path / "other")
    monkeypatch.setenv("TINYLLM_DATA", "zipf")
    path = default_corpus(vocab_size=64, seq_len=16)
    assert path.startswith(str(tmp_path / "cache" / "tinyllm" / "zipf-V-64"))
    assert (Manifest.load(path).vocab_size, Manifest.load(path).seq_len) == (64, 16)
    assert default_corpus("zipf:V=64", seq_len=16) == path
    assert default_corpus("zipf:V=64", seq_len=32) != path


def test_two_processes_that_want_the_built_in_corpus_prepare_it_once(tmp_path):
    code = (
        "import logging, sys; logging.basicConfig(level=logging.INFO, stream=sys.stdout, format='%(message)s');"
        "from tinyllm.corpus import default_corpus; print('path', default_corpus(vocab_size=512, seq_len=256))"
    )
    environment = os.environ | {"XDG_CACHE_HOME": str(tmp_path)}
    environment.pop("TINYLLM_DATA", None)
    both = [
        subprocess.Popen([sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    logs = [process.communicate()[0] for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert sum("training a tokenizer" in log for log in logs) == 1
    paths = {re.search("^path (.*)$", log, re.M)[1] for log in logs}
    manifest = Manifest.load(paths.pop())
    assert not paths
    assert (manifest.name, manifest.n_documents, manifest.vocab_size) == ("sotu", 249, 512)
    assert "public domain" in manifest.licence
    # Speeches differ 35-fold in length, so the share of validation is not 5 % sharp.
    assert 0.02 < manifest.val_rows / (manifest.val_rows + manifest.train_rows) < 0.08
