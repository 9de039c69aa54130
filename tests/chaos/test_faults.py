"""A trial that dies whenever it trains, and one whose W&B run goes on after a kill."""

from __future__ import annotations

import pytest
from chaos import Chaos

from tests.tinyllm.test_launch import history


@pytest.mark.timeout(300)
def test_a_trial_that_is_killed_every_time_fails_with_a_reason_and_the_sweep_goes_on(chaos: Chaos) -> None:
    doomed, spared = chaos.trials(chaos.corpus)
    chaos.ask_for("trunk", kill_always=doomed.run_id)
    text = chaos.finish(chaos.start(), code=1)
    assert text.count("it is tried again from its last checkpoint") == 2
    assert "potential root causes" not in text  # Ray's page about processes that die: the sweep's line is enough
    assert "Missing: 2 budgets. The same command goes on with them:\n  python -m sweeps.depth_grid --address" in text
    rows = chaos.records().values()
    assert {r.run_id for r in rows if r.status == "done"} == {spared.run_id}
    failed = [r for r in rows if r.status == "failed"]
    assert {(r.run_id, r.steps) for r in failed} == {(doomed.run_id, 30), (doomed.run_id, 60)}
    for row in failed:
        assert str(row.reason).startswith("its process was killed or crashed, as happens where memory runs out")
        assert f"failed: {doomed.run_id} at {row.planned_tokens:,} tokens: {row.reason}" in text
    chaos.cluster.restore()
    assert "4 budgets: 4 done" in chaos.finish(chaos.start())


@pytest.mark.timeout(300)
def test_a_killed_trial_goes_on_in_the_same_wandb_run_at_the_right_step(chaos: Chaos) -> None:
    chaos.ask_for("branch")
    sweep = chaos.start("--wandb", "offline")
    chaos.kill("trial", sweep, chaos.wait_for_moment())
    chaos.finish(sweep)
    killed = 0
    for trial in chaos.trials(chaos.corpus):
        files = sorted(chaos.directory.glob(f"s/runs/{trial.run_id}/wandb/offline-run-*/run-{trial.run_id}.wandb"))
        killed += len(files) == 2
        told: dict[int, dict[str, object]] = {}
        for file in files:
            for entry in history(file):
                step = entry["_step"]
                assert isinstance(step, int)
                before = told.setdefault(step, entry)
                # What is told again under a step is what was told before.
                assert before["tokens"] == entry["tokens"]
                assert before.get("train/loss") == entry.get("train/loss")
        assert sorted(told) == list(range(len(told)))
        losses = [(e["tokens"], e["train/loss"]) for _, e in sorted(told.items()) if "train/loss" in e]
        assert len(losses) == len(set(losses))
        curves = [r.curve for r in chaos.records().values() if r.run_id == trial.run_id]
        assert {(p.tokens, p.train_loss) for curve in curves for p in curve if p.train_loss is not None} <= set(losses)
    assert killed == 1
