"""From records and tables to points: which losses count, and what is said about the others."""

import dataclasses
import itertools

import numpy as np
import pandas as pd
import pytest

from analysis import sample
from analysis.laws import LossSurface
from analysis.result import Caveat, Reason
from analysis.runs import load
from tinyllm import record

TABLE = pd.DataFrame(
    {
        "n_params": [1e6] * 4 + [2e6] * 4,
        "tokens": [1e8] * 8,
        "lr": [0.01, 0.02, 0.04, 0.08] * 2,
        "loss": [3.2, 3.0, 3.1, 3.5, 2.9, 2.95, 3.0, 3.4],
    }
)


def write(root, rows):
    for _, group in itertools.groupby(rows, key=lambda row: row.run_id):
        record.append(str(root), list(group))


def test_a_sweeps_directory_and_its_frame_give_the_same_points(tmp_path):
    rows = sample.records(depths=(2, 3), lrs=(0.02, 0.03))
    write(tmp_path, rows)
    ours, theirs = load(tmp_path).best(), load(record.frame(rows)).best()
    assert set(ours.ids) == set(theirs.ids)
    assert sorted(ours.loss) == sorted(theirs.loss)


def test_the_best_lr_of_each_cell_is_taken_and_the_others_say_so():
    points = load(TABLE).best()
    assert points.loss.tolist() == [3.0, 2.9]
    assert points.lr.tolist() == [0.02, 0.01]
    assert set(points.left_out.values()) == {Reason.NOT_BEST_LR}
    assert len(points.left_out) == 6


def test_best_lr_at_the_edge_is_kept_with_a_warning():
    points = load(TABLE).best()
    (warn,) = [warn for warn in points.warnings if warn.kind == Caveat.LR_AT_EDGE]
    assert warn.points == (points.ids[1],)
    inner = load(TABLE.iloc[:4]).best()
    assert not any(warn.kind == Caveat.LR_AT_EDGE for warn in inner.warnings)


def test_an_lr_that_was_stopped_or_diverged_bounds_the_best():
    table = TABLE.iloc[:3].assign(status=["done", "done", "diverged"], loss=[3.2, 3.0, np.nan])
    points = load(table).best()
    assert points.lr.tolist() == [0.02]
    assert not any(warn.kind == Caveat.LR_AT_EDGE for warn in points.warnings)
    failed = load(table.assign(status=["done", "done", "failed"])).best()
    assert any(warn.kind == Caveat.LR_AT_EDGE for warn in failed.warnings)


def test_seeds_are_averaged_before_the_choice_and_give_the_noise():
    table = pd.concat([TABLE.iloc[:2].assign(seed=seed) for seed in range(2)], ignore_index=True)
    # LR .01 has the single lowest loss, LR .02 the lowest mean.
    table["loss"] = [2.9, 3.0, 3.3, 3.0]
    points = load(table).best()
    assert points.lr.tolist() == [0.02]
    assert points.loss.tolist() == [3.0]
    # Two settings with two seeds each: pooled variance (log(3.3/2.9)^2 / 2 + 0) / 2.
    assert points.noise == pytest.approx(np.sqrt(np.log(3.3 / 2.9) ** 2 / 4))
    assert load(TABLE).best().noise is None


def test_repeats_of_a_table_without_lrs_are_averaged_and_give_the_noise():
    once = TABLE.drop(columns="lr").drop_duplicates(["n_params", "tokens"])
    twice = pd.concat([once.assign(loss=3.0, seed=0), once.assign(loss=3.2, seed=1)], ignore_index=True)
    points = load(twice).best()
    assert points.loss == pytest.approx([3.1] * len(once))
    assert points.noise == pytest.approx(np.log(3.2 / 3.0) / np.sqrt(2))
    # A row whose LR alone is unknown is one more setting, never lost.
    table = TABLE.assign(lr=[np.nan, *TABLE["lr"].iloc[1:]])
    assert load(table).seed_means["loss"].sum() == pytest.approx(TABLE["loss"].sum())
    # One seed throughout: rows of one size and token count are other models, as in published tables.
    same = pd.concat([once.assign(loss=3.0, seed=0), once.assign(loss=3.2, seed=0)], ignore_index=True)
    assert len(load(same).best()) == 2 * len(once)


def test_difference_within_seed_noise_is_said():
    table = pd.concat([TABLE.iloc[:4].assign(seed=seed) for seed in range(3)], ignore_index=True)
    close = table.assign(loss=table["loss"] + np.repeat([0.0, 0.1, -0.1], 4))
    assert any(warn.kind == Caveat.WITHIN_SEED_NOISE for warn in load(close).best().warnings)
    far = table.assign(loss=table["loss"] + np.repeat([0.0, 0.001, -0.001], 4))
    assert not any(warn.kind == Caveat.WITHIN_SEED_NOISE for warn in load(far).best().warnings)


def test_more_seeds_weigh_more():
    table = pd.concat([TABLE, TABLE.iloc[:4].assign(loss=TABLE["loss"].iloc[:4] + 0.01)], ignore_index=True)
    table["seed"] = [0] * 8 + [1] * 4
    assert load(table).best().weights.tolist() == [4 / 3, 2 / 3]


def test_interpolated_choice_is_the_vertex_of_a_parabola():
    lr = np.array([0.01, 0.02, 0.04])
    loss = 3.0 + 0.1 * (np.log(lr) - np.log(0.023)) ** 2
    table = pd.DataFrame({"n_params": 1e6, "tokens": 1e8, "lr": lr, "loss": loss})
    points = load(table).best("interpolated")
    assert points.lr[0] == pytest.approx(0.023, rel=1e-9)
    assert points.loss[0] == pytest.approx(3.0, rel=1e-12)
    assert load(table).best().loss[0] == loss.min()


def test_undecayed_losses_are_never_points_and_other_horizons_of_the_trial_are():
    table = TABLE.iloc[:4].assign(tokens=[1e8, 2e8, 4e8, 8e8], lr=0.02, run_id="r")
    table["status"] = ["done", "done", "stopped", "diverged"]
    table["fully_decayed"] = [True, False, False, False]
    runs = load(table)
    assert runs.left_out == {
        "r@200000000": Reason.NOT_FULLY_DECAYED,
        "r@400000000": Reason.NOT_DONE,
        "r@800000000": Reason.DIVERGED,
    }
    assert any(warn.kind == Caveat.NOT_FULLY_DECAYED for warn in runs.warnings)
    assert runs.best().ids == ("r@100000000",)
    assert not load(TABLE).warnings


@pytest.mark.parametrize(("column", "bad", "good", "kind"), [
    ("decay_steps", 9, 10, Caveat.FEW_DECAY_STEPS),
    ("epochs", 4.1, 4.0, Caveat.MANY_EPOCHS),
])  # fmt: skip
def test_doubtful_runs_are_named(column, bad, good, kind):
    runs = load(TABLE.assign(**{column: [bad] + [good] * 7}))
    (warn,) = runs.warnings
    assert warn.kind == kind
    assert warn.points == ("row 0",)
    assert not load(TABLE.assign(**{column: good})).warnings


def test_conventions_of_n_and_flops():
    frame = record.frame(sample.records(depths=(2,), lrs=(0.02,)))
    for params in ("with_head", "total", "non_embedding"):
        assert load(frame, params=params).table["n"].tolist() == frame[f"n_params_{params}"].tolist()
    assert load(frame).table["flops"].tolist() == frame["flops"].tolist()
    assert load(frame, flops="6nd").table["flops"].tolist() == frame["flops_6nd"].tolist()
    bare = load(TABLE)
    assert bare.table["flops"].tolist() == (6 * TABLE["n_params"] * TABLE["tokens"]).tolist()


def test_a_table_without_lrs_has_no_choice_to_make():
    assert len(load(TABLE.drop(columns="lr")).best()) == len(TABLE)


def test_csv_and_parquet(tmp_path):
    TABLE.to_csv(tmp_path / "t.csv", index=False)
    TABLE.to_parquet(tmp_path / "t.parquet")
    for name in ("t.csv", "t.parquet"):
        assert load(tmp_path / name).best().loss.tolist() == [3.0, 2.9]


def test_mistakes_are_refused(tmp_path):
    with pytest.raises(ValueError, match="holds no run record"):
        load(tmp_path)
    with pytest.raises(ValueError, match="has no column val_loss or loss"):
        load(TABLE.drop(columns="loss"))
    with pytest.raises(ValueError, match="params='all'"):
        load(TABLE, params="all")
    with pytest.raises(ValueError, match="flops='6ND'"):
        load(TABLE, flops="6ND")
    with pytest.raises(ValueError, match=r"no fully decayed loss.*'failed': 8"):
        load(TABLE.assign(status="failed")).best()


def test_sample_law_is_recovered_from_noise_free_losses():
    from analysis.fit import fit_points

    law = LossSurface(A=28.0, B=120.0, E=1.8, alpha=0.34, beta=0.37)
    # With LRs at each size's optimum the only loss left is the law's.
    rows = [
        dataclasses.replace(row, val_loss=float(law.loss(float(row.n_params_with_head), float(row.planned_tokens))))
        for row in sample.records(lrs=(0.02, 0.03), noise=0.0)
        if row.status == "done"
    ]
    fit = fit_points(load(record.frame(rows)).best(), bootstrap=0)
    assert fit.law.alpha == pytest.approx(0.34, rel=1e-6)
    assert fit.law.loss(1e30, 1e30) == pytest.approx(1.8, rel=1e-6)
