"""What several ranks add up equals what one computes alone, in real processes."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from tests.tinyllm.conftest import PROCESSES
from tinyllm import ranks
from tinyllm.config import TrainConfig
from tinyllm.data import Corpus
from tinyllm.evaluate import evaluate
from tinyllm.model import build_model
from tinyllm.options import RunOptions
from tinyllm.plan import plan
from tinyllm.state import TrainState
from tinyllm.train import train


def measure_rank(spec: dict[str, Any]) -> None:
    """Evaluate a random model, take two steps with another, and let the first rank write down what it saw."""
    torch.set_num_threads(1)
    if spec["world_size"] > 1:
        dist.init_process_group(
            "gloo", init_method=f"file://{spec['store']}", rank=spec["rank"], world_size=spec["world_size"]
        )
    config = TrainConfig.from_json(spec["config"])
    corpus = Corpus.open(config.data.data)  # type: ignore[arg-type]
    model = build_model(config.model, 0, torch.device("cpu"))
    with torch.no_grad():
        model.head.weight.normal_(generator=torch.Generator().manual_seed(0))
    losses = [
        evaluate(model, corpus, eval_tokens=rows * 32, device_rows=3, precision="fp32").val_loss for rows in (1, 3, 37)
    ]
    state = TrainState(config, plan(config), torch.device("cpu"))
    events = train(state, corpus, RunOptions(log_every=1), device_rows=2)
    steps = [next(events) for _ in range(2)]
    found = {
        "losses": losses,
        "train_losses": [s.train_loss for s in steps],  # type: ignore[union-attr]
        "grad_norms": [s.grad_norm for s in steps],  # type: ignore[union-attr]
        "digest": state.shared_digest(),
        "sum": ranks.sum_ints(2**100 + ranks.rank()),
        "votes": votes(),
    }
    events.close()  # type: ignore[attr-defined]
    if ranks.rank() == 0:
        Path(spec["out"]).write_text(json.dumps(found))
    if dist.is_initialized():
        dist.destroy_process_group()


def votes() -> list[bool]:
    """The last rank alone raises its flag, in the second of four rounds."""
    vote, last = ranks.Vote(torch.device("cpu")), ranks.rank() == ranks.world_size() - 1
    return [vote(last and step == 1) for step in range(4)]


def test_evaluation_gradients_and_digests_are_the_same_on_1_2_and_4_ranks(
    tiny_config: Callable[..., TrainConfig], tmp_path: Path
) -> None:
    found = {}
    for world_size in (1, 2, 4):
        out = tmp_path / f"{world_size}.json"
        spec = {"config": tiny_config(20).to_json(), "world_size": world_size, "out": str(out)}
        spec["store"] = str(tmp_path / uuid.uuid4().hex)
        processes = [PROCESSES.Process(target=measure_rank, args=({**spec, "rank": r},)) for r in range(world_size)]
        for process in processes:
            process.start()
        for process in processes:
            process.join(240)
            assert process.exitcode == 0
        found[world_size] = json.loads(out.read_text())
    for world_size in (2, 4):
        assert found[world_size]["losses"] == pytest.approx(found[1]["losses"], rel=1e-6)
        assert found[world_size]["train_losses"] == pytest.approx(found[1]["train_losses"], rel=1e-4)
        assert found[world_size]["train_losses"][0] == pytest.approx(found[1]["train_losses"][0], rel=1e-6)
        assert found[world_size]["grad_norms"][0] == pytest.approx(found[1]["grad_norms"][0], rel=1e-5)
        assert found[world_size]["digest"] == found[1]["digest"]
        assert found[world_size]["sum"] == world_size * 2**100 + sum(range(world_size))
        assert found[world_size]["votes"] == [False, False, True, False]
