"""The flags that every sweep has; the field docstrings are the help."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Literal

import tyro

from sweeps import grids
from sweeps.grid import Grid
from sweeps.limit import Limit
from sweeps.resources import Resources
from sweeps.settings import parse_axis, parse_setting
from tinyllm import storage
from tinyllm.config import changed
from tinyllm.flags import Absent
from tinyllm.horizon import Horizon, Unit, parse_quantity
from tinyllm.options import RunOptions
from tinyllm.presets import on_corpus

# None by default, of which --help says nothing.
Texts = Annotated[tuple[str, ...], tyro.conf.arg(help_behavior_hint="")]


@dataclass(frozen=True, kw_only=True)
class SweepOptions:
    """What is common to all sweeps."""

    preset: str = "smoke"
    """Grid whose models, batch and defaults are taken: smoke (minutes on a CPU), base (GPUs), or module:function."""
    name: str = "sweep"
    """Name of the sweep: all of it lies in STORAGE/NAME."""
    storage: str = "out"
    """Local directory or URI (s3://bucket/dir); on a cluster, a place that every node reaches."""
    data: Absent[str] = None
    """Prepared corpus (directory or URI) or a built-in one (sotu, zipf). Default: $TINYLLM_DATA, else sotu."""
    seeds: tuple[int, ...] = (0,)
    """A trial for each: weights and order of the data."""
    axis: Texts = ()
    """More dimensions of the grid, any field of a trial's config: optim.weight_decay=0.1,0.2"""
    set: Texts = ()
    """Fixed fields of every trial's config: optim.total_batch_size=4096 data.eval_tokens=16384"""
    separate_trunks: bool = False
    """One trial a budget, with the batch its rule gives for that budget: checks what sharing a trunk costs."""

    dry_run: bool = False
    """Print the plan and the price and start nothing."""
    address: str = "auto"
    """Ray: auto = join the cluster running here, else start one; local = start one; HOST:PORT = join."""
    probe: bool = False
    """Measure the speed of each depth by a few real steps, for the price; else it is assumed."""
    price: Absent[float] = None
    """Price of a device (GPU, else trial slot) for an hour."""
    max_gpu_hours: Absent[float] = None
    """Hard stop of the sweep, in device-hours over all its sessions: trials save their state and end."""
    max_cost: Absent[float] = None
    """The same in money; needs --price."""
    slots: Absent[int] = None
    """Trials at once. Default: as many as the cluster holds; give it where a cluster grows on demand."""
    workers: Texts = ()
    """Workers a trial by depth, DEPTH=WORKERS; a depth takes the entry at or below it. Default: one."""
    cpus_per_worker: float = 1
    """CPUs of a worker."""
    gpus_per_worker: Absent[float] = None
    """GPUs of a worker. Default: 1 where the cluster has GPUs, else 0."""

    early_stop: bool = True
    """ASHA within a size: after each budget the worse LRs stop. The best and its neighbours always go on."""
    asha: Literal["auto", "by-rung", "async"] = "auto"
    """by-rung = judge the LRs of a size together; async = each on arrival; auto = by-rung where slots are few."""
    reduction_factor: int = 2
    """Each budget keeps the best 1/FACTOR of the LRs."""
    retry_stopped: bool = False
    """Also go on with trials that early stopping ended. (Failed ones are always retried.)"""

    run: Annotated[RunOptions, tyro.conf.arg(name="")] = field(default_factory=RunOptions)

    def __post_init__(self) -> None:
        """Raises ValueError for what no cluster could run: a dry run accepts nothing that a sweep would not."""
        _ = self.limit, self.root
        self.resources(depth=1, on_gpu=False)
        workers = self._workers_by_depth()
        if any(n < 1 for n in workers.values()):
            raise ValueError(f"--workers {' '.join(self.workers)}: a trial has at least one worker")
        for depth in workers:
            self.resources(depth, on_gpu=False)
        for flag, value in (("resume-from", self.run.resume_from), ("stop-after", self.run.stop_after)):
            if value is not None:
                raise ValueError(f"--{flag} {value} is for a single run: a sweep goes on by itself")
        if self.slots is not None and self.slots < 1:
            raise ValueError(f"--slots {self.slots}: at least one trial runs at a time")
        if self.reduction_factor < 2:
            raise ValueError(
                f"--reduction-factor {self.reduction_factor}: at least 2, or --no-early-stop to stop nobody"
            )
        for seed in self.seeds:
            if not 0 <= seed < 2**63:
                raise ValueError(f"--seeds {seed}: a seed is a whole number from 0 to 2^63 - 1")

    def grid(self) -> Grid:
        """The grid that the flags of an entry point ask for."""
        raise NotImplementedError

    @property
    def root(self) -> str:
        """Absolute path or URI of the sweep. Raises ValueError on a name that would lie elsewhere."""
        return storage.absolute(storage.named(self.storage, self.name, flag="--storage"))

    @property
    def limit(self) -> Limit:
        """The hard stop."""
        return Limit(gpu_hours=self.max_gpu_hours, cost=self.max_cost, price=self.price)

    def resources(self, depth: int, *, on_gpu: bool) -> Resources:
        """What a trial of that depth asks for."""
        gpus = self.gpus_per_worker if self.gpus_per_worker is not None else float(on_gpu)
        at = [d for d in self._workers_by_depth() if d <= depth]
        workers = self._workers_by_depth()[max(at)] if at else 1
        return Resources(workers=workers, cpus=self.cpus_per_worker, gpus=gpus)

    def _workers_by_depth(self) -> dict[int, int]:
        found: dict[int, int] = {}
        for text in self.workers:
            depth, equals, number = text.partition("=")
            if not (equals and depth.isdigit() and number.isdigit()):
                raise ValueError(f"--workers {text!r}: write DEPTH=WORKERS, e.g. 12=2 24=8")
            if int(depth) in found:
                raise ValueError(f"--workers {' '.join(self.workers)}: depth {depth} stands twice")
            found[int(depth)] = int(number)
        return found


def fill(
    options: SweepOptions,
    *,
    depths: Sequence[int] | None = None,
    lrs: Sequence[float | None] | None = None,
    budgets: Sequence[Horizon] | None = None,
) -> Grid:
    """The preset's grid with what was given instead of its own. Raises ValueError on a setting that is not one."""
    grid = grids.named(options.preset)
    base = on_corpus(grid.base, options.data)
    for text in options.set:
        base = changed(base, *parse_setting(text))
    return replace(
        grid,
        base=base,
        depths=grid.depths if depths is None else tuple(depths),
        lrs=grid.lrs if lrs is None else tuple(lrs),
        budgets=grid.budgets if budgets is None else tuple(budgets),
        seeds=options.seeds,
        axes=(*grid.axes, *(parse_axis(text) for text in options.axis)),
        separate_trunks=options.separate_trunks,
    )


def horizons(flag: str, texts: Sequence[str] | None, unit: Unit) -> list[Horizon] | None:
    """'200k' '1.5M' in some unit; None stays None. Raises ValueError that names the flag for what is no quantity."""
    try:
        return None if texts is None else [Horizon(value=parse_quantity(t), unit=unit) for t in texts]
    except ValueError as error:
        raise ValueError(f"{flag} {error}") from None
