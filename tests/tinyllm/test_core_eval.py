"""In-context evaluation against one option at a time through all logits; one rank and two; on the way of a run."""

from __future__ import annotations

import json
import math
import multiprocessing
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.tinyllm.core_model import (
    DIRECTORY,
    MODEL,
    SEQ_LEN,
    empty_model,
    facts_corpus,
    make_tokenizer,
    run_core_rank,
)
from tinyllm.config import DataConfig, ModelConfig, OptimConfig, TrainConfig, canonical_json
from tinyllm.core_eval import core
from tinyllm.core_tasks import Prompt, read_tasks
from tinyllm.data import ArrayCorpus, Corpus
from tinyllm.events import CoreScored, Event, StepDone
from tinyllm.generate import load_model
from tinyllm.horizon import Horizon
from tinyllm.launch import train as train_model
from tinyllm.model import GPT
from tinyllm.options import RunOptions
from tinyllm.plan import plan, resolve
from tinyllm.record import read
from tinyllm.state import TrainState
from tinyllm.track import Tracker
from tinyllm.worker import Job, corpus_facts, run

TOKENIZER = make_tokenizer()
BATCH = 16 * SEQ_LEN


def config(*steps: int, corpus: ArrayCorpus) -> TrainConfig:
    asked = TrainConfig(
        model=MODEL,
        optim=OptimConfig(lr=0.02, total_batch_size=BATCH, warmup_tokens=4 * BATCH),
        data=DataConfig(eval_tokens=10 * SEQ_LEN),
        horizons=tuple(Horizon(value=s, unit="steps") for s in steps),
    )
    return resolve(asked, corpus_facts(corpus), "fp32")


@pytest.fixture(scope="module")
def half_trained(tmp_path_factory: pytest.TempPathFactory) -> GPT:
    """A model that knows some of the answers: stopped early on its way through the facts."""
    torch.set_num_threads(1)
    corpus = facts_corpus(TOKENIZER)
    options = RunOptions(stop_after=32, log_every=0)
    root = str(tmp_path_factory.mktemp("half"))
    return run(Job(config=config(60, corpus=corpus), options=options, root=root), corpus=corpus).model


def brute_force(model: GPT, prompt: Prompt) -> tuple[float, bool]:
    """Mean cross-entropy of the continuation, and whether each of its tokens is the likeliest: all logits in fp64."""
    before, whole = TOKENIZER.encode(prompt.before), TOKENIZER.encode(prompt.whole)
    assert whole[: len(before)] == before  # these tasks' continuations begin with a token of their own
    ids = [TOKENIZER.bos_id, *whole][-model.config.context - 1 :]
    if len(whole) > model.config.context:
        ids[0] = TOKENIZER.bos_id
    n_scored = min(len(whole) - len(before), len(ids) - 1)
    with torch.no_grad():
        probabilities = model.logits(torch.tensor([ids[:-1]]))[0].double().softmax(-1)
    scored = range(len(ids) - n_scored, len(ids))
    losses = [-probabilities[i - 1, ids[i]].log().item() for i in scored]
    return sum(losses) / len(losses), all(probabilities[i - 1].argmax().item() == ids[i] for i in scored)


def brute_force_counts(model: GPT, seed: int) -> dict[str, int]:
    counts = {}
    for task in read_tasks(DIRECTORY):
        counts[task.label] = 0
        for index, example in enumerate(task.examples):
            scores = [brute_force(model, prompt) for prompt in task.prompts(index, seed)]
            if task.type == "language_modeling":
                counts[task.label] += scores[0][1]
            else:
                losses = [loss for loss, _ in scores]
                counts[task.label] += int(np.argmin(losses)) == example.gold
    return counts


@pytest.mark.parametrize("device_rows", [1, 6, 64])
def test_scores_are_those_of_one_option_at_a_time(half_trained: GPT, device_rows: int) -> None:
    found = set()
    for seed in range(3):
        result = core(half_trained, TOKENIZER, DIRECTORY, device_rows=device_rows, seed=seed)
        assert {t.label: t.n_correct for t in result.tasks} == brute_force_counts(half_trained, seed)
        assert [(t.n_examples, t.n_cut) for t in result.tasks] == [(8, 0), (6, 0), (6, 0)]
        found.update(t.accuracy for t in result.tasks)
    assert len(found - {0.0, 1.0}) > 1  # neither all right nor all wrong, or this would show little


def test_a_context_too_short_cuts_prompts_from_the_left(half_trained: GPT) -> None:
    short = empty_model(seq_len=20)
    short.load_state_dict(half_trained.state_dict())
    result = core(short, TOKENIZER, DIRECTORY, device_rows=8)
    assert {t.label: t.n_correct for t in result.tasks} == brute_force_counts(short, seed=0)
    sounds, likes, days = result.tasks
    assert sounds.n_cut == 8  # with two shots all are longer than 20 tokens
    assert days.n_cut == 6
    assert likes.n_cut == sum(
        any(len(TOKENIZER.encode(p.whole)) > 20 for p in read_tasks(DIRECTORY)[1].prompts(i, 0)) for i in range(6)
    )
    assert 0 < likes.n_cut < 6


def test_an_option_that_begins_another_is_scored_by_itself(half_trained: GPT, tmp_path: Path) -> None:
    (tmp_path / "eval_data").mkdir()
    (tmp_path / "core.yaml").write_text(
        "icl_tasks:\n- {label: t, dataset_uri: t.jsonl, num_fewshot: 0, icl_task_type: multiple_choice}\n"
    )
    (tmp_path / "eval_meta_data.csv").write_text("Eval Task,Random baseline\nt,50\n")
    rows = [
        {"query": "The day after Monday is", "choices": choices, "gold": gold}
        for choices in (["Tuesday", "Tuesday Tuesday"], ["Friday Friday", "Friday"], ["Sunday", "Sunday"])
        for gold in (0, 1)
    ]
    (tmp_path / "eval_data" / "t.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (task,) = read_tasks(str(tmp_path))
    want = 0
    for index, row in enumerate(rows):
        losses = [brute_force(half_trained, p)[0] for p in task.prompts(index, 0)]
        want += losses.index(min(losses)) == row["gold"]
    (result,) = core(half_trained, TOKENIZER, str(tmp_path), device_rows=2).tasks
    assert result.n_correct == want == 3  # one of each pair, and of two equal options the first


def test_fewer_examples_are_the_first_of_the_draw(half_trained: GPT) -> None:
    (sounds, *_), seed = read_tasks(DIRECTORY), 2
    want = 0
    for index in sounds.drawn(5, seed):
        losses = [brute_force(half_trained, p)[0] for p in sounds.prompts(index, seed)]
        want += losses.index(min(losses)) == sounds.examples[index].gold
    result = core(half_trained, TOKENIZER, DIRECTORY, device_rows=8, max_examples=5, seed=seed)
    assert [t.n_examples for t in result.tasks] == [5, 5, 5]
    assert result.tasks[0].n_correct == want
    with pytest.raises(ValueError, match="max_examples 0 must be 1 or more"):
        core(half_trained, TOKENIZER, DIRECTORY, device_rows=8, max_examples=0)


@pytest.mark.parametrize("world_size", [2, 4])
def test_ranks_share_the_examples_and_agree(half_trained: GPT, tmp_path: Path, world_size: int) -> None:
    torch.save(half_trained.state_dict(), tmp_path / "weights.pt")
    spec = {"weights": str(tmp_path / "weights.pt"), "store": str(tmp_path / "store"), "world_size": world_size}
    children = [
        multiprocessing.get_context("forkserver").Process(
            target=run_core_rank, args=({**spec, "rank": r, "out": str(tmp_path / f"{r}.json")},)
        )
        for r in range(world_size)
    ]
    for child in children:
        child.start()
    for child in children:
        child.join(240)
        assert child.exitcode == 0
    alone = asdict(core(half_trained, TOKENIZER, DIRECTORY, device_rows=4))
    for r in range(world_size):
        assert json.loads((tmp_path / f"{r}.json").read_text()) == json.loads(json.dumps(alone))


def test_a_run_is_evaluated_on_its_way_and_where_budgets_end(tmp_path: Path) -> None:
    torch.set_num_threads(1)
    corpus = facts_corpus(TOKENIZER)
    job = Job(
        config=config(30, 60, corpus=corpus),
        options=RunOptions(core_data=DIRECTORY, core_every=12, log_every=100),
        root=str(tmp_path),
    )
    run(job, corpus=corpus)
    log = (Path(job.run_root) / "log.txt").read_text().splitlines()
    scored = [line.split(" | ") for line in log if "mean centred accuracy" in line]
    where = [parts[0].split(" ", 2)[2] for parts in scored]
    short, long = (f"branch-{steps * BATCH}" for steps in (30, 60))
    assert where == [
        "trunk step 12",
        "trunk step 24",
        f"{short} step 30",
        "trunk step 36",
        "trunk step 48",
        f"{long} step 60",
    ]
    row = read(str(tmp_path))[-1]
    assert row.core == 1.0
    assert row.core_tasks is not None
    by_label = json.loads(row.core_tasks)
    assert by_label["sounds"] == {"accuracy": 1.0, "baseline": 0.25, "centred": 1.0, "n_examples": 8, "n_cut": 0}
    assert list(by_label) == ["days", "likes", "sounds"]
    assert scored[-1][1] == "mean centred accuracy 1.0000 (sounds 1.000, likes 1.000, days 1.000)"  # the facts, learned
    assert "1.0000" not in scored[0][1]
    # What is learned hangs on no evaluation.
    plain = str(tmp_path / "plain")
    run(Job(config=config(30, corpus=corpus), options=RunOptions(log_every=100), root=plain), corpus=corpus)
    got, want = read(str(tmp_path))[0], read(plain)[0]
    assert (got.val_loss, got.train_loss, got.curve) == (want.val_loss, want.train_loss, want.curve)
    assert json.loads(got.metric_versions)["core"] == 1


def test_a_run_killed_while_it_is_scored_at_its_end_has_the_scores_when_it_goes_on(
    tmp_path: Path, text_path: str, run_processes: Any
) -> None:
    asked = TrainConfig(
        model=ModelConfig(depth=1, aspect_ratio=16, target_head_dim=16),
        optim=OptimConfig(lr=0.02, total_batch_size=512, warmup_tokens=1024),
        data=DataConfig(data=text_path, eval_tokens=320),
        horizons=(Horizon(value=8, unit="steps"), Horizon(value=12, unit="steps")),
    )
    text = resolve(asked, corpus_facts(Corpus.open(text_path)), "fp32")
    options = {"core_data": DIRECTORY, "save_every": 5}
    killed, whole = tmp_path / "killed", tmp_path / "whole"
    assert run_processes(killed, text, kill={"scoring": 2}, **options)[-1].steps == 8  # no record without its scores
    got, want = run_processes(killed, text, **options), run_processes(whole, text, **options)
    assert [r.steps for r in got if r.core_tasks is not None] == [8, 12]
    assert [(r.core, r.core_tasks, r.val_loss) for r in got] == [(r.core, r.core_tasks, r.val_loss) for r in want]
    weights = whole / "runs" / text.run_id / "weights" / str(12 * 512)
    model, _, tokenizer = load_model(str(weights), "cpu")
    assert tokenizer is not None
    by_itself = core(model, tokenizer, DIRECTORY, device_rows=8)
    assert want[-1].core_tasks == canonical_json(by_itself.by_task())


def test_what_evaluation_costs_is_not_training_time(tmp_path: Path) -> None:
    torch.set_num_threads(1)
    corpus = facts_corpus(TOKENIZER)
    between_readers, left = 0.0, math.inf

    def slow_reader(event: Event) -> None:
        nonlocal between_readers, left
        between_readers += max(0.0, time.perf_counter() - left)  # nothing before the first event
        if isinstance(event, StepDone) and event.step % 2 == 0:
            time.sleep(0.3)  # what is measured here is time itself
        left = time.perf_counter()

    # At no such step is anything logged: it is measured for the evaluation's sake alone.
    options = RunOptions(core_data=DIRECTORY, core_every=2, log_every=15)
    job = Job(config=config(20, corpus=corpus), options=options, root=str(tmp_path))
    run(job, corpus=corpus, on_event=slow_reader)
    (row,) = read(str(tmp_path))
    assert row.seconds is not None
    assert 0 < row.seconds < between_readers


def test_centred_accuracies_are_tracked(half_trained: GPT, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_SILENT", "true")
    run_config = config(30, corpus=facts_corpus(TOKENIZER))
    state = TrainState(run_config, plan(run_config), torch.device("cpu"))
    tracker = Tracker(str(tmp_path), state, RunOptions(wandb="offline"), sweep=None, mfu=lambda speed: None)
    result = core(half_trained, TOKENIZER, DIRECTORY, device_rows=8)
    tracker.read(CoreScored(branch=None, step=7, tokens=7 * BATCH, result=result))
    tracker.close()
    (file,) = (tmp_path / "wandb").glob("offline-run-*/run-*.wandb")
    written = file.read_bytes()  # keys and values as JSON, uncompressed
    expected = {f"core/{t.label}": t.centred for t in result.tasks} | {"core/mean": result.mean, "tokens": 7 * BATCH}
    for name, value in expected.items():
        assert name.encode() in written
        assert json.dumps(value).encode() in written


def test_what_a_run_cannot_be_evaluated_on_is_refused_before_it_starts(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="core_every 10: give core_data, the directory of the tasks, as well"):
        RunOptions(core_every=10)
    with pytest.raises(ValueError, match="core_every -1 must be 0"):
        RunOptions(core_every=-1, core_data=DIRECTORY)
    tokens = np.zeros(4_000, np.uint16)
    asked = TrainConfig(model=config(5, corpus=facts_corpus(TOKENIZER)).model)
    with pytest.raises(ValueError, match=r"core_data .* is text, and the tokens of corpus array are not"):
        train_model(
            asked, RunOptions(core_data=DIRECTORY), out=str(tmp_path), tokens=tokens, val_tokens=tokens, echo=None
        )
    corpus = facts_corpus(TOKENIZER)
    options = RunOptions(core_data=str(tmp_path / "nowhere"))
    with pytest.raises(ValueError, match=r"there is no .*nowhere/core.yaml"):
        run(Job(config=config(5, corpus=corpus), options=options, root=str(tmp_path / "run")), corpus=corpus)
    assert read(str(tmp_path / "run")) == []
