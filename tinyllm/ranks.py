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


def any_rank(flag: bool, device: torch.device) -> bool:
    """Whether the flag is set on any rank."""
    return bool(sum_over_ranks(torch.tensor(float(flag), device=device)).item())


def barrier() -> None:
    if dist.is_initialized():
        dist.barrier()
