"""Run records: one row a (trial, horizon), in Parquet parts; the only thing that `analysis` reads.

Each attempt appends a part of its own, so any number of trials and sweeps may write to one place at once. On read
one row a (run_id, planned_tokens) survives.
"""

from __future__ import annotations

import io
import uuid
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal, get_args, get_type_hints

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from tinyllm import storage

# 2 added core and core_tasks. What an older version lacks has a default, so its rows are read as they are.
SCHEMA_VERSION = 2
Status = Literal["done", "diverged", "stopped", "budget", "failed"]
# Of several rows of one (run_id, planned_tokens) the first in this order counts, then the latest.
STATUS_ORDER: tuple[Status, ...] = ("done", "diverged", "stopped", "budget", "failed")
RECORDS_DIR = "records"


@dataclass(frozen=True, kw_only=True)
class CurvePoint:
    """One logged step: of the trunk, or of the branch that ends at a budget."""

    segment: str
    """"trunk", or "branch-<planned tokens>"."""
    step: int
    tokens: int
    train_loss: float | None
    """Nats per token, raw."""
    val_loss: float | None
    """Nats per token."""
    lr: float | None
    grad_norm: float | None
    """Before clipping."""


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """What became of one horizon of one trial. Key: (run_id, planned_tokens)."""

    run_id: str
    planned_tokens: int
    status: Status
    reason: str | None = None
    """Why the status is not done."""
    attempt: str
    """Unique name of the process that wrote the row."""
    finished_at: float
    """Unix time."""
    sweep: str | None = None
    group: str
    """Name of everything but the LR: rows of one group differ in LR (and budget) alone."""
    depth: int
    lr: float
    """Peak LR of the hidden matrices."""
    seed: int
    steps: int
    fork_step: int
    decay_steps: int
    batch_tokens: int
    fully_decayed: bool
    """Whether val_loss was measured after the whole decay of this horizon."""
    n_params_total: int
    n_params_non_embedding: int
    n_params_with_head: int
    flops_per_token: float
    flops: float
    """Exact FLOPs of a run of planned_tokens: flops_per_token x planned_tokens."""
    flops_6nd: float
    """6 x n_params_with_head x planned_tokens."""
    val_loss: float | None = None
    """Nats per token at the end of the horizon; None unless done."""
    val_bpb: float | None = None
    """Bits per byte of text; None where tokens are no text."""
    train_loss: float | None = None
    """Debiased moving average at the end, nats per token."""
    core: float | None = None
    """Mean centred accuracy over the in-context tasks at the end of the horizon; None where there were none."""
    core_tasks: str | None = None
    """By label of an in-context task, as JSON: accuracy, baseline, centred, n_examples, n_cut (TaskResult)."""
    epochs: float | None = None
    seconds: float | None = None
    """Training time of the trunk to the fork and the branch, without evaluation, start-up and first steps' compile."""
    eval_seconds: float | None = None
    device_seconds: float | None = None
    """All time this attempt held its devices for this horizon, times the devices."""
    tokens_per_second: float | None = None
    mfu: float | None = None
    """Model FLOPs utilisation in [0, 1]; None where the chip's peak is not known."""
    peak_memory_bytes: int | None = None
    world_size: int | None = None
    precision: str
    device: str | None = None
    token_digest: str | None = None
    """Digest of the tokens seen, hex (tinyllm.order.TokenDigest)."""
    corpus: str
    corpus_digest: str
    config: str
    """TrainConfig as JSON."""
    plan: str
    """Plan as JSON."""
    versions: str
    """Versions of python, torch, ray, tinyllm as JSON."""
    machine: str
    """Host, CPU or GPU and their number as JSON."""
    git_commit: str | None = None
    metric_versions: str
    """Version of the definition of each metric as JSON."""
    log_path: str | None = None
    curve: tuple[CurvePoint, ...] = ()
    """The trunk up to the fork, then the branch."""
    schema_version: int = field(default=SCHEMA_VERSION)

    def __post_init__(self) -> None:
        if self.status not in get_args(Status):
            raise ValueError(f"status {self.status!r}: take one of {get_args(Status)}")
        if (self.val_loss is not None) != (self.status == "done"):
            raise ValueError(f"a record has a val_loss exactly when it is done: {self.status}, {self.val_loss}")

    @property
    def key(self) -> tuple[str, int]:
        return self.run_id, self.planned_tokens


_ARROW = {int: pa.int64(), float: pa.float64(), bool: pa.bool_(), str: pa.string()}


def _arrow_fields(cls: type) -> list[pa.Field]:
    hints = get_type_hints(cls)
    found = []
    for f in fields(cls):
        if f.name == "curve":
            arrow = pa.list_(pa.struct(_arrow_fields(CurvePoint)))
        else:
            # The first type of "X | None"; a Literal is a string.
            options = [t for t in get_args(hints[f.name]) if t in _ARROW] or [hints[f.name]]
            arrow = _ARROW.get(options[0], pa.string())
        found.append(pa.field(f.name, arrow))
    return found


SCHEMA = pa.schema(_arrow_fields(RunRecord))


def append(root: str, records: Iterable[RunRecord]) -> str:
    """Write records of one run as one new part under `root`/records; returns its path. Whole or not at all."""
    rows = [asdict(r) for r in records]
    assert len({row["run_id"] for row in rows}) == 1, "a part holds the rows of one run"
    table = pa.Table.from_pylist(rows, schema=SCHEMA)
    buffer = io.BytesIO()
    pq.write_table(table, buffer, compression="zstd", write_page_checksum=True)
    # The run_id in a name only narrows a listing; what a row is about stands in the row.
    path = storage.join(root, RECORDS_DIR, f"part-{rows[0]['run_id']}-{uuid.uuid4().hex}.parquet")
    storage.write_bytes(path, buffer.getvalue())
    return path


def read(root: str, run_id: str | None = None) -> list[RunRecord]:
    """The records under a sweep's directory, one a (run_id, planned_tokens), by depth, group, LR and budget.

    done > diverged > stopped > budget > failed, then the latest. Raises ValueError naming every part that cannot be
    read or was written by another version.
    """
    best: dict[tuple[str, int], RunRecord] = {}
    unreadable: list[str] = []
    directory = storage.join(root, RECORDS_DIR)
    for name in storage.list_names(directory):
        if not (name.startswith(f"part-{run_id}-" if run_id else "part-") and name.endswith(".parquet")):
            continue
        try:
            records = _read_part(storage.join(directory, name))
        except ValueError as error:
            unreadable.append(str(error))
            continue
        for record in records:
            known = best.get(record.key)
            if known is None or _precedence(record) < _precedence(known):
                best[record.key] = record
    if unreadable:
        raise ValueError("\n".join(unreadable))
    return sorted(best.values(), key=lambda r: (r.depth, r.group, r.lr, r.planned_tokens))


def _precedence(record: RunRecord) -> tuple[int, float, str]:
    return STATUS_ORDER.index(record.status), -record.finished_at, record.attempt


def _read_part(path: str) -> list[RunRecord]:
    data = storage.read_bytes(path)
    try:
        # Without threads: those of a refused file may outlive the process' exit, which then aborts.
        table = pq.ParquetFile(pa.BufferReader(data), page_checksum_verification=True).read(use_threads=False)
        rows = table.to_pylist()
    # Arrow says OSError where a page cannot be decompressed.
    except (pa.ArrowException, OSError) as error:
        raise ValueError(
            f"{path} is no readable Parquet file ({error}): remove it, and the sweep redoes its rows"
        ) from error
    # Checksums are of pages: damage behind them changes what a column says it holds.
    known = [field for field in table.schema if field.name in SCHEMA.names]
    changed = [field.name for field in known if field.type != SCHEMA.field(field.name).type]
    if changed:
        raise ValueError(f"{path} holds another type of {', '.join(changed)}: remove it, and the sweep redoes its rows")
    return [_from_row(row, path) for row in rows]


def _from_row(row: dict[str, Any], path: str) -> RunRecord:
    version = row.get("schema_version")
    if version not in range(1, SCHEMA_VERSION + 1):
        raise ValueError(f"{path} has record schema {version}, this is tinyllm's {SCHEMA_VERSION}: update tinyllm")
    try:
        row["curve"] = tuple(CurvePoint(**point) for point in row["curve"])
        return RunRecord(**row)
    except (KeyError, TypeError) as error:
        raise ValueError(
            f"{path} has other columns than a record ({error}): remove it, and the sweep redoes its rows"
        ) from error


def frame(records: Iterable[RunRecord]) -> pd.DataFrame:
    """The records as a table, one row each, `curve` as a list of dicts."""
    return pa.Table.from_pylist([asdict(r) for r in records], schema=SCHEMA).to_pandas()
