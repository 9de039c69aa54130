"""Accuracy on in-context tasks (tinyllm.core_tasks), the same for any number of ranks.

As in DCLM's evaluation, an option is scored by the mean cross-entropy of its whole continuation and the lowest is the
model's choice (of equals the first); language modelling is right where greedy decoding gives every token of the
continuation. nanochat leaves out the tokens that all options of a multiple choice begin with: scores differ a little.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice

import numpy as np
import torch
import torch.nn.functional as F

from tinyllm import ranks
from tinyllm.config import check_seed
from tinyllm.core_tasks import CoreResult, EncodedPrompt, Prompt, Task, TaskResult, fit_prompt, read_tasks
from tinyllm.data import TokenSource
from tinyllm.events import Event, HorizonReached, StepDone
from tinyllm.model import GPT
from tinyllm.options import RunOptions
from tinyllm.tokenizer import Tokenizer

EXAMPLES_IN_TRAINING = 500  # a task, on the way and at the end of a budget, as nanochat has it


def core(
    model: GPT,
    tokenizer: Tokenizer,
    directory: str,
    *,
    device_rows: int,
    precision: str = "fp32",
    max_examples: int | None = None,
    seed: int = 0,
) -> CoreResult:
    """Evaluate a model on the tasks of a directory of DCLM's format. Every rank must call it.

    Args:
        device_rows: prompts a rank takes at once.
        max_examples: of each task, at most so many of its examples, drawn by `seed`. Default: all.
        seed: also draws the shots.

    Raises ValueError for a directory that is not of that format, with the file and the line.
    """
    check_seed(seed)
    if device_rows < 1:
        raise ValueError(f"device_batch_size {device_rows} must be 1 or more")
    if max_examples is not None and max_examples < 1:
        raise ValueError(f"max_examples {max_examples} must be 1 or more, or None for all")
    tasks = read_tasks(directory)
    return evaluate_tasks(
        model, tokenizer, tasks, device_rows=device_rows, precision=precision, max_examples=max_examples, seed=seed
    )


@torch.no_grad()
def evaluate_tasks(
    model: GPT,
    tokenizer: Tokenizer,
    tasks: Sequence[Task],
    *,
    device_rows: int,
    precision: str,
    max_examples: int | None,
    seed: int = 0,
) -> CoreResult:
    """`core` on tasks that are read already. The ranks take turns at the batches, and their counts are added."""
    counts = torch.zeros(len(tasks), 2, dtype=torch.int64, device=model.embedding.weight.device)
    drawn = [task.drawn(max_examples, seed) for task in tasks]
    for task, indices, count in zip(tasks, drawn, counts, strict=True):
        # What shares a batch depends on no rank: padding, and with it rounding, is the same on all of them.
        for batch in list(_batches(task, indices, device_rows))[ranks.rank() :: ranks.world_size()]:
            texts = [prompt for index in batch for prompt in task.prompts(index, seed)]
            encoded = _encode(texts, tokenizer, model.config.context)
            scores = zip(*_score(model, encoded, tokenizer.bos_id, device_rows, precision), encoded, strict=True)
            for index in batch:
                example = task.examples[index]
                losses, hits, prompts = zip(*islice(scores, len(example.options)), strict=True)
                chosen = losses.index(min(losses))
                correct = hits[0] if task.type == "language_modeling" else chosen == example.gold
                count += torch.tensor([correct, any(p.cut for p in prompts)], device=count.device)
    ranks.sum_over_ranks(counts)
    return CoreResult(
        tasks=tuple(
            TaskResult(
                label=task.label,
                n_examples=len(indices),
                n_correct=n_correct,
                n_cut=n_cut,
                baseline=task.baseline,
            )
            for task, indices, (n_correct, n_cut) in zip(tasks, drawn, counts.tolist(), strict=True)
        )
    )


def _batches(task: Task, indices: Sequence[int], device_rows: int) -> Iterator[list[int]]:
    """Consecutive examples whose options fill `device_rows` rows together; one example where it alone has more."""
    batch: list[int] = []
    rows = 0
    for index in indices:
        n_options = len(task.examples[index].options)
        if batch and rows + n_options > device_rows:
            yield batch
            batch, rows = [], 0
        batch.append(index)
        rows += n_options
    if batch:
        yield batch


def _encode(prompts: Sequence[Prompt], tokenizer: Tokenizer, context: int) -> list[EncodedPrompt]:
    befores = tokenizer.encode_batch([p.before for p in prompts], np.uint32)
    wholes = tokenizer.encode_batch([p.whole for p in prompts], np.uint32)
    return [
        fit_prompt(before.tolist(), whole.tolist(), bos_id=tokenizer.bos_id, context=context)
        for before, whole in zip(befores, wholes, strict=True)
    ]


def _score(
    model: GPT, prompts: Sequence[EncodedPrompt], pad_id: int, device_rows: int, precision: str
) -> tuple[list[float], list[bool]]:
    """For each prompt the mean cross-entropy of its span in nats, and whether greedy decoding gives all of it.

    Only the span goes through the output head: it is the dearest part of a small model.
    """
    device = model.embedding.weight.device
    losses: list[float] = []
    hits: list[bool] = []
    for first in range(0, len(prompts), device_rows):
        part = prompts[first : first + device_rows]
        ids_BT = torch.full((len(part), max(len(p.ids) for p in part)), pad_id)  # padded after: nothing looks there
        for row, prompt in enumerate(part):
            ids_BT[row, : len(prompt.ids)] = torch.tensor(prompt.ids)
        lengths = [len(p.ids) - p.start for p in part]
        row_N = torch.arange(len(part)).repeat_interleave(torch.tensor(lengths)).to(device)
        target_N = torch.cat([torch.arange(p.start, len(p.ids)) for p in part]).to(device)
        ids_BT = ids_BT.to(device)
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=precision == "bf16"):
            hidden_ND = model.hidden(ids_BT[:, :-1])[row_N, target_N - 1]
            logits_NV = model.read_out(hidden_ND)
        y_N = ids_BT[row_N, target_N]
        losses_N = F.cross_entropy(logits_NV, y_N, reduction="none").cpu().double()
        hits_N = (logits_NV.argmax(-1) == y_N).cpu()
        losses += [span.mean().item() for span in losses_N.split(lengths)]
        hits += [bool(span.all()) for span in hits_N.split(lengths)]
    return losses, hits


def tasks_of(options: RunOptions, corpus: TokenSource) -> tuple[Task, ...]:
    """The tasks that a run is evaluated on; none without `core_data`.

    Raises ValueError where they cannot be read, or where the corpus has no tokenizer to write them with.
    """
    if options.core_data is None:
        return ()
    if corpus.tokenizer is None:
        raise ValueError(
            f"core_data {options.core_data} is text, and the tokens of corpus {corpus.manifest.name} are not: "
            "train on a corpus with a tokenizer, or leave core_data out"
        )
    return read_tasks(options.core_data)


class CoreReader:
    """Evaluates a run on its tasks as it goes: every `core_every` steps, and where a budget ends.

    Raises ValueError as `tasks_of`.
    """

    def __init__(self, options: RunOptions, corpus: TokenSource, *, device_rows: int, precision: str) -> None:
        self.tasks = tasks_of(options, corpus)
        self.tokenizer = corpus.tokenizer
        self.every, self.device_rows, self.precision = options.core_every, device_rows, precision

    def read(self, event: Event, model: GPT) -> CoreResult | None:
        """The result at an event; None where no evaluation is due. Every rank must call it."""
        if not self.tasks or not self._is_due(event):
            return None
        assert self.tokenizer is not None
        return evaluate_tasks(
            model,
            self.tokenizer,
            self.tasks,
            device_rows=self.device_rows,
            precision=self.precision,
            max_examples=EXAMPLES_IN_TRAINING,
        )

    def _is_due(self, event: Event) -> bool:
        if not isinstance(event, StepDone):
            return isinstance(event, HorizonReached)
        return bool(self.every) and event.step % self.every == 0 and not event.ends_branch
