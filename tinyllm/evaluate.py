"""Validation loss in nats per token and bits per byte of text, the same number for any number of ranks."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch

from tinyllm import ranks
from tinyllm.data import TokenSource
from tinyllm.model import GPT

# Part of every record: raised when the definition of a metric changes.
METRIC_VERSIONS = {"val_loss": 1, "val_bpb": 1, "core": 1}


class StopRequestedError(Exception):
    """Raised between two batches when the run was asked to end."""


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    val_loss: float
    """Nats per token: mean over every target of the windows."""
    val_bpb: float | None
    """Bits per byte; targets of no bytes (special tokens) are left out of both sums. None where tokens are no text."""


@torch.no_grad()
def evaluate(
    model: GPT,
    corpus: TokenSource,
    *,
    eval_tokens: int,
    device_rows: int,
    precision: str,
    should_stop: Callable[[], bool] = lambda: False,
) -> Evaluation:
    """Evaluate on the first `eval_tokens` tokens of the validation split, in whole rows, at least one.

    Each rank takes a contiguous share of the same windows, sums in fp64, and the sums are added over ranks.
    """
    manifest = corpus.manifest
    n_rows = min(max(1, eval_tokens // manifest.seq_len), manifest.val_rows)
    first = n_rows * ranks.rank() // ranks.world_size()
    last = n_rows * (ranks.rank() + 1) // ranks.world_size()
    device = model.embedding.weight.device
    token_bytes = None
    if corpus.token_bytes is not None:
        token_bytes = torch.from_numpy(corpus.token_bytes.astype("int64")).to(device)
    # nats of all targets, number of targets, nats of the targets that are text, their bytes
    wide = torch.float32 if device.type == "mps" else torch.float64  # Apple's GPUs have no fp64
    sums = torch.zeros(4, dtype=wide, device=device)
    for start in range(first, last, device_rows):
        if should_stop():
            raise StopRequestedError
        rows = torch.from_numpy(corpus.val_rows(start, min(start + device_rows, last)).astype("int64")).to(device)
        inputs_BT, targets_BT = rows[:, :-1], rows[:, 1:]
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=precision == "bf16"):
            losses_BT = model.token_losses(inputs_BT, targets_BT).to(wide)
        sums[0] += losses_BT.sum()
        sums[1] += targets_BT.numel()
        if token_bytes is not None:
            bytes_BT = token_bytes[targets_BT]
            sums[2] += losses_BT[bytes_BT > 0].sum()
            sums[3] += bytes_BT.sum()
    nats, targets, text_nats, text_bytes = ranks.sum_over_ranks(sums).tolist()
    bpb = text_nats / (math.log(2) * text_bytes) if text_bytes else None
    return Evaluation(val_loss=nats / targets, val_bpb=bpb)
