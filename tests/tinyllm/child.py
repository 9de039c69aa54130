"""One rank of a training run in a process of its own, that kills itself with SIGKILL where it is told to."""

from __future__ import annotations

import os
import signal
from typing import Any

import torch.distributed as dist

from tinyllm import core_eval
from tinyllm.config import TrainConfig
from tinyllm.events import Event
from tinyllm.options import RunOptions
from tinyllm.worker import Job, run


def _kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _arm(kill: dict[str, Any] | None) -> Any:
    """on_event that kills at {"event": name, "segment": ..., "step": ...}.

    Or arms a kill at the n-th call of a kind: {"write": name, "call": n}, {"scoring": n}.
    """
    if kill is None:
        return lambda event: None
    if "scoring" in kill:
        evaluate_tasks, countdown = core_eval.evaluate_tasks, iter(range(kill["scoring"] - 1))

        def scored(*args: Any, **kwargs: Any) -> Any:
            result = evaluate_tasks(*args, **kwargs)
            if next(countdown, None) is None:
                _kill()
            return result

        core_eval.evaluate_tasks = scored
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


def run_rank(spec: dict[str, Any]) -> None:
    """Run a job. `spec`: root, config (JSON), options (fields of RunOptions), kill (see `_arm`), and for a group
    rank, world_size and store (a file for the rendezvous).
    """
    if spec["world_size"] > 1:
        dist.init_process_group(
            "gloo", init_method=f"file://{spec['store']}", rank=spec["rank"], world_size=spec["world_size"]
        )
    job = Job(config=TrainConfig.from_json(spec["config"]), options=RunOptions(**spec["options"]), root=spec["root"])
    run(job, on_event=_arm(spec["kill"]))
    if dist.is_initialized():
        dist.destroy_process_group()
