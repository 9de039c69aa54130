"""One process at a time runs a sweep."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager

from tinyllm import storage


@contextmanager
def only_here(root: str) -> Iterator[None]:
    """Hold the sweep's directory; the lock goes with the process, however it ends. Object stores have no locks.

    Raises ValueError when another process on this machine, or over a file system with locks, runs the sweep.
    """
    if not storage.is_local(root):
        yield
        return
    os.makedirs(root, exist_ok=True)
    with open(os.path.join(root, ".lock"), "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(
                f"another process runs the sweep in {root}: watch it with `python -m sweeps.status`, end it with "
                "Ctrl-C, or take another --name"
            ) from None
        yield
