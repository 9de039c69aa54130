"""Runs in every worker process of the chaos cluster: halts a trial at a moment that a test asked for.

It watches the files that a run writes and needs nothing of the program but the names of its files. Who meets the moment
writes its pid into a FIFO and stays there until it dies; a request is met once. A trial that is to be killed every time
it starts kills itself at the moment: SIGKILL, as the kernel does where memory runs out.
"""

import builtins
import json
import os
import signal
import threading
from collections import Counter
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
        self.lines: Counter[str] = Counter()  # appended to a run's log by this process since the start or the last fork
        self.forked: set[str] = set()

    def around(self, call: Callable[..., None], moment: str, part: str) -> Callable[..., None]:
        """The call, with `moment` just before it where it makes such a file appear."""

        def called(source: Any, target: Any, **given: Any) -> None:
            run, found, _ = str(target).partition(part)
            if found:
                self.meet(moment, str(target))
                if moment == "checkpoint":
                    log = f"{run}/log.txt"
                    self.forked.add(log)
                    del self.lines[log]
            call(source, target, **given)

        return called

    def around_open(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def called(file: Any, mode: str = "r", *args: Any, **given: Any) -> Any:
            if mode == "ab" and str(file).endswith("/log.txt"):
                log = str(file)
                self.lines[log] += 1
                # Trunk: "starting", then a logged step. Branch: "leaving the trunk", then a logged step.
                if self.lines[log] == 2:
                    self.meet("branch" if log in self.forked else "trunk", log)
            return call(file, mode, *args, **given)

        return called

    def meet(self, moment: str, path: str) -> None:
        request_path = os.path.join(self.directory, REQUEST)
        if not os.path.exists(request_path):
            return
        with self.opened(request_path) as file:
            request = json.load(file)
        if request["moment"] != moment or request["node"] not in ("any", os.environ.get(NODE)):
            return
        if request["kill_always"] is not None:
            if request["kill_always"] in path:
                os.kill(os.getpid(), signal.SIGKILL)
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
