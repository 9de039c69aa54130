"""One process at a time runs a sweep."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from sweeps import lease
from tinyllm import storage


@contextmanager
def only_here(
    root: str, say: Callable[[str], None], *, renew_s: float = lease.RENEW_S, lapse_s: float = lease.LAPSE_S
) -> Iterator[None]:
    """Hold the sweep's directory: by a lock of its file system, which goes with the process; on an object store by a
    lease that lapses after it (`sweeps.lease`; `say` is told when one is waited for).

    Raises ValueError when another process runs the sweep.
    """

    def busy(who: str) -> ValueError:
        return ValueError(
            f"{who} runs the sweep in {root}: watch it with `{_status(root)}`, end it with Ctrl-C, or take another "
            "--name"
        )

    def refuse() -> None:
        raise busy("another process")

    if storage.is_local(root):
        with storage.locked(root, refuse):
            yield
    else:
        with lease.held(root, busy, say, renew_s=renew_s, lapse_s=lapse_s):
            yield


def is_held(root: str) -> bool:
    """Whether a process runs the sweep in a directory. (On an object store: renewed its lease a moment ago.)"""
    return storage.is_locked(root) if storage.is_local(root) else lease.is_held(root)


def _status(root: str) -> str:
    """The command that shows how the sweep in a directory stands."""
    name = root.partition("?")[0].rpartition("/")[2]
    return f"python -m sweeps.status {shlex.quote(name)} --storage {shlex.quote(storage.parent(root))}"
