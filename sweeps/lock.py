"""One process at a time runs a sweep."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tinyllm import storage


@contextmanager
def only_here(root: str) -> Iterator[None]:
    """Hold the sweep's directory. Object stores have no locks.

    Raises ValueError when another process on this machine, or over a file system with locks, runs the sweep.
    """

    def refuse() -> None:
        raise ValueError(
            f"another process runs the sweep in {root}: watch it with `python -m sweeps.status`, end it with "
            "Ctrl-C, or take another --name"
        )

    with storage.locked(root, refuse):
        yield
