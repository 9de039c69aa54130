"""The Ray cluster that a sweep runs on: joined, or started for it on this machine; and what its devices are."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import TypeVar

import ray
import torch
from ray._private.authentication.authentication_token_setup import maybe_enable_token_auth_if_token_available
from ray._private.services import find_bootstrap_address  # the address that `ray start` left on this machine

from sweeps import scratch
from sweeps.grid import Device
from sweeps.resources import TRIAL_SLOT, Resources
from tinyllm import hardware

T = TypeVar("T")

CONNECT_SECONDS = 5.0
HEALTH_CHECK_SECONDS = 60.0  # seconds of imports on a busy machine


class NoClusterError(ValueError):
    """Nothing that is a Ray cluster answers at an address."""


def given_address(address: str) -> str | None:
    """The address that a user gave, by `--address` or by $RAY_ADDRESS; None where "auto" is to look for one."""
    return os.environ.get("RAY_ADDRESS") if address == "auto" else address


def last_started() -> str | None:
    """Address of the Ray that was last started on this machine, whether or not it still runs; None without one."""
    return find_bootstrap_address(None)


@contextlib.contextmanager
def joined(address: str) -> Iterator[str]:
    """Within it this process is connected to the cluster at HOST:PORT; yields a line that says to which.

    Raises NoClusterError, a ValueError with the remedy, when none answers there.
    """
    try:
        _answers(address)
        ray.init(address=address, logging_level=logging.ERROR, log_to_driver=False)
    except OSError as error:
        raise NoClusterError(
            f"no Ray cluster answers at {address} ({error}): start it with `ray up` or `ray start --head`, "
            "or take --address local"
        ) from error
    try:
        total = ray.cluster_resources()
        yield (
            f"Joined the Ray cluster at {address}: {len(ray.nodes())} node(s), "
            f"{total.get('CPU', 0):g} CPUs, {total.get('GPU', 0):g} GPUs."
        )
    finally:
        ray.shutdown()


def _answers(address: str) -> None:
    """Raises OSError unless a Ray head answers at HOST:PORT. `ray.init` itself retries a dead address without end."""
    host, _, port = address.rpartition(":")
    if not port.isdigit():
        return
    socket.create_connection((host, int(port)), timeout=CONNECT_SECONDS).close()
    # A port that somebody else has taken since accepts connections as well.
    check = [sys.executable, "-m", "ray.scripts.scripts", "health-check", "--address", address]
    try:
        if subprocess.run(check, timeout=HEALTH_CHECK_SECONDS, capture_output=True).returncode == 0:
            return
        # It may ask for the token that a Ray on this machine left in the home directory. Only then: actors of a
        # driver that sends a token never start on a cluster without.
        if maybe_enable_token_auth_if_token_available(warn_if_disabled=False):
            subprocess.run(check, timeout=HEALTH_CHECK_SECONDS, capture_output=True, check=True)
            return
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        raise ConnectionError(f"what listens there is no healthy Ray head: {error}") from error
    raise ConnectionError("what listens there is no healthy Ray head, or it asks for a token that is not here")


def own_resources() -> dict[str, float]:
    """What a cluster started on this machine would have."""
    cores = hardware.usable_cores()
    return {"CPU": cores, "GPU": torch.cuda.device_count(), TRIAL_SLOT: cores}


@contextlib.contextmanager
def started(resources: Mapping[str, float]) -> Iterator[str]:
    """Within it a cluster of these resources runs on this machine; yields a line that says so."""
    # Its own directory: another sweep's --address auto must not find this cluster.
    with scratch.directory() as directory:
        try:
            ray.init(
                address="local",
                num_cpus=int(resources["CPU"]),
                num_gpus=int(resources["GPU"]),
                resources={TRIAL_SLOT: resources[TRIAL_SLOT]},
                include_dashboard=False,
                logging_level=logging.ERROR,
                log_to_driver=False,
                _temp_dir=directory,
            )
            yield f"Started Ray on this machine: {resources['CPU']:g} CPUs, {resources['GPU']:g} GPUs."
        finally:
            ray.shutdown()


def this_machines_device(wanted: str, share: float = 1.0) -> Device:
    """What a trial would compute with on this machine, with its share of a GPU's memory."""
    device = hardware.pick_device(wanted)
    precision = hardware.computed_precision(device)
    assert device.type in ("cuda", "cpu", "mps")
    assert precision in ("fp32", "bf16")
    return Device(
        kind=device.type,  # type: ignore[arg-type]
        name=str(hardware.machine(device)["chip"]),
        precision=precision,  # type: ignore[arg-type]
        memory_bytes=hardware.state_memory_bytes(device, share),
        peak_tflops=hardware.peak_tflops(device, precision),
    )


def find_device(wanted: str, resources: Resources) -> Device:
    """The same, asked on a machine of the cluster with a trial's resources."""
    return on_a_device(this_machines_device, resources)(wanted, resources.device_share)


def on_a_device(function: Callable[..., T], resources: Resources) -> Callable[..., T]:
    """The function as one that runs on a machine of the cluster, in a process with one worker's resources."""
    task = ray.remote(num_cpus=resources.cpus, num_gpus=resources.gpus, max_calls=1)(function)
    return lambda *arguments: ray.get(task.remote(*arguments))
