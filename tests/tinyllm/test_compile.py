"""torch.compile on the CPU: the same training up to rounding; in a group, reductions that overlap backward."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from tests.tinyllm.conftest import PROCESSES
from tinyllm.config import ModelConfig, TrainConfig
from tinyllm.data import Corpus
from tinyllm.events import Event, HorizonReached, StepDone
from tinyllm.options import RunOptions
from tinyllm.plan import plan
from tinyllm.state import TrainState
from tinyllm.train import train
from tinyllm.worker import Job, run

NODE = "autograd::engine::evaluate_function: "


def counted() -> dict[str, Any]:
    counters = torch._dynamo.utils.counters
    return {"graphs": counters["stats"]["unique_graphs"], "breaks": dict(counters["graph_break"])}


def test_compiled_and_eager_losses_agree(tiny_config: Callable[..., TrainConfig], tmp_path: Path) -> None:
    # A small LR, for Muon's iteration and AdamW's sign magnify rounding.
    def losses(config: TrainConfig, compiled: bool) -> list[float | None]:
        found: list[float | None] = []

        def read(event: Event) -> None:
            match event:
                case StepDone():
                    found.extend((event.train_loss, event.grad_norm))
                case HorizonReached():
                    found.append(event.val_loss)

        options = RunOptions(compile=compiled, log_every=1, device="cpu", device_batch_size=8)
        run(Job(config=config, options=options, root=str(tmp_path / f"{config.run_id}-{compiled}")), on_event=read)
        return found

    # One layer of each kind of attention. Then another shape in the same process: a trial in a reused actor.
    mixed = ModelConfig(depth=3, aspect_ratio=16, target_head_dim=16, window_pattern="SSL", value_embeddings=True)
    for model, n_graphs in ((mixed, 3), (ModelConfig(depth=3, aspect_ratio=8, target_head_dim=12), 1)):
        config = tiny_config(5, model=model, lr=0.002)
        eager = losses(config, False)
        assert len(eager) == 11
        torch._dynamo.utils.counters.clear()
        # As after 8 shapes, were each allowed one graph: what is compiled anew must not count what went before.
        with torch._dynamo.config.patch(recompile_limit=n_graphs, fail_on_recompile_limit_hit=True):
            assert losses(config, True) == pytest.approx(eager, rel=1e-4)
        assert counted() == {"graphs": n_graphs, "breaks": {}}  # one for each kind of layer


def profile_rank(spec: dict[str, Any]) -> None:
    """Take three steps eager, and compiled; the first rank writes losses and the backward of the third in order."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{spec['store']}", rank=spec["rank"], world_size=2)
    config = TrainConfig.from_json(spec["config"])
    corpus = Corpus.open(config.data.data)  # type: ignore[arg-type]
    found = {}
    for compiled in spec["compiled"]:
        torch._dynamo.utils.counters.clear()
        state = TrainState(config, plan(config), torch.device("cpu"))
        events = train(state, corpus, RunOptions(log_every=1, compile=compiled), device_rows=1)
        steps = [next(events) for _ in range(2)]
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            steps.append(next(events))
        events.close()  # type: ignore[attr-defined]
        in_order = sorted(profile.events(), key=lambda e: e.time_range.start)
        found[str(compiled)] = {
            "losses": [(s.train_loss, s.grad_norm) for s in steps],  # type: ignore[union-attr]
            "backward": [e.name for e in in_order if e.name.startswith(NODE) or e.name == "c10d::allreduce_"],
            **counted(),
        }
    if spec["rank"] == 0:
        Path(spec["out"]).write_text(json.dumps(found))
    dist.destroy_process_group()


@pytest.mark.parametrize(("precision", "compiled"), [("fp32", [False, True]), ("bf16", [False])])
def test_gradients_are_reduced_while_backward_goes_on(
    tiny_config: Callable[..., TrainConfig], tmp_path: Path, precision: str, compiled: list[bool]
) -> None:
    # 24 MiB a block: DDP's buckets hold 25, so that the last one is full before the first block computes. AdamW and 64
    # tokens, for a CPU without bf16 takes minutes for Muon's iteration.
    model = ModelConfig(depth=2, aspect_ratio=360, target_head_dim=72)
    config = tiny_config(20, model=model, optimizer="adamw", lr=1e-4, total_batch_size=64, warmup_tokens=0)
    config = dataclasses.replace(config, precision=precision)
    spec = {"config": config.to_json(), "compiled": compiled, "store": str(tmp_path / "store")}
    spec["out"] = str(tmp_path / "found.json")
    processes = [PROCESSES.Process(target=profile_rank, args=({**spec, "rank": r},)) for r in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(500)
        assert process.exitcode == 0
    found = json.loads((tmp_path / "found.json").read_text())
    for measured in found.values():
        backward = measured["backward"]
        computing = [i for i, name in enumerate(backward) if name.startswith(NODE) and "AccumulateGrad" not in name]
        reductions = [i for i, name in enumerate(backward) if name == "c10d::allreduce_"]
        assert len(reductions) >= 3
        # The first reduction starts with a whole block's backward to come: its matmuls, or its graph.
        after = [backward[i].removeprefix(NODE) for i in computing if i > reductions[0]]
        assert after.count("MmBackward0") >= 6 or after.count("CompiledFunctionBackward") == 1, after
    if "True" in found:
        assert found["True"]["graphs"] == 1  # DDP cuts no block's graph, and both blocks share one
        assert found["True"]["breaks"] == {}
        for got, want in zip(found["True"]["losses"], found["False"]["losses"], strict=True):
            assert got == pytest.approx(want, rel=1e-4)
