"""Notices at once that Ray has died on this machine. Ray itself ends the process a minute later, without a word."""

from __future__ import annotations

import contextlib
import os
import select
import threading
from collections.abc import Callable, Iterator

import psutil  # type: ignore[import-untyped]
import ray

WATCHED = ("raylet", "gcs_server")


@contextlib.contextmanager
def ray_watched(on_death: Callable[[str], None]) -> Iterator[None]:
    """Within it `on_death` is called, in a thread, when a process of the node that this one is connected to has ended.

    It gets the process' name, and must end this process: calls to Ray, in whatever thread, may never return. Linux
    only; elsewhere nothing is watched.
    """
    if not hasattr(os, "pidfd_open"):
        yield
        return
    with contextlib.ExitStack() as stack:
        names = {}
        for pid, name in _node_processes().items():
            names[fd := os.pidfd_open(pid)] = name
            stack.callback(os.close, fd)
        end, told = os.pipe()
        stack.callback(os.close, end)
        thread = threading.Thread(target=_wait, args=(names, end, on_death), daemon=True, name="ray-watch")
        thread.start()
        try:
            yield
        finally:
            os.close(told)
            thread.join()


def _wait(names: dict[int, str], end: int, on_death: Callable[[str], None]) -> None:
    ready, _, _ = select.select([*names, end], [], [])
    if end not in ready:
        on_death(names[ready[0]])


def _node_processes() -> dict[int, str]:
    """Names of the raylet of this node and, on a head, of its GCS, by pid."""
    node_id = ray.get_runtime_context().get_node_id()
    return {
        process.pid: process.info["name"]
        for process in psutil.process_iter(["name", "cmdline"])
        if process.info["name"] in WATCHED and any(node_id in word for word in process.info["cmdline"] or ())
    }
