"""Grids worked out: which trials, which refusals, which tokens; against counts made by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sweeps import grids
from sweeps.depth_grid import DepthGrid
from sweeps.grid import Device, Grid, expand
from sweeps.options import SweepOptions, fill
from sweeps.settings import Axis
from tinyllm.config import CorpusFacts, ModelConfig, OptimConfig, TrainConfig, changed
from tinyllm.horizon import Horizon

CORPUS = CorpusFacts(name="c", digest="0", vocab_size=256, seq_len=64, train_tokens=1_000_000, val_tokens=65_536)
CPU = Device(kind="cpu", name="a CPU", precision="fp32", memory_bytes=None, peak_tflops=None)
BASE = TrainConfig(
    model=ModelConfig(aspect_ratio=16, target_head_dim=16),
    optim=OptimConfig(total_batch_size=512, warmup_tokens=1024),
)


def grid(**changes: object) -> Grid:
    given = {"base": BASE, "depths": (2, 1), "lrs": (0.01, 0.02), "budgets": tokens(50_000, 100_000)}
    return Grid(**{**given, **changes})  # type: ignore[arg-type]


def tokens(*values: float) -> tuple[Horizon, ...]:
    return tuple(Horizon(value=v) for v in values)


def test_every_combination_is_one_trial_with_all_budgets_and_the_largest_come_first() -> None:
    cells = expand(grid(seeds=(0, 1), axes=(Axis(path="optim.beta1", values=(0.8, 0.9)),)), CORPUS, CPU)
    assert len(cells.trials) == 2 * 2 * 2 * 2
    assert cells.refused == ()
    assert [t.depth for t in cells.trials] == [2] * 8 + [1] * 8
    assert {len(t.plan.budgets) for t in cells.trials} == {2}
    assert {t.axes for t in cells.trials} == {(("optim.beta1", 0.8),), (("optim.beta1", 0.9),)}
    assert len({t.config.group for t in cells.trials}) == 2 * 2 * 2


def test_an_isoflop_budget_gives_each_depth_its_own_tokens() -> None:
    cells = expand(grid(budgets=(Horizon(value=2e10, unit="flops"),)), CORPUS, CPU)
    for trial in cells.trials:
        (budget,) = trial.plan.budgets
        assert budget.flops == pytest.approx(2e10, rel=512 * trial.config.model.flops_per_token / 2e10)
    by_depth = {t.depth: t.plan.budgets[0].tokens for t in cells.trials}
    assert by_depth[2] < by_depth[1]


def test_a_grid_of_ones_own_is_a_function_named_on_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = "from sweeps import grids\nfrom dataclasses import replace\n"
    source += "def deep():\n    return replace(grids.smoke(), depths=(7,))\n"
    (tmp_path / "my_grids.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    assert DepthGrid(preset="my_grids:deep").grid().depths == (7,)
    assert DepthGrid(preset="my_grids:deep", depths=(3,)).grid().depths == (3,)
    with pytest.raises(ValueError, match="--preset large: take one of smoke, base, or module:function"):
        DepthGrid(preset="large").grid()
    with pytest.raises(ValueError, match=r"--preset my_grids:wide: .*has no attribute 'wide'"):
        DepthGrid(preset="my_grids:wide").grid()


def test_a_single_model_of_the_smoke_preset_takes_an_lr_of_its_grid() -> None:
    """Not the rule's .00125, tuned for models twenty times as wide."""
    assert grids.smoke().base.optim.lr in grids.smoke().lrs
    trials = expand(grids.smoke(), replace(CORPUS, vocab_size=1024, seq_len=256, train_tokens=3_000_000), CPU).trials
    assert {t.lr for t in trials} == set(grids.smoke().lrs)


def test_cells_that_cannot_be_run_are_refused_with_the_reason_and_the_rest_goes_on() -> None:
    cells = expand(grid(lrs=(0.01,), budgets=tokens(5_000, 50_000, 5_000_000)), CORPUS, CPU)
    assert [[b.tokens for b in t.plan.budgets] for t in cells.trials] == [[49_664]] * 2
    reasons = {(r.depth, r.budget.value): r.reason for r in cells.refused}
    assert len(reasons) == 4
    assert "4,608 tokens leave 2 steps of decay, at least 5 are needed" in reasons[1, 5_000]
    assert "passes 5 times over the 1,000,000 tokens of corpus 'c', more than 4" in reasons[2, 5_000_000]


def test_a_model_that_does_not_fit_the_device_is_refused() -> None:
    gpu = Device(kind="cuda", name="small GPU", precision="bf16", memory_bytes=2_000_000, peak_tflops=1.0)
    cells = expand(grid(depths=(1, 8), lrs=(0.01,)), CORPUS, gpu)
    assert {t.depth for t in cells.trials} == {1}
    assert {r.depth for r in cells.refused} == {8}
    assert "the device (small GPU) has 0.0 GB" in cells.refused[0].reason


def test_precision_is_the_devices() -> None:
    gpu = Device(kind="cuda", name="GPU", precision="bf16", memory_bytes=None, peak_tflops=1.0)
    on_gpu, on_cpu = (expand(grid(lrs=(0.01,)), CORPUS, device).trials[0] for device in (gpu, CPU))
    assert (on_gpu.config.precision, on_cpu.config.precision) == ("bf16", "fp32")
    assert on_gpu.run_id != on_cpu.run_id


def test_cosine_and_separate_trunks_take_one_trial_a_budget() -> None:
    cosine = expand(grid(base=changed(BASE, "optim.schedule", "cosine"), depths=(1,)), CORPUS, CPU)
    assert [len(t.plan.budgets) for t in cosine.trials] == [1] * 4
    by_rule = changed(BASE, "optim.total_batch_size", None)
    separate = expand(grid(base=by_rule, depths=(2,), budgets=tokens(5e5, 2e6), separate_trunks=True), CORPUS, CPU)
    assert len({t.run_id for t in separate.trials}) == 4
    small, large = sorted({t.plan.batch_tokens for t in separate.trials})
    assert small < large


def test_a_grid_says_what_is_missing_or_twice_in_it() -> None:
    with pytest.raises(ValueError, match="the grid has no lrs"):
        grid(lrs=())
    with pytest.raises(ValueError, match="--depths holds a value twice: 2 2"):
        grid(depths=(2, 2))
    with pytest.raises(ValueError, match="the same trial"):
        expand(grid(axes=(Axis(path="data.max_epochs", values=(3.0, 4.0)),)), CORPUS, CPU)


@pytest.mark.parametrize(("flags", "vocab_size"), [
    ({}, 1024),
    ({"data": "sotu"}, 1024),
    ({"data": "zipf:V=256,s=1.5"}, None),
    ({"data": "/corpus"}, None),
    ({"data": "/corpus", "set": ("model.vocab_size=512",)}, 512),
])  # fmt: skip
def test_a_corpus_that_is_given_brings_its_own_vocabulary(flags: dict[str, Any], vocab_size: int | None) -> None:
    assert fill(SweepOptions(**flags)).base.model.vocab_size == vocab_size
