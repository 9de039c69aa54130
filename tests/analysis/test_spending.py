"""Actual over quoted, from a ledger whose numbers are round."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest

from analysis.spending import spending


def test_what_was_spent_is_held_against_all_that_was_quoted_and_against_what_was_reached(tmp_path: Path) -> None:
    quotes = {"a": {"100": 3600, "200": 7200}, "b": {"100": 1800, "200": 5400}}
    (tmp_path / "ledger.json").write_text(json.dumps({"spent_device_seconds": 9000, "quotes": quotes}))
    statuses = [("a", 100, "done"), ("a", 200, "done"), ("b", 100, "diverged"), ("b", 200, "stopped")]
    records = pd.DataFrame(statuses, columns=["run_id", "planned_tokens", "status"])
    found = spending(str(tmp_path), records)
    assert found is not None
    assert (found.spent, found.quoted, found.reached) == pytest.approx((2.5, 5.0, 3.5))


def test_records_without_a_ledger_have_none(tmp_path: Path) -> None:
    records = pd.DataFrame({"run_id": ["a"], "planned_tokens": [100], "status": ["done"]})
    assert spending(str(tmp_path), records) is None
    assert spending("a DataFrame", records) is None
    (tmp_path / "runs.csv").write_text("")
    assert spending(str(tmp_path / "runs.csv"), records) is None
