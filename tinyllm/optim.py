"""Muon for the hidden matrices, AdamW for the rest; the groups must partition the parameters."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from tinyllm.config import TrainConfig
from tinyllm.model import GPT
from tinyllm.plan import Budget, PeakLRs, Plan
from tinyllm.schedule import lr_multiplier, momentum, weight_decay

# Keller Jordan's quintic: five steps bring every singular value into about [0.7, 1.2] without an SVD.
NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)
NEWTON_SCHULZ_STEPS = 5


def orthogonalise(g_KMN: Tensor, dtype: torch.dtype) -> Tensor:
    """The nearest semi-orthogonal matrices of a stack (K, M, N), approximately, by Newton-Schulz in `dtype`."""
    a, b, c = NEWTON_SCHULZ
    x = g_KMN.to(dtype)
    tall = x.size(-2) > x.size(-1)
    if tall:
        x = x.mT
    x = x / x.norm(dim=(-2, -1), keepdim=True).clamp(min=1e-7)
    for _ in range(NEWTON_SCHULZ_STEPS):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.mT if tall else x


class Muon(torch.optim.Optimizer):
    """Muon (Jordan et al. 2024): Nesterov momentum, orthogonalised, scaled by sqrt(max(1, rows / columns)).

    `torch.optim.Muon` computes Newton-Schulz in bf16 alone, which a CPU without it does 40-80 times slower than fp32,
    one matrix at a time, and has no cautious decay. Here equal shapes go as one stack, in the dtype given.

    Args:
        params: 2-D parameters.
        dtype: of the Newton-Schulz iteration.
        cautious: decay a weight only where update and weight have the same sign (Chen et al. 2025).
    """

    def __init__(self, params: Iterable[nn.Parameter], *, lr: float, dtype: torch.dtype, cautious: bool) -> None:
        params = list(params)
        for p in params:
            assert p.ndim == 2, f"Muon takes matrices, not shape {tuple(p.shape)}"
        super().__init__(params, {"lr": lr, "momentum": 0.95, "weight_decay": 0.0})
        self._dtype, self._cautious = dtype, cautious
        self.found_inf: Tensor | None = None
        """As fused AdamW's: where it is nonzero, the step leaves the weights alone, without a sync of the device."""

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        assert closure is None
        for group in self.param_groups:
            stacks: dict[torch.Size, list[Tensor]] = {}
            for p in group["params"]:
                if p.grad is not None:
                    stacks.setdefault(p.shape, []).append(p)
            for shape, params in stacks.items():
                self._step_stack(params, shape, group)

    def _step_stack(self, params: list[Tensor], shape: torch.Size, group: dict[str, Any]) -> None:
        mu, lr = group["momentum"], group["lr"]
        for p in params:
            if "momentum_buffer" not in self.state[p]:
                self.state[p]["momentum_buffer"] = torch.zeros_like(p)
        buffers = [self.state[p]["momentum_buffer"] for p in params]
        grads = [p.grad for p in params if p.grad is not None]
        if self.found_inf is not None:
            keep = self.found_inf == 0
            grads = [torch.where(keep, g, 0.0) for g in grads]
            lr = lr * keep
        torch._foreach_lerp_(buffers, grads, 1 - mu)
        nesterov = torch._foreach_lerp(grads, buffers, mu)
        updates = orthogonalise(torch.stack(tuple(nesterov)), self._dtype).to(params[0].dtype)
        scale = max(1.0, shape[0] / shape[1]) ** 0.5
        decay = lr * group["weight_decay"]
        for p, update in zip(params, updates, strict=True):
            if group["weight_decay"]:
                where = update * p > 0 if self._cautious else 1.0
                p.mul_(1 - decay * where)
            p.sub_(update * (lr * scale))


def parameter_groups(model: GPT) -> dict[str, list[nn.Parameter]]:
    """The parameters by role: hidden, embedding, head, scalar. They must partition the model (AssertionError)."""
    groups = {
        "hidden": list(model.blocks.parameters()),
        "embedding": [*model.embedding.parameters(), *model.value_embeddings.parameters()],
        "head": list(model.head.parameters()),
        "scalar": [model.residual_gains, model.input_gains],
    }
    ids = [id(p) for group in groups.values() for p in group]
    assert sorted(ids) == sorted(id(p) for p in model.parameters()), "optimizer groups must partition the parameters"
    return groups


def build_optimizers(model: GPT, config: TrainConfig, plan: Plan) -> list[torch.optim.Optimizer]:
    """Optimizers whose groups carry `peak_lr` and `decays`; `set_schedule` gives them their values before each step."""
    groups = parameter_groups(model)
    peaks = plan.peak_lrs
    device = next(model.parameters()).device
    optim = config.optim
    muon_dtype = torch.bfloat16 if config.precision == "bf16" else torch.float32
    optimizers: list[torch.optim.Optimizer] = []
    if optim.optimizer == "muon":
        optimizers.append(Muon(groups.pop("hidden"), lr=peaks.hidden, dtype=muon_dtype, cautious=optim.cautious))
        _mark(optimizers[0].param_groups[0], peaks.hidden, decays=True)
    adamw = torch.optim.AdamW(
        [{"params": params, "role": role} for role, params in groups.items()],
        lr=peaks.hidden,
        betas=(optim.beta1, plan.beta2),
        eps=optim.eps,
        weight_decay=0.0,
        fused=device.type in ("cuda", "cpu"),
    )
    for group in adamw.param_groups:
        # AdamW beside Muon decays nothing; alone it decays the 2-D weights.
        _mark(group, _peak(peaks, group["role"]), decays=optim.optimizer == "adamw" and group["role"] != "scalar")
    optimizers.append(adamw)
    return optimizers


def _peak(peaks: PeakLRs, role: str) -> float:
    return {"hidden": peaks.hidden, "embedding": peaks.embedding, "head": peaks.head, "scalar": peaks.scalar}[role]


def _mark(group: dict[str, Any], peak_lr: float, *, decays: bool) -> None:
    group["peak_lr"], group["decays"] = peak_lr, decays


def set_schedule(
    optimizers: list[torch.optim.Optimizer], config: TrainConfig, plan: Plan, budget: Budget | None, step: int
) -> float:
    """Give every group its LR, weight decay and momentum of a step; returns the LR of the hidden matrices."""
    multiplier = lr_multiplier(config, plan, budget, step)
    decay = weight_decay(plan, budget, step)
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = group["peak_lr"] * multiplier
            group["weight_decay"] = decay if group["decays"] else 0.0
            if "momentum" in group:
                group["momentum"] = momentum(config, step)
    return plan.peak_lrs.hidden * multiplier
