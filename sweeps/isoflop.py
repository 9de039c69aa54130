"""The sweep at constant compute: python -m sweeps.isoflop --depths 2 3 4 --flops 2e11 4e11 8e11"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import tyro

from sweeps.grid import Grid
from sweeps.options import SweepOptions, fill, horizons
from tinyllm.flags import Absent


@dataclass(frozen=True, kw_only=True)
class IsoFlop(SweepOptions):
    """Train model sizes at equal compute: each depth is trained on as many tokens as a budget of FLOPs buys it.

    The loss over size at one budget is the parabola whose minimum is the compute-optimal size. FLOPs are exact: forward
    and backward, output head and attention included. All budgets of a (depth, LR, seed) are branches of one trunk.
    The same command again runs only what is missing, however the sweep ended.
    """

    depths: Absent[tuple[int, ...]] = None
    """Model sizes, by number of layers. Default: the preset's."""
    lrs: Absent[tuple[float, ...]] = None
    """Peak LRs of the hidden matrices, applied as given. Default: the preset's."""
    flops: Annotated[tuple[str, ...], tyro.conf.arg(aliases=["--budgets"])] = ("2e11", "4e11", "8e11")
    """Budgets in FLOPs: 1e17, or 100P."""

    def grid(self) -> Grid:
        return fill(self, depths=self.depths, lrs=self.lrs, budgets=horizons("--budgets", self.flops, "flops"))


if __name__ == "__main__":
    from sweeps.entry import main

    main(IsoFlop)
