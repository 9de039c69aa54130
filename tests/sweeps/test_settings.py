"""`path=value`: values take the type of their field; mistakes are named."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest

from sweeps.depth_grid import DepthGrid
from sweeps.isoflop import IsoFlop
from sweeps.lr_grid import LrGrid
from sweeps.settings import Axis, in_a_sweep, parse_axis, parse_setting
from tinyllm.config import DataConfig, ModelConfig, OptimConfig
from tinyllm.options import RunOptions


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("optim.weight_decay=0.1", 0.1),
        ("optim.weight_decay=0", 0.0),
        ("optim.weight_decay=none", None),
        ("optim.total_batch_size=64k", 64_000),
        ("optim.schedule=cosine", "cosine"),
        ("optim.cautious=False", False),
        ("model.window_pattern=SSSL", "SSSL"),
        ("precision=fp32", "fp32"),
        ("model.n_kv_heads=2", 2),
    ],
)
def test_a_value_takes_the_type_of_its_field(text: str, value: Any) -> None:
    parsed = parse_setting(text)[1]
    assert parsed == value
    assert type(parsed) is type(value)


def test_an_axis_holds_several() -> None:
    assert parse_axis("optim.weight_decay=0.1,0.2") == Axis(path="optim.weight_decay", values=(0.1, 0.2))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("optim.weight_decay", "is not PATH=VALUE"),
        ("optim.weight_dekay=1", "OptimConfig has no field 'weight_dekay'; it has optimizer, lr"),
        ("optim=1", "is a whole section: set one of its fields, e.g. optim.optimizer"),
        ("model.depth=3", "model.depth is set by --depths, not here"),
        ("optim.schedule=wds", "take one of wsd, cosine"),
        ("optim.cautious=1", "write true or false"),
        ("optim.total_batch_size=1.5", "a whole number is needed"),
        ("optim.eps=small", "'small' is no quantity"),
    ],
)
def test_mistakes_are_named(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message.replace("(", r"\(")):
        parse_setting(text)


def test_a_message_names_the_flags_of_a_sweep() -> None:
    text = "--total-batch-size 64 with --depth 3: a smaller --lr, --tokens or --max-epochs; --save-every stays"
    assert in_a_sweep(text) == (
        "--set optim.total_batch_size=64 with --depths 3: a smaller --lrs, --budgets or --set data.max_epochs; "
        "--save-every stays"
    )


@pytest.mark.parametrize("entry", [DepthGrid, IsoFlop, LrGrid])
def test_every_flag_that_messages_are_put_into_is_one_of_the_entry_points(entry: type) -> None:
    known = {f"--{f.name.replace('_', '-')}" for kind in (entry, RunOptions) for f in fields(kind)}
    # isoflop takes --budgets as another name of --flops; lr_grid makes its LRs from three flags.
    known |= {"--budgets", "--lrs"}
    named = {word for field in _FIELDS for word in in_a_sweep(_flag(field)).split()}
    assert {word for word in named if word.startswith("--")} <= known


_FIELDS = [f.name for kind in (ModelConfig, OptimConfig, DataConfig) for f in fields(kind)]


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def test_a_budget_that_is_none_is_named_with_its_flag_and_a_form() -> None:
    with pytest.raises(ValueError, match=r"--budgets .nonsense. is no quantity: write e\.g\. 200k"):
        IsoFlop(flops=("nonsense",)).grid()
    with pytest.raises(ValueError, match="--budgets '-1' is not positive"):
        DepthGrid(budgets=("-1",)).grid()
