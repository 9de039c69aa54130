"""A generator that is run ahead of its consumer by a thread."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Generator
from types import TracebackType
from typing import Generic, Self, TypeVar

T = TypeVar("T")


class ReadAhead(Generic[T]):
    """Takes items from a generator in a background thread and hands them on in order.

    An error of the thread is raised by the next step of the iteration. Close it, or use it as a context manager, to
    end the thread and the generator.
    """

    def __init__(self, items: Generator[T, None, None], prefetch: int) -> None:
        """`prefetch`: how many items may wait for the consumer, at least 1."""
        assert prefetch > 0
        self._items = items
        self._ready: queue.Queue[tuple[T] | BaseException] = queue.Queue(prefetch)
        self._closed = threading.Event()
        self.wait_seconds = 0.0
        """Time the consumer has waited for items, in seconds."""
        self._thread = threading.Thread(target=self._run, name="read-ahead", daemon=True)
        self._thread.start()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> T:
        if self._closed.is_set():
            raise StopIteration
        began = time.perf_counter()
        item = self._ready.get()
        self.wait_seconds += time.perf_counter() - began
        if isinstance(item, BaseException):
            self.close()
            raise item
        return item[0]

    def close(self) -> None:
        """Stop reading and wait for the thread to end; closing twice is no error."""
        self._closed.set()
        while self._thread.is_alive():
            # The thread may stand in `put`: make room until it has seen the flag.
            try:
                self._ready.get_nowait()
            except queue.Empty:
                self._thread.join(0.01)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _run(self) -> None:
        try:
            for item in self._items:
                self._ready.put((item,))
                if self._closed.is_set():
                    return
            self._ready.put(StopIteration())
        except BaseException as error:  # handed to the consumer, who raises it
            self._ready.put(error)
        finally:
            self._items.close()  # lets go of what it reads from
