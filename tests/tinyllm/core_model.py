"""A tokenizer and models for the tiny in-context tasks of tests/tinyllm/data/core, and one rank of an evaluation."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from tinyllm.config import ModelConfig
from tinyllm.core_eval import core
from tinyllm.core_tasks import read_tasks
from tinyllm.data import ArrayCorpus
from tinyllm.model import GPT, build_model
from tinyllm.tokenizer import Tokenizer

DIRECTORY = str(Path(__file__).parent / "data" / "core")
SEQ_LEN = 96
VOCAB_SIZE = 320
MODEL = ModelConfig(depth=2, aspect_ratio=32, target_head_dim=16)


def facts() -> list[str]:
    """Every example of the tasks, answered."""
    lines = []
    for task in read_tasks(DIRECTORY):
        for example in task.examples:
            context, continuation = example.options[example.gold]
            lines.append(context + task.continuation_delimiter + continuation)
    return lines


def make_tokenizer() -> Tokenizer:
    return Tokenizer.train(facts(), VOCAB_SIZE)


def facts_tokens(tokenizer: Tokenizer, n_tokens: int) -> np.ndarray:
    """Texts of three facts each, in random order, until there are `n_tokens` ids."""
    rng = np.random.default_rng(0)
    known = facts()
    ids: list[int] = []
    while len(ids) < n_tokens:
        ids += [tokenizer.bos_id, *tokenizer.encode("\n".join(rng.choice(known, 3)))]
    return np.array(ids[:n_tokens], np.uint16)


def facts_corpus(tokenizer: Tokenizer) -> ArrayCorpus:
    tokens = facts_tokens(tokenizer, 40_000)
    corpus = ArrayCorpus(tokens, tokens[:2_000], vocab_size=VOCAB_SIZE, seq_len=SEQ_LEN)
    corpus.tokenizer = tokenizer
    return corpus


def empty_model(seq_len: int = SEQ_LEN) -> GPT:
    """The model that is trained on the facts, before it is."""
    return build_model(replace(MODEL, vocab_size=VOCAB_SIZE, seq_len=seq_len), 0, torch.device("cpu"))


def run_core_rank(spec: dict[str, Any]) -> None:
    """Evaluate a model of the given weights as one rank of a group and write the result to `out`."""
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{spec['store']}", rank=spec["rank"], world_size=spec["world_size"]
    )
    model = empty_model()
    model.load_state_dict(torch.load(spec["weights"]))
    result = core(model, make_tokenizer(), DIRECTORY, device_rows=4)
    Path(spec["out"]).write_text(json.dumps(asdict(result)))
    dist.destroy_process_group()
