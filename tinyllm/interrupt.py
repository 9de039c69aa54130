"""Ctrl-C and SIGTERM: the first asks a run to save and end, a second one acts at once."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_NOTICE = b"stopping after this step and saving; press Ctrl-C again to end at once\n"
_STDERR = 2


@contextmanager
def deferred(*, notice: bool, on_first: Callable[[], None] = lambda: None) -> Iterator[Callable[[], bool]]:
    """Within the block a Ctrl-C, or a SIGTERM as `kill` and batch schedulers send it, is only noted; a second one acts.

    Yields whether one came. At the end of the block the one that came ends the caller after all: KeyboardInterrupt, or
    SystemExit(143), the code of a process that SIGTERM ended. Outside the main thread, where Python lets nobody catch
    signals, none is noted. One that is ignored, as in a shell's background jobs, stays ignored.

    Args:
        notice: say on stderr that the first one was heard.
        on_first: called in the signal's handler.
    """
    arrived: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    before = {number: handler for number, handler in before.items() if handler not in (signal.SIG_IGN, None)}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def note(number: int, frame: object) -> None:
        arrived.append(number)
        restore()
        on_first()
        if notice:
            os.write(_STDERR, _NOTICE)  # not print: it may have been interrupted itself

    for number in before:
        signal.signal(number, note)
    try:
        yield lambda: bool(arrived)
    finally:
        restore()
    if signal.SIGTERM in arrived:
        raise SystemExit(128 + signal.SIGTERM)
    if arrived:
        raise KeyboardInterrupt
