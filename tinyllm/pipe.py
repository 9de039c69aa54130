"""Printing into a pipe."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def reader_may_leave() -> Iterator[None]:
    """For what prints --help: a reader that has seen enough (`| head`) ends the process without a traceback.

    https://docs.python.org/3/library/signal.html#note-on-sigpipe
    """
    try:
        try:
            yield
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or the flush at exit would fail again
        sys.exit(1)
