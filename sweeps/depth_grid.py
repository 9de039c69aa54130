"""The sweep over depths: python -m sweeps.depth_grid --depths 2 3 4 --lrs 0.01 0.02 0.04 --budgets 200k 400k 800k"""

from __future__ import annotations

from dataclasses import dataclass

from sweeps.grid import Grid
from sweeps.options import SweepOptions, fill, horizons
from tinyllm.flags import Absent
from tinyllm.horizon import Unit


@dataclass(frozen=True, kw_only=True)
class DepthGrid(SweepOptions):
    """Train a grid of model sizes, learning rates and token budgets over a Ray cluster.

    Each (depth, LR, seed) is one trial that reaches all its budgets: a trunk at constant LR, with a decay branched off
    for each budget. Results are records in STORAGE/NAME/records; `python -m analysis report STORAGE/NAME` reads them.
    The same command again runs only what is missing, however the sweep ended.
    """

    depths: Absent[tuple[int, ...]] = None
    """Model sizes, by number of layers. Default: the preset's."""
    lrs: Absent[tuple[float, ...]] = None
    """Peak LRs of the hidden matrices, applied as given; the other groups follow by ratio. Default: the preset's."""
    budgets: Absent[tuple[str, ...]] = None
    """How long to train: 200k, 1.5M, 2B ... of --unit. Default: the preset's."""
    unit: Unit = "tokens"
    """Unit of --budgets; tokens_per_param counts the parameters with the output head."""

    def grid(self) -> Grid:
        return fill(self, depths=self.depths, lrs=self.lrs, budgets=horizons("--budgets", self.budgets, self.unit))


if __name__ == "__main__":
    from sweeps.entry import main

    main(DepthGrid)
