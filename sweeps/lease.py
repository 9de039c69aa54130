"""Holds a sweep's place on an object store, which has no locks: an object that is put again and again while it is held.

Ages are differences of the store's own times. A put is visible to every listing that begins after it (as S3 promises
since 2020), so of two processes that put at once at least one sees the other, and whoever does withdraws.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator

from tinyllm import storage

LEASE_DIR = "lease"
RENEW_S = 5.0
LAPSE_S = 30.0  # without renewal for so long, its holder was killed
ROUNDS = 3  # of two processes that start at once and see each other


@contextlib.contextmanager
def held(
    root: str, busy: Callable[[str], Exception], say: Callable[[str], None], *, renew_s: float, lapse_s: float
) -> Iterator[None]:
    """Hold the lease of a directory.

    Args:
        busy: makes the exception to be raised when another process, which it is told, renews its lease.
        say: is told that the lease of a process that may have been killed is waited for.
    """
    directory = storage.join(root, LEASE_DIR)
    me = f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
    mine, released = storage.join(directory, me), threading.Event()

    def renew() -> None:
        while not released.wait(renew_s):
            # A store that fails for a while ends the sweep at its next record, not here.
            with contextlib.suppress(OSError):
                storage.write_bytes(mine, b"")

    for _ in range(ROUNDS):
        storage.write_bytes(mine, b"")
        others = _others(directory, me, lapse_s)
        if not others:
            break
        storage.delete_file(mine)
        say(f"{', '.join(others)} held this sweep a moment ago: waiting up to {lapse_s:g} s to see whether it lives")
        if (alive := _renewed(directory, others, renew_s, lapse_s)) is not None:
            raise busy(alive)
    else:
        raise busy(", ".join(others))
    thread = threading.Thread(target=renew, daemon=True, name="lease")
    thread.start()
    try:
        yield
    finally:
        released.set()
        thread.join()
        storage.delete_file(mine)


def is_held(root: str) -> bool:
    """Whether a lease of a directory was renewed within its time, as far as this machine's clock tells."""
    return any(time.time() - at < LAPSE_S for at in storage.modified(storage.join(root, LEASE_DIR)).values())


def _others(directory: str, me: str, lapse_s: float) -> dict[str, float]:
    """When others renewed last, by name; those that lapsed are removed."""
    found = storage.modified(directory)
    now = found.pop(me)
    for name in [name for name, at in found.items() if now - at > lapse_s]:
        del found[name]
        storage.delete_file(storage.join(directory, name))
    return found


def _renewed(directory: str, others: dict[str, float], renew_s: float, lapse_s: float) -> str | None:
    """Which of the others is renewed within the time, if any. (A store has no events: it is asked again and again.)"""
    never = threading.Event()
    for _ in range(int(lapse_s / renew_s) + 1):
        never.wait(renew_s)
        now = storage.modified(directory)
        if renewed := next((name for name, at in others.items() if now.get(name, at) > at), None):
            return renewed
        if not others.keys() & now.keys():
            break
    return None
