"""Runs in every Ray worker of the chaos cluster: freezes a trial at a chosen moment and tells the test.

It stands between the program and the file system, and knows nothing of the program but the names of its files. The
moment comes once for each request; the process that meets it writes its pid into a FIFO and stays there until it dies.
"""

import builtins
import json
import os
import threading
from collections.abc import Callable
from typing import Any

DIRECTORY = "CHAOS_DIR"
NODE = "CHAOS_NODE"
REQUEST, CLAIM, MET, NEVER = "request.json", "claim", "met.fifo", "never.fifo"


def install() -> None:
    """Ray's worker_process_setup_hook."""
    moments = _Moments(os.environ[DIRECTORY])
    builtins.open = moments.around_open(builtins.open)  # type: ignore[assignment]
    os.rename = moments.around(os.rename, "checkpoint", "/checkpoints/fork-")  # type: ignore[assignment]
    os.replace = moments.around(os.replace, "record", "/records/part-")  # type: ignore[assignment]


class _Moments:
    def __init__(self, directory: str) -> None:
        self.directory = directory
        self.opened = open
        self.lines = 0  # appended to the run's log since the start, or since the last fork
        self.forked = False

    def around(self, call: Callable[..., None], moment: str, part: str) -> Callable[..., None]:
        """The call, with `moment` just before it where it makes such a file appear."""

        def called(source: Any, target: Any, **given: Any) -> None:
            if part in str(target):
                self.meet(moment)
                if moment == "checkpoint":
                    self.forked, self.lines = True, 0
            call(source, target, **given)

        return called

    def around_open(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def called(file: Any, mode: str = "r", *args: Any, **given: Any) -> Any:
            if mode == "ab" and str(file).endswith("/log.txt"):
                self.lines += 1
                # Trunk: "starting", then a logged step. Branch: "leaving the trunk", then a logged step.
                if self.lines == 2:
                    self.meet("branch" if self.forked else "trunk")
            return call(file, mode, *args, **given)

        return called

    def meet(self, moment: str) -> None:
        path = os.path.join(self.directory, REQUEST)
        if not os.path.exists(path):
            return
        with self.opened(path) as file:
            request = json.load(file)
        if request["moment"] != moment or request["node"] not in ("any", os.environ.get(NODE)):
            return
        try:
            os.close(os.open(os.path.join(self.directory, CLAIM), os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return  # another trial met it
        with self.opened(os.path.join(self.directory, MET), "w") as fifo:
            fifo.write(str(os.getpid()))
        if threading.current_thread() is threading.main_thread():
            raise AssertionError("a trial trains in a thread, so that its process can still be told to end")
        self.opened(os.path.join(self.directory, NEVER)).read()
