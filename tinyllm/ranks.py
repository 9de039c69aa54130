"""The few things the loop needs of its fellow ranks; all of them are no-ops in a process of its own."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor


def world_size() -> int:
    return dist.get_world_size() if dist.is_initialized() else 1


def rank() -> int:
    return dist.get_rank() if dist.is_initialized() else 0


def sum_over_ranks(values: Tensor) -> Tensor:
    """Sum of a tensor over all ranks, in place."""
    if dist.is_initialized():
        dist.all_reduce(values)
    return values


def gather(value: Tensor) -> Tensor:
    """The tensor of every rank, stacked along a new first dimension."""
    if not dist.is_initialized():
        return value[None]
    found = [torch.empty_like(value) for _ in range(world_size())]
    dist.all_gather(found, value)
    return torch.stack(found)


def sum_ints(value: int) -> int:
    """Exact sum of Python integers of any size over all ranks."""
    if not dist.is_initialized():
        return value
    found: list[int | None] = [None] * world_size()
    dist.all_gather_object(found, value)
    return sum(v for v in found if v is not None)


class Vote:
    """Whether a flag was set on any rank a step ago: all ranks learn it at the same step, and no device is waited for.

    Every rank must call it once a step.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._sum = torch.zeros((), pin_memory=device.type == "cuda")
        self._copied = torch.cuda.Event() if device.type == "cuda" else None

    def __call__(self, flag: bool) -> bool:
        if self._copied is not None:
            self._copied.synchronize()
        before = bool(self._sum.item())
        self._sum.copy_(sum_over_ranks(torch.full((), float(flag), device=self._device)), non_blocking=True)
        if self._copied is not None:
            self._copied.record()
        return before


def barrier() -> None:
    if dist.is_initialized():
        dist.barrier()
