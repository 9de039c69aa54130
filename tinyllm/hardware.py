"""What this machine computes with: device, precision, peak speed, memory, and the versions that a record names."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import socket
import subprocess
from functools import lru_cache
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]
import torch

# Dense peak in TFLOP/s (no sparsity), from the makers' data sheets, by a part of the name CUDA reports.
# The first match counts: longer names stand before their prefixes.
PEAK_TFLOPS_BF16 = {
    "GB200": 2500.0,
    "B200": 2250.0,
    "H200": 989.0,
    "H100 NVL": 835.0,
    "H100 PCIe": 756.0,
    "H100": 989.0,
    "A100": 312.0,
    "L40S": 362.0,
    "L40": 181.0,
    "L4": 121.0,
    "A10G": 70.0,
    "A10": 125.0,
    "RTX 4090": 165.2,
    "RTX 3090": 71.0,
    "V100": 125.0,  # fp16: it has no bf16
    "T4": 65.0,  # fp16: it has no bf16
}

_STATUS, _CLEAR_REFS = Path("/proc/self/status"), Path("/proc/self/clear_refs")
_PROC_CGROUP, _CGROUPS = Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")


def pick_device(wanted: str) -> torch.device:
    """The device of this process. Raises ValueError when it is asked for and not there."""
    available = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if wanted == "auto":
        wanted = next(name for name, there in available.items() if there)
    if not available[wanted]:
        there = [name for name, is_there in available.items() if is_there]
        raise ValueError(f"--device {wanted}: not on this machine; it has {', '.join(there)}")
    if wanted == "cuda":
        return torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)) % torch.cuda.device_count())
    return torch.device(wanted)


def computed_precision(device: torch.device) -> str:
    """ "bf16" where the chip computes it, else "fp32": an emulated bf16 step takes 8 times as long on a CPU."""
    if device.type == "cuda":
        return "bf16" if torch.cuda.get_device_capability(device) >= (8, 0) else "fp32"
    if device.type == "cpu":
        # Of any AVX-512 chip torch says that its kernels take bf16; these are the ones that need not emulate it.
        native = torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
        x86 = platform.machine() in ("x86_64", "AMD64")
        return "bf16" if torch.ops.mkldnn._is_mkldnn_bf16_supported() and (native or not x86) else "fp32"
    return "fp32"


def peak_tflops(device: torch.device, precision: str) -> float | None:
    """Dense bf16 peak of one device by its name; None where it is not known (any CPU, fp32, an unlisted chip)."""
    if device.type != "cuda" or precision != "bf16":
        return None
    name = torch.cuda.get_device_name(device)
    return next((peak for part, peak in PEAK_TFLOPS_BF16.items() if part in name), None)


def memory_bytes(device: torch.device, share: float = 1.0) -> int | None:
    """Memory of a GPU, or of the `share` of it that is ours; None for others."""
    return int(share * torch.cuda.get_device_properties(device).total_memory) if device.type == "cuda" else None


def state_memory_bytes(device: torch.device, share: float = 1.0) -> int:
    """Memory that a model's state must fit: the GPU's (or our `share` of it), or this machine's."""
    return memory_bytes(device, share) or machine_memory_bytes()


def machine_memory_bytes() -> int:
    """Memory this process may use: the machine's, or less where a container or a batch job limits it."""
    return min([psutil.virtual_memory().total, *_cgroup_limits(_PROC_CGROUP, _CGROUPS)])


def _cgroup_limits(memberships: Path, root: Path) -> list[int]:
    """Memory limits, in bytes, of the control groups that a process is in (cgroups(7), both versions)."""
    found = []
    for line in memberships.read_text().splitlines() if memberships.exists() else ():
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        mount, name = (root / "memory", "memory.limit_in_bytes") if controllers else (root, "memory.max")
        group = mount / path.lstrip("/")
        # A limit on any group above holds as well. In a container the path may be the host's, which is not there.
        for directory in (group, *group.parents):
            file = directory / name
            if file.exists() and (limit := file.read_text().strip()).isdigit():  # else "max"
                found.append(int(limit))
            if directory == mount:
                break
    return found


def reset_peak_memory(device: torch.device) -> None:
    """Let `peak_memory_bytes` begin anew, for a process that does several runs; only CUDA and Linux can."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    elif os.access(_CLEAR_REFS, os.W_OK):
        _CLEAR_REFS.write_text("5")  # proc(5): the peak becomes what is resident now


def peak_memory_bytes(device: torch.device) -> int:
    """Most memory used since `reset_peak_memory`: on a GPU by tensors, else all that this process held resident.

    Since the process began where its peak can't be reset.
    """
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    if _STATUS.exists():
        # Not getrusage's ru_maxrss, which starts from the peak of the process that forked this one.
        (line,) = (line for line in _STATUS.read_text().splitlines() if line.startswith("VmHWM:"))
        return int(line.split()[1]) * 1024
    import resource

    unit = 1 if platform.system() == "Darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def configure(device: torch.device, *, deterministic: bool) -> None:
    """Global switches of torch, set the same in every process before a model is built, also in a reused one."""
    if device.type == "cuda":
        torch.cuda.set_device(device)  # what makes tensors, streams and events without naming a device takes this one
    torch.set_float32_matmul_precision("high")  # TF32 on CUDA; no effect on the CPU's fp32
    torch.use_deterministic_algorithms(deterministic)
    if device.type == "cuda":
        if deterministic:
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # torch refuses matmuls without it
        # Read at the first allocation. Training and evaluation take blocks of different sizes, and segments that can
        # grow leave no holes between them.
        os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    if device.type == "cpu":
        torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", 0)) or usable_cores())


def device_count(device: torch.device) -> int:
    """Devices of that kind on this node that a run can use at once."""
    return torch.cuda.device_count() if device.type == "cuda" else 1


def usable_cores() -> int:
    """CPUs this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@lru_cache
def versions() -> dict[str, str | None]:
    """Versions of what a loss can depend on."""
    found: dict[str, str | None] = {"python": platform.python_version()}
    for package in ("tinyllm", "torch", "ray", "numpy", "tokenizers", "pyarrow"):
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = None
    return found


def machine(device: torch.device) -> dict[str, Any]:
    """Which machine a run was made on."""
    chip = torch.cuda.get_device_name(device) if device.type == "cuda" else _cpu_name()
    return {"host": socket.gethostname(), "chip": chip, "cores": usable_cores(), "threads": torch.get_num_threads()}


def _cpu_name() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


@lru_cache
def git_commit() -> str | None:
    """Commit of this package's checkout, with "+" when files differ from it; None outside a checkout."""
    root = Path(__file__).resolve().parent.parent
    if not (root / ".git").exists():
        return None
    git = ["git", "-C", str(root)]
    try:
        commit = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True)
        status = subprocess.run([*git, "status", "--porcelain", "-uno"], capture_output=True, text=True, check=True)
    except (subprocess.CalledProcessError, FileNotFoundError):
        return None  # no git on this machine, or not ours to read: the record says null
    return commit.stdout.strip() + ("+" if status.stdout.strip() else "")
