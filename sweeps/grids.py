"""Named grids: plain functions. Add one by writing one and naming it in GRIDS, or give --preset module:function."""

from __future__ import annotations

import importlib
from collections.abc import Callable

from sweeps.grid import Grid
from tinyllm import presets
from tinyllm.horizon import Horizon


def smoke() -> Grid:
    """3 depths x 5 LRs x 4 budgets, 9.1 TFLOP: minutes on two CPU cores.

    On the built-in text the best LR is inside the grid at each size and budget, and the best size at the compute in
    between is neither the smallest nor the largest: budgets of 400 thousand tokens at most favour depth 2 over 3 and 4.
    """
    return Grid(
        base=presets.smoke(),
        depths=(1, 2, 3),
        lrs=(0.01, 0.02, 0.04, 0.08, 0.16),
        budgets=tuple(Horizon(value=v) for v in (100_000, 200_000, 400_000, 800_000)),
    )


def base() -> Grid:
    """A first ladder on GPUs: depths 4 to 12, 5 to 40 tokens a parameter."""
    return Grid(
        base=presets.base(),
        depths=(4, 6, 8, 10, 12),
        lrs=(0.01, 0.014, 0.02, 0.028, 0.04),
        budgets=tuple(Horizon(value=v, unit="tokens_per_param") for v in (5, 10, 20, 40)),
    )


GRIDS: dict[str, Callable[[], Grid]] = {"smoke": smoke, "base": base}


def named(name: str) -> Grid:
    """The grid of that name, or of `module:function`. Raises ValueError listing the names there are."""
    if name in GRIDS:
        return GRIDS[name]()
    module, colon, function = name.partition(":")
    if not colon:
        raise ValueError(f"--preset {name}: take one of {', '.join(GRIDS)}, or module:function that returns a Grid")
    try:
        return getattr(importlib.import_module(module), function)()
    except (ImportError, AttributeError) as error:
        raise ValueError(f"--preset {name}: {error}") from error
