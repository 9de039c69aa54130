"""What is told of the machine belongs to the run that asks."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from tinyllm import hardware

CPU = torch.device("cpu")
MIB = 2**20


@pytest.mark.skipif(not os.access("/proc/self/clear_refs", os.W_OK), reason="the peak can't be reset here")
def test_peak_memory_is_that_of_a_run_and_not_of_the_one_before_in_the_same_process() -> None:
    earlier = np.ones(400 * MIB // 8)
    whole = hardware.peak_memory_bytes(CPU)
    del earlier
    hardware.reset_peak_memory(CPU)
    before = hardware.peak_memory_bytes(CPU)
    assert before < whole - 300 * MIB
    later = np.ones(100 * MIB // 8)
    assert 90 * MIB < hardware.peak_memory_bytes(CPU) - before < 200 * MIB
    del later


@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="ru_maxrss is all there is")
def test_peak_memory_does_not_begin_with_that_of_the_process_which_started_this_one() -> None:
    held = np.ones(1200 * MIB // 8)
    code = "import torch; from tinyllm import hardware; print(hardware.peak_memory_bytes(torch.device('cpu')))"
    child = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert int(child.stdout) < held.nbytes


def test_no_chip_is_taken_for_another_whose_name_begins_its_own() -> None:
    names = list(hardware.PEAK_TFLOPS_BF16)
    assert not [(short, long) for i, long in enumerate(names) for short in names[:i] if short in long]


@pytest.mark.parametrize(
    ("memberships", "files", "limits"),
    [
        ("0::/job/step\n", {"job/memory.max": "2000\n", "job/step/memory.max": "max\n"}, [2000]),
        ("0::/job/step\n", {"memory.max": "3000", "job/step/memory.max": "1000"}, [1000, 3000]),
        # Version 1, in a container: the path is the host's and not there.
        ("5:cpu:/x\n4:memory:/host/x\n0::/\n", {"memory/memory.limit_in_bytes": "4000"}, [4000]),
        ("0::/\n", {}, []),
    ],
)
def test_a_container_or_a_batch_job_limits_the_memory(
    tmp_path: Path, memberships: str, files: dict[str, str], limits: list[int]
) -> None:
    proc, root = tmp_path / "cgroup", tmp_path / "fs"
    proc.write_text(memberships)
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    assert hardware._cgroup_limits(proc, root) == limits
    assert hardware._cgroup_limits(tmp_path / "none", root) == []


def test_the_memory_of_this_machine_is_that_of_the_kernel() -> None:
    total = next(line for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("MemTotal:"))
    assert 0 < hardware.machine_memory_bytes() <= int(total.split()[1]) * 1024


@pytest.mark.parametrize("chosen", [None, "ACTIVE"])
def test_threads_of_openmp_sleep_soon_unless_a_policy_was_chosen(chosen: str | None) -> None:
    code = "import os, tinyllm; print(os.environ.get('GOMP_SPINCOUNT'))"
    environment = {k: v for k, v in os.environ.items() if k not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
    if chosen is not None:
        environment["OMP_WAIT_POLICY"] = chosen
    printed = subprocess.run([sys.executable, "-c", code], env=environment, check=True, capture_output=True, text=True)
    assert printed.stdout.strip() == ("1000" if chosen is None else "None")


@pytest.mark.skipif(platform.machine() != "x86_64" or not os.path.exists("/proc/cpuinfo"), reason="flags of x86 Linux")
def test_a_cpu_computes_bf16_where_its_flags_say_so_and_not_by_avx512_alone() -> None:
    flags = set(Path("/proc/cpuinfo").read_text().split("flags")[1].split("\n")[0].split())
    native = bool(flags & {"avx512_bf16", "amx_bf16"})
    assert hardware.computed_precision(CPU) == ("bf16" if native else "fp32")
