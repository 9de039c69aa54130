"""One rank of a training run in a process of its own, that kills itself with SIGKILL where it is told to.

Usage: child.py JSON with root, config (TrainConfig JSON), options (RunOptions fields), kill (see `_arm`), and for
groups rank, world_size, store (a file for the rendezvous).
"""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import Any

import torch.distributed as dist

from tinyllm.config import RunOptions, TrainConfig
from tinyllm.events import Event
from tinyllm.worker import Job, run


def _kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _arm(kill: dict[str, Any] | None) -> Any:
    """on_event that kills at {"event": name, "segment": ..., "step": ...}, or arms {"write": name, "call": n}."""
    if kill is None:
        return lambda event: None
    if "write" in kill:
        module, function = {"checkpoint": (os, "rename"), "record": (os, "replace")}[kill["write"]]
        original, calls = getattr(module, function), [0]

        def dying(source: str, target: str) -> None:
            wanted = "checkpoints" if kill["write"] == "checkpoint" else "records"
            if wanted in str(target):
                calls[0] += 1
                if calls[0] == kill["call"]:
                    _kill()
            original(source, target)

        setattr(module, function, dying)
        return lambda event: None

    def on_event(event: Event) -> None:
        here = (type(event).__name__, event.segment) == (kill["event"], kill["segment"])
        if here and kill.get("step") in (None, event.step):
            _kill()

    return on_event


def main() -> None:
    spec = json.loads(sys.argv[1])
    if spec.get("world_size", 1) > 1:
        dist.init_process_group(
            "gloo", init_method=f"file://{spec['store']}", rank=spec["rank"], world_size=spec["world_size"]
        )
    job = Job(config=TrainConfig.from_json(spec["config"]), options=RunOptions(**spec["options"]), root=spec["root"])
    run(job, on_event=_arm(spec.get("kill")))
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
