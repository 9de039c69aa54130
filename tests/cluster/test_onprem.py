"""cluster-onprem.yaml, as it stands, on three machines: up, a sweep by `ray exec` and one by `ray job submit`, down.

For `make cluster`: needs root, sshd and rsync, and takes minutes.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Iterator

import pytest
import yaml
from machines import ROOT, SHARED, Network, missing

from tinyllm import record

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(missing() is not None, reason=f"bringing a cluster up needs {missing()}"),
]

FILE = "cluster-onprem.yaml"
NAMES = ("head", "worker1", "worker2")
ENVIRONMENT = "export RAY_UP_enable_autoscaler_v2=0 RAY_AUTH_MODE=token"
SWEEP = (
    "python -m sweeps.depth_grid --depths 1 --data zipf:V=64,s=1.5 --set model.vocab_size=64 data.eval_tokens=2048 "
    f"optim.total_batch_size=512 optim.warmup_tokens=2048 --cpus-per-worker {os.cpu_count()} --storage {SHARED}"
)


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Network]:
    provider = yaml.safe_load((ROOT / FILE).read_text())["provider"]
    addresses = [provider["head_ip"], *provider["worker_ips"]]
    with Network(tmp_path_factory.mktemp("network"), dict(zip(NAMES, addresses, strict=True))) as network:
        yield network


@pytest.fixture(scope="module")
def laptop(network: Network) -> Callable[..., str]:
    """Does a command on the laptop, which must succeed; returns what it printed."""

    def run(command: str, timeout: float = 300) -> str:
        done = network.laptop.run(f"{ENVIRONMENT}; {command}", timeout=timeout)
        assert done.returncode == 0, done.stdout
        return done.stdout

    return run


@pytest.fixture(scope="module")
def cluster(network: Network, laptop: Callable[..., str]) -> Network:
    laptop("ray get-auth-token --generate > /dev/null")
    bring_up(network, laptop)
    return network


def bring_up(network: Network, laptop: Callable[..., str]) -> None:
    """Returns when all machines have joined."""
    laptop(f"ray up --yes {FILE}", timeout=600)
    until = time.monotonic() + 600
    while True:
        status = network.laptop.run(f"ray exec {FILE} 'ray status'", timeout=120).stdout
        if re.search(rf"Active:\s+{len(NAMES)} local.cluster.node\s+Pending:\s+\(no pending nodes\)", status):
            return
        assert time.monotonic() < until, status


def machines(rows: list[record.RunRecord]) -> dict[str, int]:
    """Threads by host."""
    found = [json.loads(row.machine) for row in rows]
    return {machine["host"]: machine["threads"] for machine in found}


def test_a_sweep_by_ray_exec_trains_on_every_machine_with_all_its_cores(
    cluster: Network, laptop: Callable[..., str]
) -> None:
    # Long enough that none ends, and leaves its process to the next, before there is one on every machine.
    sweep = f"{SWEEP} --name exec --lrs 0.005 0.01 0.02 --budgets 500k 1M --no-early-stop"
    text = laptop(f"ray exec {FILE} '{sweep}'", 600)
    assert "Joined the Ray cluster" in text
    rows = record.read(str(cluster.shared / "exec"))
    assert len(rows) == 6
    assert {row.status for row in rows} == {"done"}
    # A trial takes a whole machine; trials of one size start together.
    threads = machines(rows)
    assert set(threads) == set(NAMES)
    assert set(threads.values()) == {os.cpu_count()}


def test_a_submitted_job_trains_one_trial_across_two_machines(cluster: Network, laptop: Callable[..., str]) -> None:
    forwarded = (
        f"ray dashboard {FILE} > /dev/null 2>&1 & trap 'kill %1' EXIT; "
        "until (exec 3<>/dev/tcp/localhost/8265) 2>/dev/null; do sleep 0.2; done"
    )
    sweep = f"{SWEEP} --name job --lrs 0.02 --budgets 20k --workers 1=2"
    submit = f"ray job submit --address http://localhost:8265 --working-dir . -- {sweep}"
    text = laptop(f"{forwarded}; {submit}", 600)
    assert "succeeded" in text
    (row,) = record.read(str(cluster.shared / "job"))
    assert row.status == "done"
    assert row.world_size == 2


def test_ray_up_again_carries_changed_code_to_every_machine(cluster: Network, laptop: Callable[..., str]) -> None:
    laptop("echo 'CHANGED = True' >> tinyllm/config.py")
    bring_up(cluster, laptop)
    for machine in cluster.machines:
        shown = machine.run("cd / && ~/tinyllm-venv/bin/python -c 'from tinyllm.config import CHANGED'", timeout=120)
        assert shown.returncode == 0, (machine.name, shown.stdout)


def test_ray_down_ends_ray_on_every_machine(cluster: Network, laptop: Callable[..., str]) -> None:
    before = {machine.name: len(machine.raylets()) for machine in cluster.machines}
    assert before == dict.fromkeys(NAMES, 1)
    assert "No nodes remaining" in laptop(f"ray down --yes {FILE}")
    until = time.monotonic() + 300
    while any(machine.raylets() for machine in cluster.machines):
        assert time.monotonic() < until, {machine.name: machine.raylets() for machine in cluster.machines}
        time.sleep(1)
