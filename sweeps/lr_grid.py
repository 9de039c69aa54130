"""The sweep over learning rates: python -m sweeps.lr_grid --depths 3 --center 0.04 --factor 2 --count 5"""

from __future__ import annotations

from dataclasses import dataclass

from sweeps.grid import Grid
from sweeps.options import SweepOptions, fill, horizons
from tinyllm.flags import Absent
from tinyllm.horizon import Unit


@dataclass(frozen=True, kw_only=True)
class LrGrid(SweepOptions):
    """Find the learning rate of a few sizes: LRs in equal ratios around a centre, all trained to the end.

    Nobody is stopped early unless --early-stop says so, so that the whole curve of loss over LR is seen.
    The same command again runs only what is missing, however the sweep ended.
    """

    early_stop: bool = False
    """ASHA within a size: after each budget the worse LRs stop. The best and its neighbours always go on."""
    depths: Absent[tuple[int, ...]] = None
    """Model sizes, by number of layers. Default: the preset's."""
    center: float = 0.02
    """The LR in the middle: peak of the hidden matrices, applied as given."""
    factor: float = 2.0
    """Ratio of neighbouring LRs."""
    count: int = 5
    """How many LRs."""
    budgets: Absent[tuple[str, ...]] = None
    """How long to train: 200k, 1.5M, 2B ... of --unit. Default: the preset's."""
    unit: Unit = "tokens"
    """Unit of --budgets; tokens_per_param counts the parameters with the output head."""

    def grid(self) -> Grid:
        if self.factor <= 1 or self.count < 1:
            raise ValueError(f"--factor {self.factor:g} must be above 1 and --count {self.count} at least 1")
        lrs = [self.center * self.factor ** (i - (self.count - 1) / 2) for i in range(self.count)]
        return fill(self, depths=self.depths, lrs=lrs, budgets=horizons("--budgets", self.budgets, self.unit))


if __name__ == "__main__":
    from sweeps.entry import main

    main(LrGrid)
