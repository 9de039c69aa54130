"""What a person sees of a running sweep: a table that is drawn anew on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from sweeps.board import Board

LAST_LINES = 6  # of the log, below the table
REFRESH_S = 1.0


PLAIN_WIDTH = 150  # columns where there is no terminal to measure


def new_console() -> Console:
    """Of standard output; wide enough for a table where that is no terminal."""
    console = Console()
    return console if console.is_terminal else Console(width=PLAIN_WIDTH)


def duration(seconds: float) -> str:
    """3725 -> '1:02:05'."""
    minutes, s = divmod(int(seconds), 60)
    hours, m = divmod(minutes, 60)
    return f"{hours}:{m:02d}:{s:02d}" if hours else f"{m}:{s:02d}"


class View:
    """Use as a context manager; `say` and `refresh` are for the sweep."""

    def __init__(
        self, board: Board, console: Console, note: Callable[[], str], seconds_left: Callable[[], float | None]
    ) -> None:
        """`note`: what else is worth a look, e.g. the cost so far. `seconds_left`: None while it is not known."""
        self._board, self._console, self._note, self._seconds_left = board, console, note, seconds_left
        self._lines: list[str] = []
        self._started = time.monotonic()
        self._live = Live(console=self._console, auto_refresh=False) if self._console.is_terminal else None
        self._refreshed = 0.0

    def __enter__(self) -> View:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        self.stop()

    def stop(self) -> None:
        """Leave the table as it stands."""
        if self._live is not None:
            self._draw()
            self._live.stop()

    def say(self, text: str) -> None:
        """A line of the log."""
        line = f"{time.strftime('%H:%M:%S')} {text}"
        if self._live is None:
            print(f"{line} [{self._progress()}]", file=self._console.file, flush=True)
            return
        self._lines = [*self._lines, line][-LAST_LINES:]
        self._draw()

    def refresh(self) -> None:
        """Draw anew when it is time to."""
        if self._live is not None and time.monotonic() - self._refreshed > REFRESH_S:
            self._draw()

    def _draw(self) -> None:
        assert self._live is not None
        self._refreshed = time.monotonic()
        log = Text("\n".join(self._lines), style="dim", no_wrap=True, overflow="ellipsis")
        self._live.update(Group(self._board.table(self._progress()), log), refresh=True)

    def _progress(self) -> str:
        left = self._seconds_left()
        eta = "" if left is None else f", about {duration(left)} left"
        elapsed = duration(time.monotonic() - self._started)
        return f"{self._board.share_done:.0%} of the FLOPs, {elapsed} so far{eta}, {self._note()}"
