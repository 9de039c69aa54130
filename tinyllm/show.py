"""What a person sees of a plan and of a run's end: tables for the terminal, and report.md."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from tinyllm import batching, record, storage
from tinyllm.config import TrainConfig
from tinyllm.core_tasks import CoreResult
from tinyllm.plan import Plan
from tinyllm.record import RunRecord

_PLAIN: dict[str, Any] = {"box": None, "pad_edge": False, "padding": (0, 1, 0, 0)}


def human(value: float) -> str:
    """1234567 -> '1.23M'."""
    for factor, suffix in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= factor:
            return f"{value / factor:.3g}{suffix}"
    return f"{value:.3g}"


def duration(seconds: float) -> str:
    """3725 -> '1 h 2 min'."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes, hours = seconds / 60, seconds / 3600
    if minutes < 60:
        return f"{minutes:.0f} min"
    return f"{int(hours)} h {minutes % 60:.0f} min" if hours < 48 else f"{hours / 24:.1f} days"


def plan_tables(config: TrainConfig, plan: Plan, flops_per_second: float | None, speed_source: str) -> list[Table]:
    """The plan as tables: model, training, budgets. `flops_per_second` of the whole node gives the time column.

    No figure is cut in the 80 columns of a plain terminal.
    """
    c, model = plan.counts, config.model
    counts = Table(title=f"{config.run_id}: depth {model.depth}, width {model.width}", title_justify="left")
    counts.add_column("parameters")
    counts.add_column("count", justify="right")
    for name in ("embedding", "value_embedding", "attention", "mlp", "scalars", "head"):
        counts.add_row(name.replace("_", " "), f"{getattr(c, name):,}")
    counts.add_section()
    counts.add_row("total (every parameter)", f"{c.total:,}")
    counts.add_row("with head (N of tokens per parameter)", f"{c.with_head:,}")
    counts.add_row("non-embedding (Kaplan's N)", f"{c.non_embedding:,}")

    lrs = plan.peak_lrs
    settings = Table(title="training", title_justify="left", show_header=False, **_PLAIN)
    settings.add_column()
    settings.add_column(justify="right", no_wrap=True)
    state_bytes = batching.state_bytes(model, config.optim.optimizer)
    row_bytes = batching.activation_bytes(model, config.precision, 1)
    rows = [
        ("heads x head dim (key/value heads)", f"{model.n_heads} x {model.head_dim} ({model.kv_heads})"),
        ("vocabulary, context", f"{model.vocab:,}, {model.context:,}"),
        ("FLOPs a token (forward + backward)", f"{plan.flops_per_token:,.0f}"),
        ("6 x with head / that", f"{6 * c.with_head / plan.flops_per_token:.3f}"),
        ("batch", f"{plan.batch_tokens:,} tokens = {plan.batch_rows} rows"),
        ("warmup", f"{plan.warmup_steps} steps"),
        ("peak LR hidden / embedding / head / scalar",
         f"{lrs.hidden:.4g} / {lrs.embedding:.4g} / {lrs.head:.4g} / {lrs.scalar:.4g}"),
        ("weight decay, AdamW beta2", f"{plan.weight_decay:.4g}, {plan.beta2:.5f}"),
        ("optimizer, schedule", f"{config.optim.optimizer}, {config.optim.schedule}"),
        ("precision", config.precision),
        ("memory: weights, gradients, optimizer", f"{state_bytes / 2**20:,.0f} MiB"),
        ("memory: activations a row", f"{row_bytes / 2**20:,.1f} MiB"),
    ]  # fmt: skip
    for name, value in rows:
        settings.add_row(name, value)

    title = (
        "budgets" if flops_per_second is None else f"budgets (time at {human(flops_per_second)}FLOP/s, {speed_source})"
    )
    budgets = Table(title=title, title_justify="left", min_width=66, **_PLAIN)  # so that no caption is folded
    for column in ("tokens", "steps", "fork", "epochs", "tok/param", "FLOPs", "6ND", "time"):
        budgets.add_column(column, justify="right", no_wrap=True)

    def time_of(flops: float) -> str:
        return "-" if flops_per_second is None else duration(flops / flops_per_second)

    for b in plan.budgets:
        budgets.add_row(
            f"{b.tokens:,}",
            f"{b.steps:,}",
            f"{b.fork_step:,}",
            "-" if b.epochs is None else f"{b.epochs:.3g}",
            f"{b.tokens / c.with_head:.3g}",
            f"{b.flops:.3g}",
            f"{b.flops_6nd:.3g}",
            time_of(b.flops),
        )
    if len(plan.budgets) > 1:
        totals = f"{plan.trained_flops:.3g}", "", time_of(plan.trained_flops)
        budgets.add_row(f"{plan.trained_tokens:,}", "in all", "", "", "", *totals)
        share = plan.trained_tokens / plan.separate_tokens
        budgets.caption = f"one trunk for all budgets: {share:.3f} of the tokens of separate runs"
    return [counts, settings, budgets]


def measured_flops_per_second(root: str, depth: int) -> float:
    """Median FLOP/s that runs recorded under `root` reached, of the depth nearest to this one.

    Raises ValueError when nothing there was measured.
    """
    rows = [r for r in record.read(root) if r.tokens_per_second]
    if not rows:
        raise ValueError(f"no run under {root} has a measured speed: give --tflops, or train one first")
    nearest = min((r.depth for r in rows), key=lambda d: abs(d - depth))
    return statistics.median(
        r.tokens_per_second * r.flops_per_token for r in rows if r.depth == nearest and r.tokens_per_second
    )


LEGEND = "val: nats a token; mean: of the training loss, lags; bits a byte; CORE: centred"


def summary_table(rows: Sequence[RunRecord]) -> Table:
    """The end of a run: a line a budget, in the 80 columns of a plain terminal. See `LEGEND`."""
    table = Table(**_PLAIN)
    columns = _columns(rows)
    for name in columns:
        table.add_column(name, justify="left" if name == "status" else "right", no_wrap=True)
    for cells in zip(*columns.values(), strict=True):
        table.add_row(*cells)
    return table


def core_table(result: CoreResult, version: int) -> Table:
    """A line a task, and the mean."""
    title = f"in-context tasks (metric version {version})"
    table = Table(title=title, title_justify="left", **_PLAIN)
    for column in ("task", "examples", "cut", "accuracy", "guessing", "centred"):
        table.add_column(column, justify="left" if column == "task" else "right")
    for t in result.tasks:
        table.add_row(
            t.label, f"{t.n_examples:,}", f"{t.n_cut:,}", f"{t.accuracy:.4f}", f"{t.baseline:.4f}", f"{t.centred:.4f}"
        )
    table.add_section()
    table.add_row("mean", "", "", "", "", f"{result.mean:.4f}")
    return table


def _columns(rows: Sequence[RunRecord]) -> dict[str, list[str]]:
    """The cells of each column, "-" where a run has no such figure; columns without any figure are left out."""

    def figures(values: Iterable[float | None], style: str) -> list[str]:
        return ["-" if value is None else format(value, style) for value in values]

    columns: dict[str, list[str]] = {
        "tokens": [f"{r.planned_tokens:,}" for r in rows],
        "status": [r.status for r in rows],
        "val": figures((r.val_loss for r in rows), ".4f"),
        "bits": figures((r.val_bpb for r in rows), ".3f"),
        "mean": figures((r.train_loss for r in rows), ".4f"),
        "CORE": figures((r.core for r in rows), ".4f"),
        "FLOPs": [f"{r.flops:.3g}" for r in rows],
        "tok/s": ["-" if r.tokens_per_second is None else human(r.tokens_per_second) for r in rows],
        "MFU": figures((r.mfu for r in rows), ".0%"),
        "time": ["-" if r.seconds is None else duration(r.seconds) for r in rows],
    }
    return {name: cells for name, cells in columns.items() if set(cells) != {"-"}}


def reasons(rows: Sequence[RunRecord]) -> list[str]:
    """Why budgets were not reached, a line each."""
    return [f"{r.planned_tokens:,} tokens {r.status}: {r.reason}" for r in rows if r.reason is not None]


def write_report(root: str, rows: Sequence[RunRecord]) -> str:
    """Write report.md of one run under its directory: settings, counts, losses, speed; returns its path."""
    first = rows[0]
    columns = _columns(rows)
    lines = [
        f"# {first.run_id}",
        "",
        "| " + " | ".join(columns) + " |",
        "|" + " --- |" * len(columns),
        *("| " + " | ".join(cells) + " |" for cells in zip(*columns.values(), strict=True)),
        "",
        f"{LEGEND}.",
        "",
        *(f"{reason}\n" for reason in reasons(rows)),
        f"Parameters: {first.n_params_total:,} in all, {first.n_params_with_head:,} with head, "
        f"{first.n_params_non_embedding:,} non-embedding. FLOPs a token: {first.flops_per_token:,.0f}.",
        f"Corpus: {first.corpus} ({first.corpus_digest}). Commit: {first.git_commit}. Log: {first.log_path}.",
        f"Metric versions: {first.metric_versions}.",
        "",
        "```json",
        json.dumps(json.loads(first.config), indent=2),
        "```",
        "",
    ]
    path = storage.join(root, "report.md")
    storage.write_bytes(path, "\n".join(lines).encode())
    return path


def print_tables(tables: Sequence[Table]) -> None:
    console = Console()
    for table in tables:
        console.print(table)
