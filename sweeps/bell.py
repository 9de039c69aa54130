"""The bell that ends a sweep early: rung by the sweep's process, heard by every trial wherever it runs."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy


class _Bell:
    """An actor that holds whoever waits until it is rung."""

    def __init__(self) -> None:
        self._rung = asyncio.Event()

    async def wait(self) -> None:
        await self._rung.wait()

    async def ring(self) -> None:
        self._rung.set()


def hang_up() -> Any:
    """Make a bell beside the calling process; returns its handle. A lost node only moves it."""
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=True)
    lasting = {"max_restarts": -1, "max_task_retries": -1}
    return ray.remote(_Bell).options(num_cpus=0, scheduling_strategy=here, **lasting).remote()


def ring(bell: Any) -> None:
    """Ring it; returns once it has rung."""
    ray.get(bell.ring.remote())


def listen(bell: Any) -> threading.Event:
    """An event of this process that is set when the bell rings."""
    heard = threading.Event()

    def wait() -> None:
        # A bell that is gone for good went with the sweep's process, and Ray ends this one as well.
        with contextlib.suppress(ray.exceptions.RayError):
            ray.get(bell.wait.remote())
            heard.set()

    threading.Thread(target=wait, daemon=True, name="bell").start()
    return heard
