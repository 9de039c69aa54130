"""One process at a time runs a sweep."""

from __future__ import annotations

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
            f"{who} runs the sweep in {root}: watch it with `python -m sweeps.status`, end it with "
            "Ctrl-C, or take another --name"
        )

    def refuse() -> None:
        raise busy("another process")

    if storage.is_local(root):
        with storage.locked(root, refuse):
            yield
    else:
        with lease.held(root, busy, say, renew_s=renew_s, lapse_s=lapse_s):
            yield
