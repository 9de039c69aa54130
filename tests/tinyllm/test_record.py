"""Records survive a round trip, merge by precedence, and are whole or absent."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from analysis import runs
from tinyllm import record
from tinyllm.config import TrainConfig
from tinyllm.record import CurvePoint, RunRecord


def row(**changes: object) -> RunRecord:
    base = RunRecord(
        run_id="d2-aa",
        planned_tokens=1000,
        status="done",
        attempt="a",
        finished_at=1.0,
        group="d2-g",
        depth=2,
        lr=0.02,
        seed=0,
        steps=10,
        fork_step=8,
        decay_steps=2,
        batch_tokens=100,
        fully_decayed=True,
        n_params_total=10,
        n_params_non_embedding=4,
        n_params_with_head=7,
        flops_per_token=60.0,
        flops=60000.0,
        flops_6nd=42000.0,
        val_loss=3.0,
        precision="fp32",
        corpus="text",
        corpus_digest="00",
        config="{}",
        plan="{}",
        versions="{}",
        machine="{}",
        metric_versions="{}",
        curve=(CurvePoint(segment="trunk", step=1, tokens=100, train_loss=5.0, val_loss=None, lr=0.1, grad_norm=1.0),),
    )
    return replace(base, **changes)  # type: ignore[arg-type]


def test_round_trip_at_full_precision(tmp_path: Path) -> None:
    written = row(val_loss=2.0 / 3.0, lr=0.1 + 0.2, val_bpb=None)
    record.append(str(tmp_path), [written])
    assert record.read(str(tmp_path)) == [written]
    assert record.frame([written])["val_loss"].item() == 2.0 / 3.0


@pytest.mark.parametrize("order", [(0, 1, 2, 3, 4), (4, 3, 2, 1, 0), (2, 4, 0, 3, 1)])
def test_of_rows_with_one_key_the_best_status_counts_then_the_latest(tmp_path: Path, order: tuple[int, ...]) -> None:
    rows = [
        row(status="failed", val_loss=None, finished_at=9.0, attempt="f"),
        row(status="stopped", val_loss=None, finished_at=8.0, attempt="s"),
        row(status="diverged", val_loss=None, finished_at=7.0, attempt="d"),
        row(finished_at=2.0, attempt="old"),
        row(finished_at=3.0, attempt="new"),
    ]
    for i in order:
        record.append(str(tmp_path), [rows[i]])
    (survivor,) = record.read(str(tmp_path))
    assert survivor.attempt == "new"
    record.append(str(tmp_path), [row(planned_tokens=2000), row(planned_tokens=500)])
    assert [r.planned_tokens for r in record.read(str(tmp_path))] == [500, 1000, 2000]


def test_rows_of_one_run_are_found_among_many(tmp_path: Path) -> None:
    for run_id in ("d2-aa", "d2-ab", "d3-aa"):
        record.append(str(tmp_path), [row(run_id=run_id)])
    assert [r.run_id for r in record.read(str(tmp_path), "d2-ab")] == ["d2-ab"]


def test_an_empty_place_has_no_records_and_half_written_files_are_no_parts(tmp_path: Path) -> None:
    assert record.read(str(tmp_path)) == []
    record.append(str(tmp_path), [row()])
    part = next((tmp_path / "records").iterdir())
    (tmp_path / "records" / f"{part.name}.0123.tmp").write_bytes(part.read_bytes()[:50])
    assert len(record.read(str(tmp_path))) == 1


def test_all_damaged_parts_are_named_at_once(tmp_path: Path) -> None:
    paths = [Path(record.append(str(tmp_path), [row(run_id=f"d2-{name}")])) for name in ("aa", "bb", "cc")]
    paths[0].write_bytes(paths[0].read_bytes()[:-20])
    paths[2].write_bytes(b"")
    with pytest.raises(ValueError, match="remove it, and the sweep redoes its rows") as error:
        record.read(str(tmp_path))
    named = [path.name in str(error.value) for path in paths]
    assert named == [True, False, True]


def test_no_flipped_byte_changes_a_row_in_silence(tmp_path: Path) -> None:
    path = Path(record.append(str(tmp_path), [row(val_loss=3.0 + k / 7, planned_tokens=1000 + k) for k in range(4)]))
    rows, good = record.read(str(tmp_path)), path.read_bytes()
    refused = 0
    for at in range(0, len(good), 41):
        path.write_bytes(good[:at] + bytes([good[at] ^ 0x55]) + good[at + 1 :])
        try:
            assert record.read(str(tmp_path)) == rows, at
        except ValueError:
            refused += 1
    assert refused > 0


def test_a_loss_belongs_to_done_alone() -> None:
    with pytest.raises(ValueError, match="exactly when it is done"):
        row(status="stopped")
    with pytest.raises(ValueError, match="exactly when it is done"):
        row(val_loss=None)
    with pytest.raises(ValueError, match="status 'finished'"):
        row(status="finished")


def rewritten(path: Path, version: int, drop: tuple[str, ...] = ()) -> None:
    """A part as another version would have written it."""
    table = pq.read_table(path)
    column = pa.array([version] * len(table))
    table = table.set_column(table.schema.get_field_index("schema_version"), "schema_version", column)
    pq.write_table(table.drop_columns(list(drop)), path)


def test_rows_of_the_first_version_are_read_beside_new_ones_and_newer_ones_are_refused(
    tmp_path: Path, tiny_config: Callable[..., TrainConfig]
) -> None:
    config = tiny_config(10).to_json()
    before = row(run_id="d2-old", config=config, n_params_with_head=7000, flops=4.2e7, schema_version=1)
    new = replace(before, run_id="d2-new", schema_version=2, core=0.25, core_tasks='{"t":{"centred":0.25}}')
    old = Path(record.append(str(tmp_path), [before]))
    record.append(str(tmp_path), [new])
    rewritten(old, 1, drop=("core", "core_tasks"))
    found = record.read(str(tmp_path))
    assert found == [new, before]
    assert record.frame(found)["core"].tolist()[0] == 0.25
    assert runs.load(str(tmp_path)).measured["run_id"].tolist() == ["d2-new", "d2-old"]
    rewritten(old, record.SCHEMA_VERSION + 1)
    with pytest.raises(ValueError, match=f"record schema {record.SCHEMA_VERSION + 1}, .*: update tinyllm"):
        record.read(str(tmp_path))
