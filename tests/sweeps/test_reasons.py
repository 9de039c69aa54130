"""What Ray raises for a trial, as a line for people; the exceptions are Ray's own."""

from __future__ import annotations

import os
import signal

import pytest
import ray
from ray.train import WorkerGroupError
from ray.train.v2._internal.exceptions import UserExceptionWithTraceback, WorkerHealthCheckFailedError

from sweeps import cluster
from sweeps.reasons import DIED, reason_of


@pytest.fixture
def connection(cluster_address: str) -> object:
    with cluster.joined(cluster_address):
        yield


class Victim:
    def die(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def fail(self) -> None:
        raise ValueError("shard x is damaged:\n  its digest is 0")


def raised_by(call: str) -> BaseException:
    victim = ray.remote(num_cpus=0)(Victim).remote()
    with pytest.raises(ray.exceptions.RayError) as raised:
        ray.get(getattr(victim, call).remote())
    return raised.value


@pytest.mark.usefixtures("connection")
def test_a_killed_process_a_raised_error_and_the_ranks_of_a_group() -> None:
    killed, failed = raised_by("die"), raised_by("fail")
    assert reason_of(killed).startswith(f"{DIED}; Ray says: The actor is dead because its worker process has died")
    assert "common causes" not in reason_of(killed)
    assert reason_of(failed) == "ValueError: shard x is damaged: its digest is 0"
    trace = "Traceback (most recent call last):\n  File ...\nValueError: shard y is damaged\n"
    group = WorkerGroupError(
        "what Ray tells",
        {
            2: UserExceptionWithTraceback(ValueError("shard y is damaged"), trace),
            0: WorkerHealthCheckFailedError("unhealthy", killed),
            1: WorkerHealthCheckFailedError("unhealthy", killed),
        },
    )
    assert reason_of(group) == f"rank 0, 1: {reason_of(killed)}; rank 2: ValueError: shard y is damaged"
