"""`path=value`: values take the type of their field; mistakes are named."""

from __future__ import annotations

from typing import Any

import pytest

from sweeps.settings import Axis, parse_axis, parse_setting


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
