"""Public measurements beside the repository, and the built-in sample."""

from pathlib import Path

import pandas as pd
import pytest

from analysis import sample
from analysis.runs import Runs, load
from tinyllm import record

PUBLISHED = Path(__file__).parents[2].parent / "shared" / "published"


@pytest.fixture(scope="session")
def published():
    """Reader of one published table by name; skips where the folder is absent."""

    def read(name: str) -> pd.DataFrame:
        path = PUBLISHED / f"{name}.csv"
        if not path.exists():
            pytest.skip(f"published measurements are not at {path}: they are not ours to pass on")
        return pd.read_csv(path)

    return read


@pytest.fixture(scope="session")
def chinchilla(published):
    """(n, d, loss) of Hoffmann et al. 2022 as extracted by Epoch AI, without the 5 highest losses."""
    table = published("chinchilla_epoch").sort_values("loss").iloc[:-5].sort_index()
    n = table["Model Size"].to_numpy()
    return n, table["Training FLOP"].to_numpy() / (6 * n), table["loss"].to_numpy()


@pytest.fixture(scope="session")
def sample_runs() -> Runs:
    return load(record.frame(sample.records()))
