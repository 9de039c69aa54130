"""What a table may not hold: each fault named with its column, row and value, and its sound twin taken."""

import itertools

import numpy as np
import pandas as pd
import pytest

from analysis import sample
from analysis.result import Caveat, Reason
from analysis.runs import load
from tinyllm import record

N, D = (g.ravel() for g in np.meshgrid([1e6, 2e6, 4e6, 8e6], [1e8, 2e8, 4e8, 8e8], indexing="ij"))
TABLE = pd.DataFrame({"n_params": N, "tokens": D, "loss": 1.8 + 28 / N**0.34 + 120 / D**0.37})


def first(value, rest):
    """A column of `rest` whose first value is `value`."""
    return [value, *[rest] * 15]


FAULTS = {
    "text for a number": ({"loss": first("abc", 3.0)}, r"column loss, row 0: 'abc' is no number"),
    "text for an LR": ({"lr": "auto"}, r"column lr, row 0: 'auto' is no number \(16 such rows\)"),
    "LR of 0": ({"lr": first(0.0, 0.1)}, "column lr, row 0: 0.0 is no learning rate"),
    "negative loss": ({"loss": first(-1.0, 3.0)}, "column loss, row 0: -1.0 is not positive"),
    "size of nan": ({"n_params": first(np.nan, 1e6)}, "column n_params, row 0: nan is not positive and finite"),
    "infinite tokens": ({"tokens": first(np.inf, 1e8)}, "column tokens, row 0: inf is not positive and finite"),
    "FLOPs of nan": ({"flops": first(np.nan, 1e15)}, "column flops, row 0: nan is not positive and finite"),
    "seed of nan": ({"seed": first(np.nan, 0)}, "column seed, row 0: nan is no whole number"),
    "half a layer": ({"depth": first(2.5, 2)}, "column depth, row 0: 2.5 is no whole number"),
    "status of another tool": ({"status": "finished"}, "column status, row 0: 'finished' is none of done, diverged"),
    "empty flag": ({"fully_decayed": first(None, True)}, "column fully_decayed, row 0: None is neither true nor false"),
    "parameters in millions": ({"n_params": N / 1e6}, "column n_params, row 0: 1.0 is too few: give the count itself"),
    "tokens in millions": ({"tokens": D / 1e6}, "column tokens, row 0: 100.0 is too few: give the count itself"),
    "FLOPs in millions": ({"flops": 6 * N * D / 1e6}, r"the FLOPs are 1e-06 times 6 N D"),
    "two corpora": ({"corpus": ["a"] * 8 + ["b"] * 8}, r"cannot be compared, of corpus a \(8 rows\), b \(8 rows\)"),
    "two vocabularies": ({"vocab_size": first(256, 512)}, r"of vocab_size 512 \(15 rows\), 256 \(1 rows\)"),
    "two contexts": ({"seq_len": first(256, 512)}, r"of seq_len 512 \(15 rows\), 256 \(1 rows\)"),
    "one number for all FLOPs": ({"tokens": D**2 / 1e8, "flops": 1e16}, "FLOPs over 6 N D.* row 0 .*--params non_emb"),
    "FLOPs of one row": ({"flops": np.array(first(20, 1)) * 6 * N * D}, r"10 times off in 1 of 16: row 0 \(20\)"),
}  # fmt: skip


@pytest.mark.parametrize(("columns", "message"), FAULTS.values(), ids=FAULTS)
def test_a_column_that_cannot_be_what_it_says_is_refused(columns, message):
    with pytest.raises(ValueError, match=message):
        load(TABLE.assign(**columns))


@pytest.mark.parametrize("columns", [
    {"lr": first(np.nan, 0.1)},
    {"flops": 60 * N * D},
    {"status": "done", "fully_decayed": "True", "seed": 3.0, "depth": 2, "vocab_size": 512, "corpus": "a"},
], ids=["LR not always known", "an output head larger than the rest", "everything stated"])  # fmt: skip
def test_sound_columns_are_taken_without_a_word(columns):
    runs = load(TABLE.assign(**columns))
    assert runs.warnings == () and runs.left_out == {}


def test_words_for_flags_are_read_as_flags():
    runs = load(TABLE.assign(fully_decayed=first("False", "True")))
    assert runs.left_out == {"row 0": Reason.NOT_FULLY_DECAYED}


@pytest.mark.parametrize("value", [np.nan, np.inf, None])
def test_a_loss_that_is_no_number_is_left_out_and_said(value):
    runs = load(TABLE.assign(loss=[value, *TABLE["loss"][1:]]))
    assert runs.left_out == {"row 0": Reason.NO_LOSS}
    assert [(warn.kind, warn.points) for warn in runs.warnings] == [(Caveat.NO_LOSS, ("row 0",))]


def test_a_row_written_twice_counts_once():
    runs = load(pd.concat([TABLE, TABLE.iloc[:2]]))
    assert runs.left_out == {"row 16": Reason.DUPLICATE, "row 17": Reason.DUPLICATE}
    assert [warn.kind for warn in runs.warnings] == [Caveat.DUPLICATE_ROWS]
    assert len(runs.best()) == 16
    repeats = pd.concat([TABLE, TABLE.iloc[:2].assign(loss=TABLE["loss"] + 1e-3)])
    assert [warn.kind for warn in load(repeats).warnings] == [Caveat.REPEATS]


def test_hardly_credible_tokens_per_parameter_are_questioned():
    doubtful = load(TABLE.assign(n_params=N / 1e3, tokens=D * 1e4))
    assert [warn.kind for warn in doubtful.warnings] == [Caveat.UNITS]
    assert load(TABLE).warnings == ()


def test_losses_of_several_corpora_matter_only_where_they_are_fitted():
    mixed = TABLE.assign(corpus=first("b", "a"), status=first("failed", "done"))
    assert len(load(mixed).best()) == 15


def test_records_of_two_vocabularies_in_one_directory_are_refused(tmp_path):
    rows = sample.records(depths=(2, 3), lrs=(0.02, 0.028))
    for _, group in itertools.groupby(rows, key=lambda row: row.run_id):
        record.append(str(tmp_path), list(group))
    assert len(load(tmp_path).best()) == 8
    frame = record.frame(rows)
    other = frame["config"].str.replace('"vocab_size":1024', '"vocab_size":512')
    with pytest.raises(ValueError, match="cannot be compared, of vocab_size"):
        load(frame.assign(config=other.where(frame["depth"] == 2, frame["config"])))


def test_what_is_no_table_is_refused(tmp_path):
    cases = {"t.json": "neither .csv nor .parquet", "t.csv": "no readable csv", "t.parquet": "no readable parquet"}
    for name, message in cases.items():
        (tmp_path / name).write_text("")
        with pytest.raises(ValueError, match=message):
            load(tmp_path / name)
    with pytest.raises(ValueError, match="does not exist"):
        load(tmp_path / "nowhere.csv")
    with pytest.raises(ValueError, match="the DataFrame is empty"):
        load(TABLE.iloc[:0])
    with pytest.raises(ValueError, match="ndarray is neither a path nor a DataFrame"):
        load(TABLE.to_numpy())
    with pytest.raises(ValueError, match="storage path 'gopher://x/y'"):
        load("gopher://x/y")
