"""Any path pyarrow.fs knows, local or remote, read and written whole or not at all."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import IO
from urllib.parse import urlparse

from pyarrow import fs


def is_local(path: str) -> bool:
    """Whether a path is on this machine's file system (no scheme, or file://)."""
    return urlparse(path).scheme in ("", "file")


def absolute(path: str) -> str:
    """The path made absolute, so that it means the same in a worker whose directory differs; URIs as they are."""
    if not is_local(path):
        return path
    return os.path.abspath(os.path.expanduser(path.removeprefix("file://")))


def join(root: str, *parts: str) -> str:
    """Path below a root, keeping the query of a URI such as s3://bucket/run?region=... at its end."""
    base, mark, query = root.partition("?")
    return "/".join([base.rstrip("/"), *parts]) + mark + query


def named(root: str, name: str, *, flag: str) -> str:
    """ROOT/NAME. Raises ValueError on a name that would lie elsewhere; `flag` is what `root` was given with."""
    if not name or name in (".", "..") or "/" in name:
        raise ValueError(f"--name {name!r}: a name without / is wanted; {flag} says where it lies")
    return join(root, name)


def parent(path: str) -> str:
    """The directory a path lies in, keeping the query of a URI."""
    base, mark, query = path.partition("?")
    return base.rstrip("/").rpartition("/")[0] + mark + query


def open_fs(path: str) -> tuple[fs.FileSystem, str]:
    """The file system of a path and the path within it. Raises ValueError on a scheme pyarrow does not know."""
    try:
        return fs.FileSystem.from_uri(absolute(path))
    except ValueError as error:
        raise ValueError(
            f"storage path {path!r}: {error}; give a local path or a URI such as s3://bucket/dir"
        ) from error


def exists(path: str) -> bool:
    filesystem, inner = open_fs(path)
    return filesystem.get_file_info(inner).type != fs.FileType.NotFound


def read_bytes(path: str) -> bytes:
    """The whole file. Raises FileNotFoundError when there is none."""
    filesystem, inner = open_fs(path)
    with filesystem.open_input_file(inner) as file:
        return file.read()


def write_bytes(path: str, data: bytes) -> None:
    """Write a file whole or not at all: local files by rename, object stores by a single put (they have no rename)."""
    filesystem, inner = open_fs(path)
    filesystem.create_dir(os.path.dirname(inner), recursive=True)
    if not isinstance(filesystem, fs.LocalFileSystem):
        with filesystem.open_output_stream(inner) as stream:
            stream.write(data)
        return
    temporary = f"{inner}.{uuid.uuid4().hex}.tmp"
    try:
        with open(temporary, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, inner)
    except BaseException:
        if os.path.exists(temporary):
            os.unlink(temporary)
        raise


@contextmanager
def locked(directory: str, on_busy: Callable[[], None]) -> Iterator[None]:
    """Hold a local directory's lock; it goes with the process, however that ends. Object stores have none.

    While another process holds it, `on_busy` is called once: it raises, or returns to wait.
    """
    if not is_local(directory):
        yield
        return
    directory = absolute(directory)
    os.makedirs(directory, exist_ok=True)
    with open(os.path.join(directory, ".lock"), "a") as file:
        try:
            _lock_soon(file)
        except BlockingIOError:
            on_busy()
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _lock_soon(file: IO[str]) -> None:
    """Raises BlockingIOError when another process keeps the lock. (`is_locked` takes it for a moment.)"""
    for _ in range(3):
        with contextlib.suppress(BlockingIOError):
            return fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        time.sleep(0.05)
    return fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def is_locked(directory: str) -> bool:
    """Whether a process holds a local directory's lock."""
    try:
        with open(os.path.join(absolute(directory), ".lock")) as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


def check_writable(directory: str, *, flag: str = "--storage") -> None:
    """Raises ValueError, with the remedy, when nothing can be written under a directory. Leaves nothing there.

    `flag`: what the user gives another place with.
    """
    there = directory
    while is_local(there) and not exists(there):
        there = parent(there)
    probe = join(there, f".writable-{uuid.uuid4().hex}")
    try:
        write_bytes(probe, b"")
        delete_file(probe)
    except OSError as error:
        raise ValueError(f"nothing can be written to {directory} ({error}): give another {flag}") from error


def list_names(directory: str) -> list[str]:
    """Names of what lies in a directory, sorted; empty when there is no such directory."""
    filesystem, inner = open_fs(directory)
    found = filesystem.get_file_info(fs.FileSelector(inner, allow_not_found=True))
    return sorted(info.base_name for info in found)


def modified(directory: str) -> dict[str, float]:
    """When the files in a directory were last written, by name: Unix time, by the clock of the storage."""
    filesystem, inner = open_fs(directory)
    found = filesystem.get_file_info(fs.FileSelector(inner, allow_not_found=True))
    return {info.base_name: info.mtime_ns / 1e9 for info in found if info.type == fs.FileType.File}


def delete_file(path: str) -> None:
    """Remove a file; nothing happens when there is none."""
    filesystem, inner = open_fs(path)
    if filesystem.get_file_info(inner).type == fs.FileType.File:
        filesystem.delete_file(inner)


def delete_dir(directory: str) -> None:
    """Remove a directory and all below it; nothing happens when there is none."""
    filesystem, inner = open_fs(directory)
    if filesystem.get_file_info(inner).type == fs.FileType.Directory:
        filesystem.delete_dir(inner)
