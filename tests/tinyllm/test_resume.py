"""Runs killed with SIGKILL go on as if they had not been: weights, losses, curve and digest are bit-equal."""

from __future__ import annotations

import dataclasses
import json
import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests.tinyllm.conftest import comparable
from tinyllm.checkpoint import entries
from tinyllm.config import TrainConfig
from tinyllm.events import Event, Forked
from tinyllm.options import RunOptions
from tinyllm.record import read
from tinyllm.worker import Job, run

ConfigMaker = Callable[..., TrainConfig]
OPTIONS: dict[str, Any] = {"log_every": 3, "save_every": 4, "eval_every": 6, "device_batch_size": 4}
BUDGETS = (15, 30)  # forks at 12 and 24


def final_weights(root: Path, config: TrainConfig) -> dict[str, dict[str, torch.Tensor]]:
    weights = root / "runs" / config.run_id / "weights"
    return {d.name: load_file(d / "model.safetensors") for d in sorted(weights.iterdir())}


def assert_same_run(got: Path, want: Path, config: TrainConfig) -> None:
    gone_on, undisturbed = (
        [dataclasses.replace(comparable(r), machine="") for r in read(str(root))] for root in (got, want)
    )
    assert gone_on == undisturbed
    for tokens, tensors in final_weights(want, config).items():
        for name, tensor in final_weights(got, config)[tokens].items():
            assert torch.equal(tensor, tensors[name]), (tokens, name)


KILLS: dict[str, dict[str, Any]] = {
    "before the first checkpoint": {"event": "StepDone", "segment": "trunk", "step": 2},
    "on the trunk": {"event": "StepDone", "segment": "trunk", "step": 7},
    "at a fork": {"event": "Forked", "segment": "trunk", "step": 12},
    "in the first branch": {"event": "StepDone", "segment": "branch-7680", "step": 14},
    "at the end of a branch, before its evaluation": {"event": "StepDone", "segment": "branch-7680", "step": 15},
    "between two branches": {"event": "StepDone", "segment": "trunk", "step": 19},
    "in the last branch": {"event": "StepDone", "segment": "branch-15360", "step": 29},
    "when all is done": {"event": "HorizonReached", "segment": "branch-15360"},
    "while the first checkpoint is written": {"write": "checkpoint", "call": 1},
    "while a branch's checkpoint is written": {"write": "checkpoint", "call": 5},
    "while the first record is written": {"write": "record", "call": 1},
    "while the last record is written": {"write": "record", "call": 2},
}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """Roots of runs that were not killed, by world size; filled on demand."""
    return {}


def reference(
    undisturbed: dict[int, Path], run_processes: Any, config: TrainConfig, world_size: int, base: Path
) -> Path:
    if world_size not in undisturbed:
        root = base / f"whole-{world_size}"
        run_processes(root, config, world_size=world_size, **_options(world_size))
        undisturbed[world_size] = root
    return undisturbed[world_size]


def _options(world_size: int) -> dict[str, Any]:
    return {**OPTIONS, "device_batch_size": 4 if world_size < 4 else 2}


@pytest.mark.parametrize("kill", KILLS.values(), ids=KILLS.keys())
def test_a_killed_run_continues_bit_identically(
    tiny_config: ConfigMaker, run_processes: Any, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory,
    undisturbed: dict[int, Path], kill: dict[str, Any],
) -> None:  # fmt: skip
    config = tiny_config(*BUDGETS)
    want = reference(undisturbed, run_processes, config, 1, tmp_path_factory.getbasetemp())
    root = tmp_path / "killed"
    run_processes(root, config, kill=kill, **OPTIONS)
    run_processes(root, config, **OPTIONS)
    assert_same_run(root, want, config)


@pytest.mark.parametrize("world_size", [2, 4])
def test_a_killed_group_continues_bit_identically(
    tiny_config: ConfigMaker, run_processes: Any, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory,
    undisturbed: dict[int, Path], world_size: int,
) -> None:  # fmt: skip
    config = tiny_config(*BUDGETS)
    base = tmp_path_factory.getbasetemp()
    want = reference(undisturbed, run_processes, config, world_size, base)
    root = tmp_path / "killed"
    options = _options(world_size)
    run_processes(root, config, world_size=world_size, kill=KILLS["in the first branch"], **options)
    if world_size == 2:
        run_processes(root, config, world_size=world_size, kill=KILLS["between two branches"], **options)
    run_processes(root, config, world_size=world_size, **options)
    assert_same_run(root, want, config)
    alone = reference(undisturbed, run_processes, config, 1, base)
    for group, single in zip(read(str(want)), read(str(alone)), strict=True):
        assert group.token_digest == single.token_digest
        assert group.val_loss == pytest.approx(single.val_loss, rel=1e-4)  # sums in another order, 30 steps
        assert group.curve[0].val_loss == pytest.approx(single.curve[0].val_loss, rel=1e-6)  # before any step
        assert group.curve[1].train_loss == pytest.approx(single.curve[1].train_loss, rel=1e-5)


def test_the_number_of_ranks_may_change_between_attempts(
    tiny_config: ConfigMaker, run_processes: Any, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory,
    undisturbed: dict[int, Path],
) -> None:  # fmt: skip
    config = tiny_config(*BUDGETS)
    alone = reference(undisturbed, run_processes, config, 1, tmp_path_factory.getbasetemp())
    root = tmp_path / "changing"
    run_processes(root, config, world_size=2, kill=KILLS["on the trunk"], **OPTIONS)
    run_processes(root, config, world_size=1, kill=KILLS["in the first branch"], **OPTIONS)
    run_processes(root, config, world_size=4, **_options(4))
    for got, want in zip(read(str(root)), read(str(alone)), strict=True):
        assert got.token_digest == want.token_digest
        assert [p.step for p in got.curve] == [p.step for p in want.curve]
        assert got.val_loss == pytest.approx(want.val_loss, rel=1e-4)


def test_a_damaged_checkpoint_falls_back_with_a_warning(
    tiny_config: ConfigMaker, run_processes: Any, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory,
    undisturbed: dict[int, Path], caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    config = tiny_config(*BUDGETS)
    want = reference(undisturbed, run_processes, config, 1, tmp_path_factory.getbasetemp())
    root = tmp_path / "killed"
    run_processes(root, config, kill=KILLS["between two branches"], **OPTIONS)
    newest = entries(str(root / "runs" / config.run_id))[-1]
    file = Path(newest.path) / "optimizer.pt"
    file.write_bytes(file.read_bytes()[:-1] + b"?")
    with caplog.at_level(logging.WARNING):
        torch.set_num_threads(1)
        run(Job(config=config, options=RunOptions(**OPTIONS), root=str(root)))
    assert "optimizer.pt is not what its manifest says; falling back" in caplog.text
    assert_same_run(root, want, config)


def test_resume_from_an_earlier_step_and_retention(
    tiny_config: ConfigMaker, run_processes: Any, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory,
    undisturbed: dict[int, Path],
) -> None:  # fmt: skip
    config = tiny_config(*BUDGETS)
    want = reference(undisturbed, run_processes, config, 1, tmp_path_factory.getbasetemp())
    root = tmp_path / "killed"
    run_processes(root, config, kill=KILLS["between two branches"], **OPTIONS)
    kept = [(e.segment, e.step, e.is_fork) for e in entries(str(root / "runs" / config.run_id))]
    assert kept == [("trunk", 8, False), ("trunk", 12, True), ("trunk", 16, False)]
    steps: list[int] = []
    torch.set_num_threads(1)
    run(
        Job(config=config, options=RunOptions(**OPTIONS, resume_from=12), root=str(root)),
        on_event=lambda e: steps.append(e.step),
    )
    assert steps[0] == 13
    assert_same_run(root, want, config)


def test_a_trunk_that_goes_on_keeps_what_it_saves_though_a_branch_took_more_steps(
    tiny_config: ConfigMaker, tmp_path: Path
) -> None:
    config = tiny_config(20, 40)  # the first fork is at 16
    job = Job(config=config, options=RunOptions(save_every=1, stop_after=18), root=str(tmp_path))
    checkpoints = Path(job.run_root) / "checkpoints"

    def killed_in_a_save(event: Event) -> None:
        if isinstance(event, Forked):
            shutil.copytree(checkpoints / "fork-00000016", checkpoints / ".tmp-killed")
            assert all(not Path(e.path).name.startswith(".") for e in entries(job.run_root))

    run(job, on_event=killed_in_a_save)
    names = sorted(p.name for p in checkpoints.iterdir())
    assert names == ["fork-00000016", "trunk-00000017", "trunk-00000018"]


def test_forks_of_budgets_that_are_done_may_go_to_save_disk(
    tiny_config: ConfigMaker, run_processes: Any, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory,
    undisturbed: dict[int, Path],
) -> None:  # fmt: skip
    config = tiny_config(*BUDGETS)
    want = reference(undisturbed, run_processes, config, 1, tmp_path_factory.getbasetemp())
    root = tmp_path / "killed"
    run_processes(root, config, kill=KILLS["in the last branch"], keep_forks="last", **OPTIONS)
    assert [e.step for e in entries(str(root / "runs" / config.run_id)) if e.is_fork] == [24]
    run_processes(root, config, keep_forks="last", **OPTIONS)
    assert_same_run(root, want, config)


def test_another_config_in_a_runs_place_is_refused_with_the_difference(
    tiny_config: ConfigMaker, tmp_path: Path
) -> None:
    config = tiny_config(10)
    job = Job(config=config, options=RunOptions(save_every=4, stop_after=6), root=str(tmp_path))
    run(job)
    for entry in entries(job.run_root):  # as if a run_id had collided, or files had been moved by hand
        path = Path(entry.path) / "config.json"
        changed = json.loads(path.read_text())
        changed["optim"]["lr"] = 0.5
        path.write_text(json.dumps(changed))
        manifest = Path(entry.path) / "manifest.json"
        about = json.loads(manifest.read_text())
        import hashlib

        about["files"]["config.json"]["sha256"] = hashlib.sha256(path.read_bytes()).hexdigest()
        manifest.write_text(json.dumps(about))
    with pytest.raises(ValueError, match=r"optim.lr 0.5 -> 0.02"):
        run(job)
    assert read(str(tmp_path)) == []  # a mistake of the user's is no failed run


def test_a_checkpoint_of_another_version_does_not_exist_and_is_replaced(
    tiny_config: ConfigMaker, tmp_path: Path
) -> None:
    job = Job(config=tiny_config(10), options=RunOptions(save_every=4, stop_after=6), root=str(tmp_path))
    run(job)
    before = entries(job.run_root)
    assert before
    for entry in before:
        manifest = Path(entry.path) / "manifest.json"
        manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "format": 0}))
    assert entries(job.run_root) == []
    steps: list[int] = []
    run(job, on_event=lambda e: steps.append(e.step))
    assert steps[0] == 1  # from the beginning, instead of an error that no rerun mends
    assert [e.step for e in entries(job.run_root)] == [e.step for e in before]


def test_a_damaged_checkpoint_makes_room_for_a_whole_one(tiny_config: ConfigMaker, tmp_path: Path) -> None:
    job = Job(config=tiny_config(20), options=RunOptions(save_every=4, stop_after=9), root=str(tmp_path))
    run(job)
    newest = entries(job.run_root)[-1]
    (Path(newest.path) / "model.safetensors").unlink()
    run(job)
    steps: list[int] = []
    run(job, on_event=lambda e: steps.append(e.step))
    assert steps == [9]  # stopped there at once: the one that was saved again is whole
