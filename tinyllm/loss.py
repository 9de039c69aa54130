"""Cross-entropy through the output head, chunk by chunk, so that the (N, V) logits never fill memory.

Symbols: N targets, D width, V vocabulary, R rows of a chunk.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

CHUNK_ELEMENTS = 2**24  # logits held at once: 512 rows of a vocabulary of 32768, 64 MiB in fp32
MOST_CHUNKS = 16  # torch.compile unrolls the loop over them: a GPU's large batch takes larger chunks, not more


def _chunk_rows(n_targets: int, vocab: int) -> int:
    return min(n_targets, max(CHUNK_ELEMENTS // vocab, -(-n_targets // MOST_CHUNKS)))


def _capped(z_RV: Tensor, cap: float) -> Tensor:
    """cap * tanh(z / cap), in place; cap 0 = no cap."""
    return z_RV.div_(cap).tanh_().mul_(cap) if cap else z_RV


class _CrossEntropySum(torch.autograd.Function):
    """Computes the gradient in the forward pass while a chunk's logits are at hand, instead of recomputing them.

    Chunks share their buffers: page faults of fresh ones would cost a CPU more than the arithmetic done in them.
    """

    @staticmethod
    def forward(ctx: Any, h_ND: Tensor, w_VD: Tensor, y_N: Tensor, cap: float) -> Tensor:
        w_cast = w_VD.to(h_ND.dtype)
        grad_h, grad_w = torch.empty_like(h_ND), torch.zeros_like(w_VD)
        total = torch.zeros((), dtype=torch.float32, device=h_ND.device)
        step = _chunk_rows(h_ND.size(0), w_VD.size(0))
        raw_RV = h_ND.new_empty((step, w_VD.size(0)))
        squashed_RV = torch.empty_like(raw_RV, dtype=torch.float32) if cap else None
        # cap tanh(z / cap) = 2 cap sigmoid(2 z / cap) - cap: a sigmoid is cheaper than a tanh on a CPU.
        alpha = 2 / cap if cap else 1.0
        for start in range(0, h_ND.size(0), step):
            h_RD, y_R1 = h_ND[start : start + step], y_N[start : start + step, None]
            rows = h_RD.size(0)
            z_RV = raw_RV[:rows].addmm_(h_RD, w_cast.T, beta=0, alpha=alpha).float()
            if squashed_RV is not None:
                torch.sigmoid(z_RV, out=squashed_RV[:rows])
                torch.mul(squashed_RV[:rows], 2 * cap, out=z_RV)
            highest_R1 = z_RV.amax(1, keepdim=True)
            target_R1 = z_RV.gather(1, y_R1)
            z_RV.sub_(highest_R1).exp_()
            normaliser_R1 = z_RV.sum(1, keepdim=True)
            total += (highest_R1 + normaliser_R1.log() - target_R1).sum()
            # d capped / d raw = 4 s (1 - s), whose 4 goes with the normaliser: a pass over the logits less.
            slope = 4.0 if cap else 1.0
            z_RV.mul_(slope / normaliser_R1).scatter_add_(1, y_R1, z_RV.new_full(y_R1.shape, -slope))
            if squashed_RV is not None:
                torch.ops.aten.sigmoid_backward.grad_input(z_RV, squashed_RV[:rows], grad_input=z_RV)
            dz_RV = z_RV.to(h_ND.dtype)
            torch.mm(dz_RV, w_cast, out=grad_h[start : start + step])
            if dz_RV.dtype == grad_w.dtype:
                grad_w.addmm_(dz_RV.T, h_RD)
            else:
                grad_w += dz_RV.T @ h_RD
        ctx.save_for_backward(grad_h, grad_w)
        return total

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        # In place: a second pass over the same graph finds them changed, and autograd raises.
        grad_h, grad_w = ctx.saved_tensors
        (scale,) = grad_outputs
        return grad_h.mul_(scale), grad_w.mul_(scale), None, None


def cross_entropy_sum(h_ND: Tensor, w_VD: Tensor, y_N: Tensor, cap: float) -> Tensor:
    """Sum over N of the cross-entropy of `y_N` under softmax(softcap(h w^T)), nats; a scalar in fp32.

    The softmax is always computed in fp32, the matmuls in autocast's dtype where it is on. The gradient of `w_VD` is
    accumulated in the dtype of `w_VD`. Give `cap` = 0 for no soft cap.
    """
    h_ND = h_ND.to(_matmul_dtype(h_ND))
    # Autocast off: the casts in the chunk loop are explicit, and in-place matmuls would escape it anyway.
    with torch.autocast(h_ND.device.type, enabled=False):
        if torch.is_grad_enabled():
            return _CrossEntropySum.apply(h_ND, w_VD, y_N, cap)
        return token_cross_entropy(h_ND, w_VD, y_N, cap).sum()


def _matmul_dtype(x: Tensor) -> torch.dtype:
    device = x.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else x.dtype


def token_cross_entropy(h_ND: Tensor, w_VD: Tensor, y_N: Tensor, cap: float) -> Tensor:
    """Cross-entropy of each target, (N,), fp32 nats, without gradient."""
    w_cast = w_VD.to(h_ND.dtype)
    step = _chunk_rows(h_ND.size(0), w_VD.size(0))
    losses = [
        torch.nn.functional.cross_entropy(
            _capped((h_ND[i : i + step] @ w_cast.T).float(), cap), y_N[i : i + step], reduction="none"
        )
        for i in range(0, h_ND.size(0), step)
    ]
    return torch.cat(losses)
