"""Muon against torch's, the groups, and the schedules against their closed forms."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch

from tinyllm.config import CorpusFacts, ModelConfig, OptimConfig, TrainConfig, changed
from tinyllm.horizon import Horizon
from tinyllm.model import build_model
from tinyllm.optim import Muon, build_optimizers, orthogonalise, parameter_groups, set_schedule
from tinyllm.plan import plan, resolve
from tinyllm.schedule import lr_multiplier, momentum, weight_decay

CORPUS = CorpusFacts(name="t", digest="0", vocab_size=64, seq_len=256, train_tokens=None, val_tokens=65536)
TINY = ModelConfig(depth=2, aspect_ratio=16, target_head_dim=16)


def config(**optim: object) -> TrainConfig:
    settings = {"lr": 0.02, "total_batch_size": 2048, "warmup_tokens": 20480, "weight_decay": 0.3, **optim}
    horizons = (Horizon(value=100 * 2048), Horizon(value=200 * 2048))
    if settings.get("schedule") == "cosine":
        horizons = horizons[1:]
    return resolve(TrainConfig(model=TINY, optim=OptimConfig(**settings), horizons=horizons), CORPUS, "fp32")  # type: ignore[arg-type]


@pytest.mark.parametrize("shape", [(3, 16, 16), (2, 8, 32), (4, 32, 8)])
def test_orthogonalise_brings_singular_values_near_one_and_keeps_directions(shape: tuple[int, ...]) -> None:
    g = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    u, _, v = torch.linalg.svd(g, full_matrices=False)
    got = orthogonalise(g, torch.float32)
    in_basis = u.mT @ got @ v.mT
    values = torch.diagonal(in_basis, dim1=-2, dim2=-1)
    assert values.min() > 0.3 and values.max() < 1.3  # Jordan's quintic does not aim at exactly 1
    torch.testing.assert_close(in_basis, torch.diag_embed(values), atol=2e-4, rtol=0)


@pytest.mark.parametrize("shape", [(16, 16), (32, 8), (8, 32)])
def test_muon_takes_the_steps_of_torchs_muon(shape: tuple[int, int]) -> None:
    g = torch.Generator().manual_seed(0)
    start, grads = torch.randn(shape, generator=g), [torch.randn(shape, generator=g) for _ in range(4)]
    ours, theirs = (torch.nn.Parameter(start.clone()) for _ in range(2))
    own = Muon([ours], lr=0.1, dtype=torch.bfloat16, cautious=False)
    own.param_groups[0].update(weight_decay=0.2, momentum=0.9)
    reference = torch.optim.Muon([theirs], lr=0.1, weight_decay=0.2, momentum=0.9)
    for grad in grads:
        ours.grad, theirs.grad = grad.clone(), grad.clone()
        own.step()
        reference.step()
    # both iterate in bf16: three digits
    torch.testing.assert_close(ours, theirs, rtol=0.02, atol=0.01)
    assert (ours - start).abs().max() > 0.1


def test_stacking_equal_shapes_changes_nothing() -> None:
    g = torch.Generator().manual_seed(0)
    starts = [torch.randn(8, 8, generator=g) for _ in range(3)]
    grads = [torch.randn(8, 8, generator=g) for _ in range(3)]
    together = [torch.nn.Parameter(s.clone()) for s in starts]
    for p, grad in zip(together, grads, strict=True):
        p.grad = grad.clone()
    Muon(together, lr=0.1, dtype=torch.float32, cautious=True).step()
    for start, grad, p in zip(starts, grads, together, strict=True):
        alone = torch.nn.Parameter(start.clone())
        alone.grad = grad.clone()
        Muon([alone], lr=0.1, dtype=torch.float32, cautious=True).step()
        torch.testing.assert_close(alone, p, rtol=1e-5, atol=1e-6)


def test_cautious_decay_acts_only_where_the_update_shrinks_the_weight() -> None:
    start = torch.tensor([[2.0, -2.0], [-2.0, 2.0]])
    moves = {}
    for decay in (0.0, 0.5):
        p = torch.nn.Parameter(start.clone())
        p.grad = torch.eye(2)
        muon = Muon([p], lr=0.1, dtype=torch.float32, cautious=True)
        muon.param_groups[0]["weight_decay"] = decay
        muon.step()
        moves[decay] = p.detach()
    shrunk = moves[0.0] - moves[0.5]
    # the update of the diagonal is positive: (0,0) and (1,1) weights are positive and shrink by lr * decay * 2
    assert shrunk[0, 0].item() == pytest.approx(0.1, rel=1e-5)
    assert shrunk[1, 1].item() == pytest.approx(0.1, rel=1e-5)
    assert shrunk[0, 1].item() == 0


def test_found_inf_leaves_the_weights_alone() -> None:
    start = torch.randn(8, 8, generator=torch.Generator().manual_seed(0))
    p = torch.nn.Parameter(start.clone())
    p.grad = torch.full((8, 8), torch.nan)
    muon = Muon([p], lr=0.1, dtype=torch.float32, cautious=True)
    muon.param_groups[0]["weight_decay"] = 0.5
    muon.found_inf = torch.tensor(1.0)
    muon.step()
    assert torch.equal(p.detach(), start)


def test_groups_partition_the_parameters() -> None:
    model = build_model(config().model, 0, torch.device("cpu"))
    groups = parameter_groups(model)
    assert sum(p.numel() for g in groups.values() for p in g) == config().model.counts.total
    model.extra = torch.nn.Linear(2, 2)
    with pytest.raises(AssertionError, match="partition"):
        parameter_groups(model)


def test_each_group_has_its_lr_and_decay() -> None:
    c = config()
    p = plan(c)
    optimizers = build_optimizers(build_model(c.model, 0, torch.device("cpu")), c, p)
    set_schedule(optimizers, c, p, None, 50)
    by_role = {g.get("role", "hidden"): g for o in optimizers for g in o.param_groups}
    assert {role: g["lr"] for role, g in by_role.items()} == dataclasses.asdict(p.peak_lrs)
    assert {role: g["weight_decay"] for role, g in by_role.items()} == {
        "hidden": 0.3, "embedding": 0.0, "head": 0.0, "scalar": 0.0,
    }  # fmt: skip
    c = config(optimizer="adamw")
    p = plan(c)
    (adamw,) = build_optimizers(build_model(c.model, 0, torch.device("cpu")), c, p)
    set_schedule([adamw], c, p, None, 50)
    decays = {g["role"]: g["weight_decay"] for g in adamw.param_groups}
    assert decays == {"hidden": 0.3, "embedding": 0.3, "head": 0.3, "scalar": 0.0}


def test_wsd_by_hand() -> None:
    c = config()
    p = plan(c)
    first, second = p.budgets
    assert [lr_multiplier(c, p, None, s) for s in (0, 4, 9, 10, 150)] == pytest.approx([0.1, 0.5, 1, 1, 1])
    assert (first.fork_step, first.steps) == (80, 100)
    assert lr_multiplier(c, p, first, 80) == 1
    assert lr_multiplier(c, p, first, 90) == pytest.approx(0.5)
    assert lr_multiplier(c, p, first, 99) == pytest.approx(0.05)
    assert lr_multiplier(c, p, second, 180) == pytest.approx(0.5)
    assert weight_decay(p, None, 150) == 0.3
    assert weight_decay(p, first, 90) == pytest.approx(0.15)
    assert momentum(c, 0) == 0.85
    assert momentum(c, 150) == pytest.approx(0.9)
    assert momentum(c, 5000) == 0.95


@pytest.mark.parametrize(("shape", "half"), [("linear", 0.5), ("1-sqrt", 1 - math.sqrt(0.5)), ("cosine", 0.5)])
def test_decay_shapes_fall_to_the_floor(shape: str, half: float) -> None:
    c = config(decay_shape=shape, final_lr_fraction=0.1)
    p = plan(c)
    assert lr_multiplier(c, p, p.budgets[0], 90) == pytest.approx(0.1 + 0.9 * half)
    assert lr_multiplier(c, p, p.budgets[0], 100) == pytest.approx(0.1)
    values = [lr_multiplier(c, p, p.budgets[0], s) for s in range(80, 100)]
    assert values == sorted(values, reverse=True)


def test_cosine_over_the_whole_run() -> None:
    c = config(schedule="cosine", final_lr_fraction=0.1)
    p = plan(c)
    (only,) = p.budgets
    assert only.fork_step == only.steps == 200
    assert lr_multiplier(c, p, None, 105) == pytest.approx(0.1 + 0.9 * 0.5)
    assert lr_multiplier(c, p, None, 199) == pytest.approx(0.1, abs=1e-3)


def test_what_a_trunk_shares_does_not_move_when_horizons_do() -> None:
    few, many = config(), changed(config(), "horizons", (*config().horizons, Horizon(value=800 * 2048)))
    a, b = plan(few), plan(many)
    assert [(lr_multiplier(few, a, None, s), weight_decay(a, None, s)) for s in range(160)] == [
        (lr_multiplier(many, b, None, s), weight_decay(b, None, s)) for s in range(160)
    ]
