"""Directories for the sockets and logs of a Ray that a sweep starts, removed even where the sweep was killed."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

PREFIX = "sweep-"
OWNER = "owner.lock"  # held by the process that uses the directory; the lock goes with it, however it ends


@contextlib.contextmanager
def directory() -> Iterator[str]:
    """A new directory in the system's temporary one (short, since sockets lie in it), removed at the end.

    Removes those of this user's sweeps that are no more as well.
    """
    _remove_stale()
    made = Path(tempfile.mkdtemp(prefix=f".new-{PREFIX}"))
    # Under its own name only once the lock is held: others must not take it for a stale one.
    path = made.with_name(made.name.removeprefix(".new-"))
    with open(made / OWNER, "w") as owner:
        fcntl.flock(owner, fcntl.LOCK_EX)
        made.rename(path)
        try:
            yield str(path)
        finally:
            shutil.rmtree(path, ignore_errors=True)


def _remove_stale() -> None:
    for path in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        # Another sweep may be removing it at this moment.
        with contextlib.suppress(FileNotFoundError, NotADirectoryError), open(path / OWNER, "r+") as owner:
            if path.is_symlink() or path.stat().st_uid != os.getuid():
                continue
            try:
                fcntl.flock(owner, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            shutil.rmtree(path, ignore_errors=True)
