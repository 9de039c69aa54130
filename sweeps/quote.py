"""What a sweep will take: tokens, FLOPs, device-hours and money of each trial, before anything starts."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from rich.table import Table

from sweeps.grid import Device, Refused, Trial
from sweeps.resources import Resources
from tinyllm.horizon import Horizon

# Share of a GPU's peak that is taken for granted where nothing was measured.
ASSUMED_MFU = 0.4
# One CPU core with the small models of the smoke grid: `python -m sweeps.depth_grid --preset smoke --probe --dry-run`.
ASSUMED_CPU_TFLOPS = 0.02


@dataclass(frozen=True, kw_only=True)
class Startup:
    """Seconds before a trial trains, of each of its devices.

    The defaults, from the Tune results (tune/*/result.json) of sweeps of the smoke grid on 2 CPU cores with loads of 3
    to 8: 7 to 14 s until a new process asks whether it may train, and 2 to 5 s more for its first steps than for later
    ones; in a process that is used again 1 s, of which .003 s before it asks.
    """

    slot: float = 14.0
    """A slot's process, which later trials use again."""
    trial: float = 1.0
    """A trial in such a process."""
    group: float = 25.0
    """More for a trial of several workers, which have processes of their own: 51 CPU-s for two, 31 s at a load of 8."""


@dataclass(frozen=True, kw_only=True)
class Speed:
    """TFLOP/s of one device, and where the number is from."""

    tflops: float
    """Assumed."""
    source: str
    """Of the assumption."""
    by_depth: Mapping[int, float] = field(default_factory=dict)
    """Measured, for some depths: by a probe, or by trials of this sweep."""

    def of(self, depth: int) -> float:
        """A depth that was not measured is taken for as fast as the nearest that was."""
        if not self.by_depth:
            return self.tflops
        return self.by_depth[min(self.by_depth, key=lambda d: (abs(d - depth), d))]

    def __str__(self) -> str:
        if not self.by_depth:
            return f"speed assumed, {rate(self.tflops)} for {self.source}: --probe measures it"
        found = ", ".join(f"{rate(tflops)} at depth {d}" for d, tflops in sorted(self.by_depth.items()))
        return f"speed measured, {found}"


def assumed_speed(device: Device) -> Speed:
    """A guess for planning: a share of the peak, or a plain figure for a CPU core or an unknown chip."""
    if device.peak_tflops is not None:
        tflops = ASSUMED_MFU * device.peak_tflops
        return Speed(tflops=tflops, source=f"{device.name} at {ASSUMED_MFU:.0%} of its peak")
    what = "a CPU core" if device.kind == "cpu" else f"{device.name}, whose peak is not known"
    return Speed(tflops=ASSUMED_CPU_TFLOPS, source=what)


def rate(tflops: float) -> str:
    """.02 -> '20 GFLOP/s'."""
    return f"{tflops:.3g} TFLOP/s" if tflops >= 1 else f"{tflops * 1e3:.3g} GFLOP/s"


@dataclass(frozen=True, kw_only=True)
class Quote:
    """The price of what is left to do of one trial."""

    trial: Trial
    device_seconds: Mapping[int, float]
    """By planned tokens of each budget that is to be run; start-up is charged to the first."""
    price: float | None
    """Of a device for an hour; None where none was given."""
    note: str = ""
    """What became of the other budgets."""

    @property
    def flops(self) -> float:
        """Of training."""
        indices = {b.tokens: i for i, b in enumerate(self.trial.plan.budgets)}
        return sum(segment_flops(self.trial, indices[tokens]) for tokens in self.device_seconds)

    @property
    def tokens(self) -> int:
        """Trained on: trunk and branches."""
        return round(self.flops / self.trial.plan.flops_per_token)

    @property
    def device_hours(self) -> float:
        return sum(self.device_seconds.values()) / 3600

    @property
    def first_hours(self) -> float:
        """Device-hours of the first budget that is to be run."""
        return next(iter(self.device_seconds.values())) / 3600

    @property
    def cost(self) -> float | None:
        return None if self.price is None else self.device_hours * self.price


def quote(
    trial: Trial,
    speed: Speed,
    *,
    startup: float = 0.0,
    price: float | None = None,
    budgets: Collection[int] | None = None,
    note: str = "",
) -> Quote:
    """Price of a trial: start-up, training, and an evaluation (the forward third of the FLOPs) at each budget.

    More devices are taken to share the work without loss.

    Args:
        startup: device-seconds before it trains (`startup_seconds`).
        price: of one device for an hour.
        budgets: planned tokens of those that are to be run; all by default.
    """
    left = [(i, b.tokens) for i, b in enumerate(trial.plan.budgets) if budgets is None or b.tokens in budgets]
    seconds = {tokens: segment_seconds(trial, i, speed) for i, tokens in left}
    if left:
        seconds[left[0][1]] += startup
    return Quote(trial=trial, device_seconds=seconds, price=price, note=note)


def startup_seconds(startup: Startup, resources: Resources, *, trials: int, slots: int) -> float:
    """Device-seconds of a trial's start-up, and its share of the start-up of the slots' processes."""
    own = startup.trial + (startup.group if resources.workers > 1 else 0.0)
    return resources.devices * (own + startup.slot * min(1.0, slots / trials))


def segment_seconds(trial: Trial, budget_index: int, speed: Speed) -> float:
    """Device-seconds of training to a budget and of its evaluation."""
    return (segment_flops(trial, budget_index) + evaluation_flops(trial)) / (speed.of(trial.depth) * 1e12)


def evaluation_flops(trial: Trial) -> float:
    """FLOPs of one evaluation: forward is a third of a trained token's."""
    facts = trial.config.corpus
    assert facts is not None
    return min(trial.config.data.eval_tokens, facts.val_tokens) * trial.plan.flops_per_token / 3


def segment_flops(trial: Trial, budget_index: int) -> float:
    """FLOPs of training from one budget's fork (or the start) to the next, and of the decay from there."""
    budgets = trial.plan.budgets
    start = budgets[budget_index - 1].fork_step if budget_index else 0
    steps = budgets[budget_index].steps - start
    return steps * trial.plan.batch_tokens * trial.plan.flops_per_token


def table(quotes: Sequence[Quote], speed: Speed) -> Table:
    """One row a trial, and the sum."""
    paths = [path for path, _ in quotes[0].trial.axes] if quotes else []
    seeds = len({q.trial.config.seed for q in quotes}) > 1
    priced = any(q.cost is not None for q in quotes)
    noted = any(q.note for q in quotes)
    found = Table(title=f"{len(quotes)} trials; {speed}", title_justify="left", box=None)
    columns = ["trial", "depth", "lr", *(["seed"] if seeds else []), *paths, "params"]
    columns += ["budgets (tokens)", *(["so far"] if noted else []), "to train", "TFLOP", "epochs", "device-h"]
    columns += ["cost"] if priced else []
    for name in columns:
        left = name in ("trial", "budgets (tokens)", "so far")
        found.add_column(name, justify="left" if left else "right", no_wrap=True)
    for q in quotes:
        t = q.trial
        epochs = t.plan.budgets[-1].epochs
        found.add_row(
            t.run_id,
            str(t.depth),
            f"{t.lr:.4g}",
            *([str(t.config.seed)] if seeds else []),
            *(str(value) for _, value in t.axes),
            compact(t.plan.counts.with_head),
            " ".join(compact(b.tokens) for b in t.plan.budgets),
            *([q.note] if noted else []),
            compact(q.tokens),
            f"{q.flops / 1e12:.4g}",
            "-" if epochs is None else f"{epochs:.2g}",
            f"{q.device_hours:.3g}",
            *([f"{q.cost:.2f}"] if q.cost is not None else []),
        )
    return found


def summary(quotes: Sequence[Quote]) -> str:
    """The total in one paragraph: work and price of what is to be run, and what trunks save over one run a budget."""
    planned = sum(len(q.trial.plan.budgets) for q in quotes)
    left = sum(len(q.device_seconds) for q in quotes)
    flops = sum(q.flops for q in quotes)
    hours, costs = sum(q.device_hours for q in quotes), [q.cost for q in quotes if q.cost is not None]
    price = f", cost {sum(costs):,.2f}" if costs else ""
    what = f"{planned} budgets" if left == planned else f"{left} of {planned} budgets to run"
    whole = sum(q.trial.plan.trained_flops for q in quotes)
    separate = sum(q.trial.plan.separate_tokens * q.trial.plan.flops_per_token for q in quotes)
    return (
        f"Total: {len(quotes)} trials, {what}, {flops / 1e12:.4g} TFLOP, {hours:.3g} device-hours{price}, "
        f"start-up and evaluation included.\n"
        f"One run a budget instead (cosine) would take {separate / 1e12:.4g} TFLOP: "
        f"trunks with branches save {1 - whole / separate if separate else 0:.0%} of that."
    )


def refused_table(refused: Iterable[Refused]) -> Table:
    """The cells that can't be run; LRs that share a reason in one row."""
    rows: dict[tuple[int, Horizon, str], list[Refused]] = {}
    for cell in refused:
        rows.setdefault((cell.depth, cell.budget, cell.reason), []).append(cell)
    found = Table(title="Refused: these cells can't be run", title_justify="left", box=None)
    for name in ("depth", "budget", "cells", "reason"):
        found.add_column(name, justify="right" if name == "cells" else "left", overflow="fold")
    for (depth, budget, reason), cells in rows.items():
        found.add_row(str(depth), str(budget), str(len(cells)), reason)
    return found


def compact(value: float) -> str:
    """1234567 -> '1.23M'."""
    for factor, suffix in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if value >= factor:
            return f"{value / factor:.3g}{suffix}"
    return f"{value:.3g}"
