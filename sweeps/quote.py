"""What a sweep will take: tokens, FLOPs, device-hours and money of each trial, before anything starts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from rich.table import Table

from sweeps.grid import Device, Refused, Trial
from tinyllm.horizon import Horizon

# Share of a GPU's peak that is taken for granted where nothing was measured.
ASSUMED_MFU = 0.4
# One CPU core with the small models of the smoke grid: `python -m sweeps.depth_grid --preset smoke --probe --dry-run`.
ASSUMED_CPU_TFLOPS = 0.02


@dataclass(frozen=True, kw_only=True)
class Speed:
    """TFLOP/s of one device, and where the number is from."""

    tflops: float
    source: str
    by_depth: Mapping[int, float] = field(default_factory=dict)
    """Measured, for some depths."""

    def of(self, depth: int) -> float:
        return self.by_depth.get(depth, self.tflops)


def assumed_speed(device: Device) -> Speed:
    """A guess for planning: a share of the peak, or a plain figure for a CPU core or an unknown chip."""
    if device.peak_tflops is not None:
        tflops = ASSUMED_MFU * device.peak_tflops
        return Speed(tflops=tflops, source=f"assumed: {ASSUMED_MFU:.0%} of the peak of {device.name}")
    what = "a CPU core" if device.kind == "cpu" else f"{device.name}, whose peak is not known"
    return Speed(tflops=ASSUMED_CPU_TFLOPS, source=f"assumed for {what}")


@dataclass(frozen=True, kw_only=True)
class Quote:
    """The price of one trial."""

    trial: Trial
    devices: float
    tokens: int
    """Trained on: trunk and branches."""
    flops: float
    device_hours: float
    cost: float | None
    """In the currency of --price; None where no price was given."""


def quote(trial: Trial, speed: Speed, *, devices: float = 1, price: float | None = None) -> Quote:
    """Price of a trial: training, and an evaluation (the forward third of the FLOPs) at each budget.

    `price` is for one device for an hour. More devices are taken to share the work without loss.
    """
    plan = trial.plan
    flops = plan.trained_flops + evaluation_flops(trial) * len(plan.budgets)
    hours = flops / (speed.of(trial.depth) * 1e12) / 3600
    return Quote(
        trial=trial,
        devices=devices,
        tokens=plan.trained_tokens,
        flops=plan.trained_flops,
        device_hours=hours,
        cost=None if price is None else hours * price,
    )


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
    found = Table(title=f"{len(quotes)} trials; speed {speed.source}", title_justify="left", box=None)
    columns = ["trial", "depth", "lr", *(["seed"] if seeds else []), *paths, "params"]
    columns += ["budgets (tokens)", "trained", "TFLOP", "epochs", "device-h", *(["cost"] if priced else [])]
    for name in columns:
        found.add_column(name, justify="left" if name in ("trial", "budgets (tokens)") else "right", no_wrap=True)
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
            compact(q.tokens),
            f"{q.flops / 1e12:.4g}",
            "-" if epochs is None else f"{epochs:.2g}",
            f"{q.device_hours:.3g}",
            *([f"{q.cost:.2f}"] if q.cost is not None else []),
        )
    return found


def summary(quotes: Sequence[Quote]) -> str:
    """The total in one paragraph: work, price, and the saving against one run a budget."""
    flops = sum(q.flops for q in quotes)
    separate = sum(q.trial.plan.separate_tokens * q.trial.plan.flops_per_token for q in quotes)
    horizons = sum(len(q.trial.plan.budgets) for q in quotes)
    hours, costs = sum(q.device_hours for q in quotes), [q.cost for q in quotes if q.cost is not None]
    price = f", cost {sum(costs):,.2f}" if costs else ""
    return (
        f"Total: {len(quotes)} trials, {horizons} budgets, {flops / 1e12:.4g} TFLOP, {hours:.3g} device-hours{price}; "
        f"early stopping spends less.\n"
        f"One run a budget instead (cosine) would take {separate / 1e12:.4g} TFLOP: "
        f"trunks with branches save {1 - flops / separate if separate else 0:.0%}."
    )


def refused_table(refused: Iterable[Refused]) -> Table:
    """The cells that can't be run; LRs that share a reason in one row."""
    rows: dict[tuple[int, Horizon, str], list[Refused]] = {}
    for cell in refused:
        rows.setdefault((cell.depth, cell.budget, cell.reason), []).append(cell)
    hint = "A setting that a reason names is given here as, e.g., --set optim.total_batch_size=1024."
    title = "Refused: these cells can't be run"
    found = Table(title=title, title_justify="left", caption=hint, caption_justify="left", box=None)
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
