import json

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tinyllm import shards
from tinyllm.shards import ShardReader, describe_shard, id_dtype, write_shard

SEQ_LEN = 2**15  # 8 rows a row group


def make(directory, sizes):
    """Shards of these many rows, every id different from its neighbours."""
    rows = np.random.default_rng(0).integers(0, 2**16, (sum(sizes), SEQ_LEN + 1), np.uint16)
    written = []
    for number, part in enumerate(np.split(rows, np.cumsum(sizes)[:-1])):
        path = f"{directory}/train-{number:05d}.parquet"
        write_shard(path, "train", part, {"n": number})
        written.append(describe_shard(path)[0])
    return rows, written


def test_rows_come_back(tmp_path):
    rows, written = make(tmp_path, [19, 0, 8, 3])
    assert [shard.rows for shard in written] == [19, 0, 8, 3]
    reader = ShardReader(str(tmp_path), written)
    assert reader.row_group_rows.tolist() == [8, 8, 3, 8, 3]
    assert np.array_equal(reader.slice(0, 30), rows)
    assert np.array_equal(reader.slice(15, 21), rows[15:21])
    picked = np.array([29, 0, 18, 19, 0])
    starts = np.array([0, 8, 16, 19, 27])
    groups = np.searchsorted(starts, picked, side="right") - 1
    assert np.array_equal(reader.gather(groups, picked - starts[groups]), rows[picked])


def test_any_parquet_reader_opens_a_shard(tmp_path):
    rows, _ = make(tmp_path, [3])
    frame = pq.read_table(tmp_path / "train-00000.parquet").to_pandas()
    assert np.array_equal(np.stack(frame["tokens"]), rows)


def test_facts_lie_in_the_footer(tmp_path):
    make(tmp_path, [3, 2])
    shard, facts = describe_shard(f"{tmp_path}/train-00001.parquet")
    assert facts == {"n": 1, "split": "train"}
    assert (shard.file, shard.split, shard.rows, shard.row_group_rows) == ("train-00001.parquet", "train", 2, 8)


@pytest.mark.parametrize(("vocab_size", "dtype"), [(2**16, np.uint16), (2**16 + 1, np.uint32)])
def test_ids_take_two_bytes_where_they_fit(tmp_path, vocab_size, dtype):
    assert id_dtype(vocab_size) is dtype
    rows = np.full((2, SEQ_LEN + 1), vocab_size - 1, dtype)
    path = f"{tmp_path}/val-00000.parquet"
    write_shard(path, "val", rows, {})
    read = ShardReader(str(tmp_path), [describe_shard(path)[0]]).read(0)
    assert read.dtype == dtype
    assert np.array_equal(read, rows)


def test_sequential_reading_decodes_each_group_once(tmp_path, monkeypatch):
    _, written = make(tmp_path, [16, 16])
    reader = ShardReader(str(tmp_path), written)
    decoded = []
    digest = shards._digest
    monkeypatch.setattr(shards, "_digest", lambda rows: decoded.append(len(rows)) or digest(rows))
    for start in range(0, 30, 3):
        reader.slice(start, start + 3)
    assert decoded == [8, 8, 8, 8]


@pytest.mark.parametrize("where", [0.3, 0.7, 0.9])
def test_a_flipped_bit_is_found_and_the_file_is_named(tmp_path, where):
    _, written = make(tmp_path, [16, 16])
    flip_bit(tmp_path / "train-00001.parquet", where)
    reader = ShardReader(str(tmp_path), written)
    reader.slice(0, 16)
    with pytest.raises(ValueError, match=r"train-00001.parquet is damaged: .*delete that file and run `tiny"):
        reader.slice(16, 32)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(offset=st.one_of(st.integers(-1500, -1), st.integers(0, 300_000)), bit=st.integers(0, 7))
def test_no_flipped_bit_gives_other_ids(tmp_path, offset, bit):
    """In the footer (the last 1.5 kB) or among the ids: either found, or harmless."""
    rows, written = make(tmp_path, [8])
    path = tmp_path / "train-00000.parquet"
    flip_bit(path, offset % path.stat().st_size / path.stat().st_size, bit)
    try:
        read = ShardReader(str(tmp_path), written).read(0)
    except ValueError as error:
        if "train-00000.parquet is damaged" not in str(error):
            raise
    else:
        assert np.array_equal(read, rows)


def flip_bit(path, where, bit=0):
    data = bytearray(path.read_bytes())
    data[int(where * len(data))] ^= 1 << bit
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (lambda path: path.unlink(), r"train-00001.parquet is missing; run `tinyllm prepare"),
        (lambda path: path.write_bytes(path.read_bytes()[:-100]), r"train-00001.parquet is damaged: .*delete that"),
    ],
)
def test_a_missing_or_cut_file_is_named_by_a_look_at_the_footers(tmp_path, damage, told):
    _, written = make(tmp_path, [8, 8])
    reader = ShardReader(str(tmp_path), written)
    reader.check()
    damage(tmp_path / "train-00001.parquet")
    reader = ShardReader(str(tmp_path), written)
    reader.read(0)
    for look in (reader.check, lambda: reader.read(1)):
        with pytest.raises(ValueError, match=told):
            look()


def test_a_whole_file_of_other_content_is_refused(tmp_path):
    _, written = make(tmp_path, [8, 8])
    (tmp_path / "train-00001.parquet").replace(tmp_path / "train-00000.parquet")
    with pytest.raises(ValueError, match=r"its digest is \w{32}, the manifest says \w{32}"):
        ShardReader(str(tmp_path), written).read(0)


def test_ids_changed_along_with_their_checksums_are_found(tmp_path):
    """A file written anew by another tool, with our footer, passes every check but that of the ids."""
    _, written = make(tmp_path, [8])
    path = tmp_path / "train-00000.parquet"
    table = pq.read_table(path)
    changed = table.set_column(0, table.schema.field(0), table["tokens"].take([0, 1, 2, 3, 4, 5, 7, 6]))
    pq.write_table(changed, path, row_group_size=8)
    assert json.loads(pq.read_schema(path).metadata[b"tinyllm.facts"])["split"] == "train"
    with pytest.raises(ValueError, match="the ids of row group 0 do not match their digest"):
        ShardReader(str(tmp_path), written).read(0)
