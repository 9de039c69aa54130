"""The raw table behind a fit: read, and refused where a column cannot be what its name says."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from pyarrow import fs

from tinyllm import record, storage

SMALLEST_COUNT = 1000.0
"""Fewer parameters or tokens than this are thousands or millions of them, written without the factor."""
FLOPS_OFF = 300.0
"""Exact FLOPs may be many times 6 N D where N leaves out a large output head (170 times at depth 1), not this many."""
FLOPS_SPREAD = 10.0
"""One row's FLOPs over 6 N D, beside the median of the table, where N counts the output head."""
TOKENS_PER_PARAM = (1e-3, 1e6)
"""Outside it one of the two counts is probably in another unit."""
TRUE, FALSE = {"true", "1", "1.0"}, {"false", "0", "0.0"}


def read(path_or_frame: str | Path | pd.DataFrame) -> tuple[str, pd.DataFrame]:
    """(name of the source, its rows). A path is a csv or Parquet file, or a sweep's directory; any may be a URI.

    ValueError for a file of another kind, one that cannot be read, or a place without rows.
    """
    if isinstance(path_or_frame, pd.DataFrame):
        if path_or_frame.empty:
            raise ValueError("the DataFrame is empty: nothing to fit")
        return "a DataFrame", path_or_frame.reset_index(drop=True)
    if not isinstance(path_or_frame, str | Path):
        raise ValueError(f"a {type(path_or_frame).__name__} is neither a path nor a DataFrame: pass one of the two")
    path = str(path_or_frame)
    filesystem, inner = storage.open_fs(path)
    try:
        kind = filesystem.get_file_info(inner).type
        if kind == fs.FileType.NotFound:
            raise ValueError(f"{path} does not exist: give a sweep's directory, or a csv or Parquet table")
        raw = _read_file(path) if kind == fs.FileType.File else record.frame(record.read(path))
    except OSError as error:
        raise ValueError(f"{path} cannot be read ({error}): check the address and your right to read it") from error
    if raw.empty:
        raise ValueError(f"{path} holds no run record: is it the directory of a sweep, and has a trial ended?")
    return path, raw


def _read_file(path: str) -> pd.DataFrame:
    name = path.partition("?")[0]
    reader = next(
        (r for ending, r in ((".csv", pd.read_csv), (".parquet", pd.read_parquet)) if name.endswith(ending)), None
    )
    if reader is None:
        raise ValueError(f"{path} is neither .csv nor .parquet: convert it, or pass a DataFrame to analysis.runs.load")
    try:
        return reader(io.BytesIO(storage.read_bytes(path)))
    # pandas and Arrow each have errors of their own for a file that is not what its name says.
    except (ValueError, OSError) as error:
        raise ValueError(f"{path} is no readable {name.rpartition('.')[2]} table ({error})") from error


def column(raw: pd.DataFrame, names: Sequence[str], source: str, *, positive: bool = False) -> pd.Series:
    """The first of `names` that is there, as floats; nan where empty.

    ValueError naming column, row and value for a text, or, if `positive`, for anything but a positive finite number.
    """
    name = next((name for name in names if name in raw), None)
    if name is None:
        raise ValueError(f"{source} has no column {' or '.join(names)}; it has {sorted(map(str, raw.columns))}")
    values = pd.to_numeric(raw[name], errors="coerce").astype(float)
    refuse(raw[name], raw[name].notna() & values.isna(), source, "is no number")
    if positive:
        bad = ~values.between(0, np.inf, inclusive="neither")
        refuse(raw[name], bad, source, "is not positive and finite: leave the row out")
    return values


def counts(raw: pd.DataFrame, names: Sequence[str], source: str) -> pd.Series:
    """A column of parameters or tokens: positive, and not in thousands or millions."""
    values = column(raw, names, source, positive=True)
    named = raw[next(name for name in names if name in raw)]
    refuse(named, values < SMALLEST_COUNT, source, "is too few: give the count itself, not thousands or millions")
    return values


def flags(raw: pd.DataFrame, name: str, source: str) -> pd.Series:
    """A column of yes or no: booleans, 0 and 1, or the words. ValueError for anything else, an empty cell included."""
    words = raw[name].astype(str).str.lower()
    refuse(raw[name], ~words.isin(TRUE | FALSE), source, "is neither true nor false")
    return words.isin(TRUE)


def whole_numbers(raw: pd.DataFrame, name: str, source: str, absent: int) -> pd.Series:
    """A column of integers, `absent` everywhere where there is no such column."""
    if name not in raw:
        return pd.Series(absent, index=raw.index)
    values = column(raw, (name,), source)
    refuse(raw[name], values.isna() | (values % 1 != 0), source, "is no whole number")
    return values.astype(int)


def refuse(values: pd.Series, bad: pd.Series, source: str, why: str) -> None:
    """ValueError naming the first row of `values` where `bad`, and how many there are."""
    rows = np.flatnonzero(bad)
    if len(rows):
        more = f" ({len(rows)} such rows)" if len(rows) > 1 else ""
        value = values.iloc[rows[0]]
        shown = repr(value) if isinstance(value, str) else str(value)
        raise ValueError(f"{source}: column {values.name}, row {rows[0]}: {shown} {why}{more}")


def refuse_units(n: pd.Series, d: pd.Series, flops: pd.Series, source: str, *, with_head: bool) -> None:
    """ValueError where the FLOPs, of all rows or of some, cannot be those of `n` parameters on `d` tokens.

    with_head: whether `n` counts the output head. Without it small models do many times 6 N D.
    """
    ratios = flops / (6 * n * d)
    ratio = float(ratios.median())
    if not 1 / FLOPS_OFF <= ratio <= FLOPS_OFF:
        raise ValueError(
            f"{source}: the FLOPs are {ratio:.2g} times 6 N D (median), so one of the three is in another unit: "
            "give counts, not thousands or millions"
        )
    allowed = FLOPS_SPREAD if with_head else FLOPS_OFF
    rows = np.flatnonzero((ratios > allowed * ratio) | (ratios < ratio / allowed))
    if len(rows):
        named = ", ".join(f"{row} ({ratios.iloc[row]:.2g})" for row in rows[:5]) + (", ..." if len(rows) > 5 else "")
        raise ValueError(
            f"{source}: FLOPs over 6 N D, {ratio:.2g} in the median row, is more than {allowed:g} times off in "
            f"{len(rows)} of {len(ratios)}: row {named}: correct the FLOPs, N or D of these, leave the column out "
            "(6 N D is taken), or, where N leaves out the output head, take --params non_embedding"
        )


def doubtful_ratio(n: pd.Series, d: pd.Series) -> float | None:
    """Median tokens per parameter where that is hardly credible, else None."""
    ratio = float((d / n).median())
    return None if TOKENS_PER_PARAM[0] <= ratio <= TOKENS_PER_PARAM[1] else ratio


def refuse_mixture(groups: pd.DataFrame, source: str) -> None:
    """ValueError where losses of several corpora, vocabularies or context lengths stand side by side.

    groups: one row a measured loss, one column for each of these that is known.
    """
    for name in groups:
        rows = groups[name].value_counts()
        if len(rows) > 1:
            found = ", ".join(f"{value} ({count} rows)" for value, count in rows.items())
            raise ValueError(
                f"{source} mixes losses that cannot be compared, of {name} {found}: fit one at a time "
                "(filter the rows and pass the DataFrame to analysis.runs.load)"
            )
