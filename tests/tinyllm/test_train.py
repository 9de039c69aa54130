"""The loop in this process: exact steps, exact trunks, accumulation, divergence, events."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from tests.tinyllm.conftest import BATCH, comparable
from tinyllm import hardware
from tinyllm import train as train_module
from tinyllm.checkpoint import entries
from tinyllm.config import ModelConfig, TrainConfig
from tinyllm.data import ArrayCorpus, Corpus, Feed
from tinyllm.evaluate import evaluate
from tinyllm.events import Diverged, Evaluated, Forked, HorizonReached, StepDone, Stopped
from tinyllm.launch import train as train_model
from tinyllm.options import RunOptions
from tinyllm.plan import plan
from tinyllm.record import RunRecord, read
from tinyllm.state import TrainState
from tinyllm.train import _Loop, train
from tinyllm.worker import Job, run

CPU = torch.device("cpu")
ConfigMaker = Callable[..., TrainConfig]


@pytest.fixture(autouse=True)
def _threads() -> None:
    torch.set_num_threads(1)


def fresh(config: TrainConfig) -> TrainState:
    hardware.configure(CPU, deterministic=False)
    return TrainState(config, plan(config), CPU)


def learned(row: RunRecord) -> RunRecord:
    """A comparable record of one budget, without the list of budgets that were asked for beside it."""
    return dataclasses.replace(comparable(row), plan="", config="")


def test_golden_first_step_against_autograd_and_adamw_by_hand(tiny_config: ConfigMaker) -> None:
    config = tiny_config(10, optimizer="adamw", warmup_tokens=0, grad_clip=0.0, weight_decay=0.0, eps=1e-8)
    state = fresh(config)
    before = {name: p.detach().clone() for name, p in state.model.named_parameters()}
    corpus = Corpus.open(config.data.data)  # type: ignore[arg-type]
    rows = torch.from_numpy(corpus.train_rows(np.arange(16), seed=0).astype(np.int64))
    loss = F.cross_entropy(state.model.logits(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())
    gradients = torch.autograd.grad(loss, list(state.model.parameters()))
    events = train(state, corpus, RunOptions(log_every=1), device_rows=16)
    first = next(events)
    assert isinstance(first, StepDone)
    assert first.train_loss == pytest.approx(loss.item(), rel=1e-6)
    norm = math.sqrt(sum(g.double().square().sum().item() for g in gradients))
    assert first.grad_norm == pytest.approx(norm, rel=1e-5)
    # AdamW's first step moves a weight by lr * g / (|g| + eps), whatever beta1 and beta2
    peaks = plan(config).peak_lrs
    lr = {"embedding": peaks.embedding, "head": peaks.head, "residual_gains": peaks.scalar, "input_gains": peaks.scalar}
    for (name, p), g in zip(state.model.named_parameters(), gradients, strict=True):
        rate = lr.get(name.split(".")[0], peaks.hidden)
        want = before[name] - rate * g / (g.abs() + 1e-8)
        significant = g.abs() > 1e-6  # elsewhere the sign hangs on rounding
        torch.testing.assert_close(p.detach()[significant], want[significant], rtol=1e-3, atol=1e-3 * rate)
    events.close()  # type: ignore[attr-defined]


@pytest.mark.parametrize("device_rows", [1, 4, 16])
def test_accumulation_changes_neither_losses_nor_gradients(tiny_config: ConfigMaker, device_rows: int) -> None:
    def two_steps(rows: int) -> list[StepDone]:
        config = tiny_config(10)
        events = train(fresh(config), Corpus.open(config.data.data), RunOptions(log_every=1), device_rows=rows)  # type: ignore[arg-type]
        found = [next(events), next(events)]
        events.close()  # type: ignore[attr-defined]
        return found  # type: ignore[return-value]

    # The second step stands on weights that the first one moved: Newton-Schulz and AdamW magnify rounding.
    for got, want, rel in zip(two_steps(device_rows), two_steps(8), (1e-6, 1e-4), strict=True):
        assert got.train_loss == pytest.approx(want.train_loss, rel=rel)
        assert got.grad_norm == pytest.approx(want.grad_norm, rel=rel)


def test_events_of_a_trunk_with_two_branches_come_in_order(tiny_config: ConfigMaker) -> None:
    config = tiny_config(10, 20)
    state = fresh(config)
    events = list(train(state, Corpus.open(config.data.data), RunOptions(log_every=4, eval_every=8), device_rows=16))  # type: ignore[arg-type]
    seen = [(type(e).__name__, e.segment, e.step) for e in events if not isinstance(e, StepDone)]
    assert seen == [
        ("Evaluated", "trunk", 0),
        ("Evaluated", "trunk", 8),
        ("Forked", "trunk", 8),
        ("HorizonReached", "branch-5120", 10),
        ("Evaluated", "trunk", 16),
        ("Forked", "trunk", 16),
        ("HorizonReached", "branch-10240", 20),
    ]
    steps = [(e.segment, e.step) for e in events if isinstance(e, StepDone)]
    assert steps == [
        *(("trunk", s) for s in range(1, 9)),
        *(("branch-5120", s) for s in (9, 10)),
        *(("trunk", s) for s in range(9, 17)),
        *(("branch-10240", s) for s in range(17, 21)),
    ]
    assert isinstance(events[-1], HorizonReached)
    zero = next(e for e in events if isinstance(e, Evaluated))
    assert zero.val_loss == pytest.approx(math.log(64), abs=0.02)
    assert events[-1].val_loss < zero.val_loss - 0.2


@pytest.mark.parametrize("optim", [{}, {"optimizer": "adamw", "lr": 0.003}, {"decay_shape": "1-sqrt"}])
def test_a_record_does_not_depend_on_the_other_horizons(
    tiny_config: ConfigMaker, tmp_path: Path, optim: dict[str, object]
) -> None:
    rows = {}
    for name, budgets in {"alone": (20,), "first": (20, 33), "last": (11, 20), "middle": (11, 20, 33)}.items():
        config = tiny_config(*budgets, **optim)
        run(Job(config=config, options=RunOptions(log_every=3, eval_every=5), root=str(tmp_path / name)))
        (rows[name],) = (r for r in read(str(tmp_path / name)) if r.steps == 20)
    assert rows["alone"].curve
    for name in ("first", "last", "middle"):
        assert learned(rows[name]) == learned(rows["alone"]), name


def test_a_budget_added_later_continues_the_trunk(tiny_config: ConfigMaker, tmp_path: Path) -> None:
    whole = str(tmp_path / "whole")
    run(Job(config=tiny_config(12, 16, 30), options=RunOptions(log_every=3), root=whole))
    pieces = str(tmp_path / "pieces")
    steps_taken = []
    for budgets in ((12,), (12, 30), (12, 16, 30)):
        taken: list[StepDone] = []
        run(
            Job(config=tiny_config(*budgets), options=RunOptions(log_every=3), root=pieces),
            on_event=lambda e, taken=taken: taken.append(e) if isinstance(e, StepDone) else None,
        )
        steps_taken.append(len(taken))
    assert [learned(r) for r in read(pieces)] == [learned(r) for r in read(whole)]
    # 12: 10 trunk + 2; then from the fork at 10: 14 trunk + 6; then 16 from the fork at 10: 3 trunk + 3
    assert steps_taken == [12, 20, 6]


def test_stop_after_trains_in_pieces(tiny_config: ConfigMaker, tmp_path: Path) -> None:
    config = tiny_config(12, 30)
    whole, pieces = str(tmp_path / "whole"), str(tmp_path / "pieces")
    run(Job(config=config, options=RunOptions(log_every=5), root=whole))
    for stop in (4, 11, 20, None):
        events: list[object] = []
        run(Job(config=config, options=RunOptions(log_every=5, stop_after=stop), root=pieces), on_event=events.append)
        assert isinstance(events[-1], Stopped) == (stop is not None)
    assert [learned(r) for r in read(pieces)] == [learned(r) for r in read(whole)]


@pytest.mark.parametrize("device_rows", [16, 4])
def test_a_stop_asked_for_at_any_moment_loses_nothing(
    tiny_config: ConfigMaker, tmp_path: Path, device_rows: int
) -> None:
    config = tiny_config(12, 20)
    whole, pieces = str(tmp_path / "whole"), str(tmp_path / "pieces")
    options = RunOptions(log_every=5, device_batch_size=device_rows)
    run(Job(config=config, options=options, root=whole))
    attempts = 0
    while len([r for r in read(pieces) if r.status == "done"]) < 2:
        countdown = iter(range(7 + attempts))
        events: list[object] = []
        run(
            Job(config=config, options=options, root=pieces),
            on_event=events.append,
            should_stop=lambda countdown=countdown: next(countdown, None) is None,
        )
        attempts += 1
        assert attempts < 60
    assert attempts > 3
    assert [learned(r) for r in read(pieces)] == [learned(r) for r in read(whole)]


def test_cosine_resumed_after_its_last_step_only_evaluates(tiny_config: ConfigMaker, tmp_path: Path) -> None:
    config = tiny_config(12, schedule="cosine")
    job = Job(config=config, options=RunOptions(log_every=5), root=str(tmp_path))
    run(job)
    (first,) = read(str(tmp_path))
    for part in (tmp_path / "records").iterdir():
        part.unlink()
    events: list[object] = []
    run(job, on_event=events.append)
    assert [type(e) for e in events] == [Forked, HorizonReached]
    (again,) = read(str(tmp_path))
    assert learned(again) == learned(first)


def test_a_run_that_is_done_trains_nothing(tiny_config: ConfigMaker, tmp_path: Path) -> None:
    job = Job(config=tiny_config(6), options=RunOptions(), root=str(tmp_path))
    run(job)
    events: list[object] = []
    run(job, on_event=events.append)
    assert events == []
    assert len(list((tmp_path / "records").iterdir())) == 1


def test_a_diverged_run_says_the_last_loss_better_than_guessing_and_a_rerun_says_the_same(
    tiny_config: ConfigMaker, tmp_path: Path
) -> None:
    config = tiny_config(60, lr=0.3, optimizer="adamw", grad_clip=0.0, warmup_tokens=BATCH * 20)
    job = Job(config=config, options=RunOptions(log_every=1, save_every=10), root=str(tmp_path))
    losses: list[float | None] = []
    told: list[str] = []

    def note(event: object) -> None:
        if isinstance(event, StepDone):
            losses.append(event.train_loss_ema)

    run(job, on_event=note, echo=told.append)
    good = [x for x in losses if x is not None and x <= math.log(64)]
    reasons = [r.reason for r in read(str(tmp_path))]
    assert reasons and str(reasons[0]).endswith(f"; last good loss {good[-1]:.4f}")
    first = told[-1]
    run(job, echo=told.append)
    assert any("continuing from" in line for line in told)
    assert told[-1] == first and str(reasons[0]) in first
    assert [r.reason for r in read(str(tmp_path))] == reasons


def test_an_lr_that_explodes_at_once_ends_as_diverged_and_calls_no_loss_good(
    tiny_config: ConfigMaker, tmp_path: Path
) -> None:
    config = tiny_config(40, 60, lr=1e6, optimizer="adamw", grad_clip=0.0, warmup_tokens=0)
    events: list[object] = []
    run(Job(config=config, options=RunOptions(log_every=1), root=str(tmp_path)), on_event=events.append)
    assert isinstance(events[-1], Diverged)
    rows = read(str(tmp_path))
    assert [r.status for r in rows] == ["diverged", "diverged"]
    assert all(r.reason and r.val_loss is None for r in rows)
    assert events[-1].last_good_loss is None or events[-1].last_good_loss <= math.log(64)
    assert ("last good loss" in str(rows[0].reason)) == (events[-1].last_good_loss is not None)
    assert not any(e.step >= events[-1].step for e in entries(str(tmp_path / "runs" / config.run_id)))


@pytest.mark.parametrize("skips", ["host", "device"])
def test_a_gradient_that_is_not_finite_touches_no_weight_and_ends_the_run(
    tiny_config: ConfigMaker, monkeypatch: pytest.MonkeyPatch, skips: str
) -> None:
    # On a GPU the optimizers skip by themselves; those of the CPU honour the same flag.
    monkeypatch.setattr(train_module, "SKIPS_ON_DEVICE", ("cpu",) if skips == "device" else ())
    config = tiny_config(20)
    state = fresh(config)
    events = train(state, Corpus.open(config.data.data), RunOptions(log_every=4), device_rows=16)  # type: ignore[arg-type]
    for _ in range(5):
        next(events)
    state.model.head.weight.register_hook(lambda g: g * torch.nan)
    weights = {k: v.clone() for k, v in state.model.state_dict().items()}
    found = list(events)
    assert all(torch.equal(v, weights[k]) for k, v in state.model.state_dict().items())
    assert isinstance(found[-1], Diverged)
    assert found[-1].step == 8  # the next log step
    assert "step 6" in found[-1].reason
    assert found[-1].last_good_loss is not None


@pytest.mark.parametrize("how", ["stop_after", "should_stop"])
def test_a_stop_after_a_gradient_that_was_not_finite_is_no_state_to_save(tiny_config: ConfigMaker, how: str) -> None:
    config = tiny_config(20)
    state = fresh(config)
    asked: list[bool] = []
    options = RunOptions(log_every=100, stop_after=8 if how == "stop_after" else None)
    events = train(
        state,
        Corpus.open(config.data.data),
        options,
        device_rows=16,
        should_stop=lambda: bool(asked),  # type: ignore[arg-type]
    )
    for _ in range(5):
        next(events)
    state.model.head.weight.register_hook(lambda g: g * torch.nan)
    next(events)
    if how == "should_stop":
        asked.append(True)
    *_, last = events
    assert isinstance(last, Diverged)  # before the next log step: nobody had looked yet
    assert "step 6" in last.reason


def test_a_shard_that_fails_on_the_way_is_recorded_and_raised(tiny_config: ConfigMaker, tmp_path: Path) -> None:
    config = tiny_config(10, 20)

    gone: list[object] = []  # from the first budget on: the trunk's rows must be read again

    class Broken:
        def __init__(self, inner: object) -> None:
            self.inner = inner

        def __getattr__(self, name: str) -> object:
            return getattr(self.inner, name)

        def train_rows(self, positions: np.ndarray, *, seed: int) -> np.ndarray:
            if gone:
                raise OSError("disk gone")
            return self.inner.train_rows(positions, seed=seed)  # type: ignore[attr-defined, no-any-return]

    job = Job(config=config, options=RunOptions(), root=str(tmp_path))
    with pytest.raises(OSError, match="disk gone"):
        run(
            job,
            corpus=Broken(Corpus.open(config.data.data)),  # type: ignore[arg-type]
            on_event=lambda e: gone.append(e) if isinstance(e, HorizonReached) else None,
        )
    assert [(r.steps, r.status) for r in read(str(tmp_path))] == [(10, "done"), (20, "failed")]
    run(job)  # the same again, with the disk back
    assert [(r.steps, r.status) for r in read(str(tmp_path))] == [(10, "done"), (20, "done")]


def test_evaluation_is_the_token_weighted_mean_in_nats_and_bits(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    lengths = np.array([0, *rng.integers(1, 6, 63)], np.int32)
    tokens = rng.integers(0, 64, 10 * 32 + 1).astype(np.uint16)
    corpus = ArrayCorpus(tokens, tokens, vocab_size=64, seq_len=32, token_bytes=lengths)
    config = ModelConfig(depth=1, aspect_ratio=16, target_head_dim=16, vocab_size=64, seq_len=32)
    from tinyllm.model import build_model

    model = build_model(config, 0, CPU)
    with torch.no_grad():
        model.head.weight.normal_(generator=torch.Generator().manual_seed(0))
    ids = torch.from_numpy(tokens.astype(np.int64))
    rows = torch.stack([ids[i * 32 : i * 32 + 33] for i in range(10)])
    targets = rows[:, 1:]
    losses = F.cross_entropy(model.logits(rows[:, :-1]).transpose(1, 2), targets, reduction="none").double()
    n_bytes = torch.from_numpy(lengths.astype(np.int64))[targets]
    want_bits = losses[n_bytes > 0].sum() / n_bytes.sum() / math.log(2)
    for device_rows in (1, 3, 10):
        got = evaluate(model, corpus, eval_tokens=10**9, device_rows=device_rows, precision="fp32")
        assert got.val_loss == pytest.approx(losses.mean().item(), rel=1e-6)
        assert got.val_bpb == pytest.approx(want_bits.item(), rel=1e-6)
    few = evaluate(model, corpus, eval_tokens=1, device_rows=4, precision="fp32")
    assert few.val_loss == pytest.approx(losses[0].mean().item(), rel=1e-6)  # at least one row, never 0 / 0


def test_arrays_in_memory_train_from_python(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    tokens = rng.integers(0, 8, 40_000).astype(np.uint16)
    config = TrainConfig(
        model=ModelConfig(depth=1, aspect_ratio=16, target_head_dim=16, vocab_size=8, seq_len=32),
        optim=dataclasses.replace(TrainConfig().optim, total_batch_size=256, warmup_tokens=256, lr=0.01),
    )
    config = dataclasses.replace(config, horizons=(dataclasses.replace(_steps(40)),))
    (row,) = train_model(config, out=str(tmp_path), tokens=tokens, val_tokens=tokens[:4000], echo=None)
    assert row.status == "done"
    assert row.val_loss == pytest.approx(math.log(8), abs=0.1)  # uniform noise has nothing else to learn
    with pytest.raises(ValueError, match="both tokens= and val_tokens="):
        train_model(config, out=str(tmp_path), tokens=tokens)


def _steps(n: int):  # type: ignore[no-untyped-def]
    from tinyllm.horizon import Horizon

    return Horizon(value=n, unit="steps")


def test_bf16_runs_under_autocast_and_stays_near_fp32(tiny_config: ConfigMaker, tmp_path: Path) -> None:
    rows = {}
    for precision in ("fp32", "bf16"):
        config = dataclasses.replace(tiny_config(12), precision=precision)
        run(Job(config=config, options=RunOptions(), root=str(tmp_path / precision)))
        (rows[precision],) = read(str(tmp_path / precision))
    assert rows["bf16"].precision == "bf16"
    assert rows["bf16"].val_loss != rows["fp32"].val_loss
    assert rows["bf16"].val_loss == pytest.approx(rows["fp32"].val_loss, rel=0.02)


def test_a_loss_far_above_its_minimum_for_50_steps_is_an_explosion(tiny_config: ConfigMaker) -> None:
    config = tiny_config(400)
    loop = _Loop(fresh(config), Corpus.open(config.data.data), RunOptions(), 16, lambda: False, Feed)  # type: ignore[arg-type]

    def judged(step: int, ema: float, log: bool = True) -> str | None:
        event = StepDone(branch=None, step=step, tokens=step * 512, lr=0.02, train_loss=ema, train_loss_ema=ema)
        return loop._diverged(event, log=log)

    assert judged(10, 2.0) is None
    assert judged(20, 3.1) is None  # 1.1 above the minimum: the clock starts
    assert judged(60, 2.9) is None  # back below: it stops
    assert judged(70, 3.2) is None
    assert judged(119, 3.2) is None
    assert judged(125, 3.2, log=False) is None  # judged at log steps alone, which other budgets do not move
    reason = judged(120, 3.2)
    assert reason is not None and "minimum 2.000 since step 70" in reason
    assert judged(130, math.log(64) + 1.01) is not None  # worse than guessing ends at once
    assert judged(3, 100.0) is None  # but not in the warmup
    assert judged(140, math.nan, log=False) is not None
    loop.close()
