"""Settings that were tried beside size, LR and seed: which won, and that the LR curves are told apart by them."""

import dataclasses
import re
from pathlib import Path

import numpy as np
import pytest

from analysis import report, sample
from analysis.axes import axes
from analysis.runs import load
from analysis.study import study
from tinyllm import record
from tinyllm.config import TrainConfig


def with_axis(rows, factors, field="weight_decay"):
    """The rows once a value of a field of the optimizer, the loss of each times a factor, which may depend on size."""
    found = []
    for value, factor in factors.items():
        for row in rows:
            config = TrainConfig.from_json(row.config)
            config = dataclasses.replace(config, optim=dataclasses.replace(config.optim, **{field: value}))
            loss = row.val_loss and row.val_loss * (factor(row.depth) if callable(factor) else factor)
            text, run_id = config.to_json(), config.run_id
            found.append(dataclasses.replace(row, config=text, run_id=run_id, val_loss=loss))
    return found


def runs_of(rows):
    return load(record.frame(rows))


def test_each_size_and_token_count_names_its_winner():
    rows = sample.records(depths=(2, 3), seeds=(0, 1), noise=0.0)
    runs = runs_of(with_axis(rows, {0.1: lambda depth: 1.02 if depth == 2 else 0.97, 0.4: 1.0}))
    (axis,) = axes(runs)
    assert axis.name == "optim.weight_decay" and axis.wins == {"0.4": 4, "0.1": 4}
    won = axis.table[axis.table["won"]]
    assert set(zip(won["depth"], won["value"], strict=True)) == {(2, "0.4"), (3, "0.1")}
    assert (axis.table["seeds"] == 2).all()
    for _, cell in axis.table.groupby(["n", "d"]):
        expected = 1.02 if (cell["depth"] == 2).all() else 1 / 0.97
        assert cell["loss"].max() / cell["loss"].min() == pytest.approx(expected, rel=1e-9)


def test_within_the_noise_is_said():
    rows = sample.records(depths=(3,), seeds=(0, 1))
    (close,) = axes(runs_of(with_axis(rows, {0.1: 1.0005, 0.4: 1.0})))
    (far,) = axes(runs_of(with_axis(rows, {0.1: 1.05, 0.4: 1.0})))
    assert close.table.loc[~close.table["won"], "unsure"].all()
    assert not far.table["unsure"].any()
    (single,) = axes(runs_of(with_axis(sample.records(depths=(3,)), {0.1: 1.05, 0.4: 1.0})))
    assert single.table.loc[~single.table["won"], "unsure"].all()


def test_what_follows_size_or_lr_is_no_axis(sample_runs):
    assert axes(sample_runs) == []
    assert axes(load(sample_runs.measured[["n", "d", "loss"]].rename(columns={"n": "n_params", "d": "tokens"}))) == []


def test_the_page_shows_the_table_and_an_lr_figure_a_value(tmp_path):
    rows = with_axis(with_axis(sample.records(depths=(3,), budgets=(400_000,)), {0.1: 1.05, 0.4: 1.0}),
                     {0.9: 1.0, 0.95: 0.99}, field="momentum")  # fmt: skip
    result = study(runs_of(rows), bootstrap=0)
    files = report.write(result, tmp_path)
    for text in (Path(files.html).read_text(), Path(files.markdown).read_text()):
        assert "optim.weight_decay: which value won" in text and "0.4 won 1 of 1, 0.1 won 0 of 1." in text
        assert "optim.momentum: which value won" in text and "0.95 won 1 of 1, 0.9 won 0 of 1." in text
    titles = re.findall(r"<h3>(Learning rates[^<]*)</h3>", Path(files.html).read_text())
    assert sorted(titles) == sorted(
        f"Learning rates, optim.momentum {m}, optim.weight_decay {w}" for m in (0.9, 0.95) for w in (0.1, 0.4)
    )
    curves = report.lr_curves(result.runs)
    lowest = {title: part.seed_means["loss"].min() for title, part in curves.items()}
    assert min(lowest.values()) == result.points.loss[0]
    assert len(np.unique(list(lowest.values()))) == 4
