"""In-context tasks in the format of DCLM's evaluation (Li et al. 2024, arXiv:2406.11794): reading, prompts, centring.

A directory of that format:

    core.yaml            icl_tasks: a list of label, icl_task_type, dataset_uri, num_fewshot, [continuation_delimiter]
    eval_data/           the files that dataset_uri names, one example a line as JSON
    eval_meta_data.csv   a random baseline in percent for each label: columns "Eval Task" and "Random baseline"

Examples by icl_task_type: multiple_choice {"query", "choices", "gold"}; schema {"context_options", "continuation",
"gold"}; language_modeling {"context", "continuation"}. All three are options of (context, continuation): the options of
a multiple choice share the context, those of a schema the continuation, and a language-modelling example has but one.
"""

from __future__ import annotations

import csv
import io
import json
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import yaml

from tinyllm import storage

TaskType = Literal["multiple_choice", "schema", "language_modeling"]
# Defaults of the evaluator that the format comes from (llm-foundry, build_icl_evaluators).
CONTINUATION_DELIMITER = " "
EXAMPLE_DELIMITER = "\n"
_REQUIRED_KEYS = frozenset({"label", "icl_task_type", "dataset_uri", "num_fewshot"})
# has_categories asks for sub-scores by category, which no mean here is built on; the rest would change the prompts.
_OPTIONAL_KEYS = frozenset({"continuation_delimiter", "example_delimiter", "has_categories"})


@dataclass(frozen=True, kw_only=True)
class Example:
    options: tuple[tuple[str, str], ...]
    """(context, continuation) of each option, without surrounding whitespace; no continuation is empty."""
    gold: int
    """Index of the right option."""


@dataclass(frozen=True, kw_only=True)
class Prompt:
    """The text of one option; the model is scored on how well it predicts `whole` beyond `before`."""

    before: str
    """Shots, context and delimiter, without trailing whitespace: tokens take the space before a word with the word."""
    whole: str


@dataclass(frozen=True, kw_only=True)
class Task:
    label: str
    type: TaskType
    n_shots: int
    continuation_delimiter: str
    example_delimiter: str
    baseline: float
    """Accuracy of guessing, in [0, 1)."""
    examples: tuple[Example, ...]

    def drawn(self, max_examples: int | None, seed: int) -> list[int]:
        """Indices of the examples to evaluate: all, or the first `max_examples` of a seeded shuffle."""
        indices = list(range(len(self.examples)))
        random.Random(f"{seed}/{self.label}").shuffle(indices)
        return indices[:max_examples]

    def prompts(self, index: int, seed: int) -> list[Prompt]:
        """A prompt for each option of an example, after `n_shots` solved examples, the same for all of its options.

        The shots hang on seed, label and index alone, so that neither ranks nor `max_examples` change a prompt.
        """
        others = random.Random(f"{seed}/{self.label}/{index}").sample(range(len(self.examples) - 1), self.n_shots)
        shots = ""
        for other in others:
            shot = self.examples[other + (other >= index)]  # skips the example itself
            context, continuation = shot.options[shot.gold]
            shots += context + self.continuation_delimiter + continuation + self.example_delimiter
        prompts = []
        for context, continuation in self.examples[index].options:
            before = shots + context + self.continuation_delimiter
            prompts.append(Prompt(before=before.rstrip(), whole=before + continuation))
        return prompts


@dataclass(frozen=True, kw_only=True)
class EncodedPrompt:
    ids: tuple[int, ...]
    """BOS and tokens, at most the model's context + 1: all but the last are read, all but the first are predicted."""
    start: int
    """The tokens from here on are scored."""
    cut: bool
    """Whether tokens were dropped to fit the context."""


def fit_prompt(before: Sequence[int], whole: Sequence[int], *, bos_id: int, context: int) -> EncodedPrompt:
    """The tokens of a prompt, cut from the left to the context but for BOS, and where its scored span begins.

    The span begins where the tokens of `whole` leave those of `before`: a token that joins the end of the one to the
    beginning of the other belongs to the span. A span longer than the context is scored by its last tokens.
    """
    shorter = min(len(before), len(whole))
    start = next((i for i in range(shorter) if before[i] != whole[i]), shorter)
    assert start < len(whole), "a prompt whose continuation has no token"
    dropped = max(0, len(whole) - context)
    return EncodedPrompt(ids=(bos_id, *whole[dropped:]), start=1 + max(0, start - dropped), cut=dropped > 0)


@dataclass(frozen=True, kw_only=True)
class TaskResult:
    label: str
    n_examples: int
    n_correct: int
    n_cut: int
    """Examples of which a prompt did not fit the context and lost its beginning."""
    baseline: float

    @property
    def accuracy(self) -> float:
        return self.n_correct / self.n_examples

    @property
    def centred(self) -> float:
        """Accuracy rescaled so that guessing gives 0 and no mistake gives 1 (Li et al. 2024)."""
        return (self.accuracy - self.baseline) / (1 - self.baseline)


@dataclass(frozen=True, kw_only=True)
class CoreResult:
    tasks: tuple[TaskResult, ...]

    @property
    def mean(self) -> float:
        """Mean centred accuracy over the tasks: CORE, where they are its 22 (Li et al. 2024)."""
        return sum(t.centred for t in self.tasks) / len(self.tasks)

    def by_task(self) -> dict[str, dict[str, float]]:
        """The figures of each task by its label, as a record and `tinyllm score` give them."""
        names = ("accuracy", "baseline", "centred", "n_examples", "n_cut")
        return {t.label: {name: getattr(t, name) for name in names} for t in self.tasks}


def read_tasks(directory: str) -> tuple[Task, ...]:
    """The tasks of a directory (or URI), in the order of its core.yaml.

    Raises ValueError with the file, and the line where there is one, for what is missing or is not of the format.
    """
    path = storage.join(directory, "core.yaml")
    try:
        config = yaml.safe_load(_read_text(path))
    except yaml.YAMLError as error:
        raise ValueError(f"{path} is no YAML: {error}") from error
    entries = config.get("icl_tasks") if isinstance(config, dict) else None
    if not isinstance(entries, list) or not entries:
        raise ValueError(f"{path} has no list icl_tasks: give a directory in the format of DCLM's evaluation")
    baselines = _read_baselines(storage.join(directory, "eval_meta_data.csv"))
    tasks = tuple(_read_task(entry, baselines, directory, path) for entry in entries)
    labels = [task.label for task in tasks]
    if repeated := {label for label in labels if labels.count(label) > 1}:
        raise ValueError(f"{path} has more than one task labelled {sorted(repeated)}: give each a label of its own")
    return tasks


def _read_text(path: str) -> str:
    try:
        return storage.read_bytes(path).decode("utf-8-sig")
    except FileNotFoundError:
        raise ValueError(
            f"there is no {path}: a directory of in-context tasks holds core.yaml, eval_data/ and eval_meta_data.csv"
        ) from None
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is no UTF-8 text: {error}") from error


def _read_baselines(path: str) -> dict[str, float]:
    """Accuracy of guessing by label, in [0, 1)."""
    reader = csv.DictReader(io.StringIO(_read_text(path), newline=""))
    missing = {"Eval Task", "Random baseline"} - set(reader.fieldnames or ())
    if missing:
        raise ValueError(f"{path} has no column {sorted(missing)}: its columns are {reader.fieldnames}")
    baselines = {}
    for row in reader:
        text = row["Random baseline"]
        try:
            percent = float(text)
        except (TypeError, ValueError):
            percent = -1.0
        if not 0 <= percent < 100:
            raise ValueError(f"{path}, line {reader.line_num}: random baseline {text!r} is no percentage below 100")
        baselines[row["Eval Task"]] = percent / 100
    return baselines


def _read_task(entry: Any, baselines: Mapping[str, float], directory: str, path: str) -> Task:
    if not isinstance(entry, dict) or not entry.keys() >= _REQUIRED_KEYS:
        raise ValueError(f"{path}: the task {entry!r} needs {', '.join(sorted(_REQUIRED_KEYS))}")
    label = str(entry["label"])
    if unknown := entry.keys() - _REQUIRED_KEYS - _OPTIONAL_KEYS:
        raise ValueError(f"{path}: task {label} sets {sorted(unknown)}, which is not supported: leave the task out")
    type_ = entry["icl_task_type"]
    if type_ not in get_args(TaskType):
        raise ValueError(f"{path}: task {label} is of type {type_!r}, which is none of {', '.join(get_args(TaskType))}")
    shots = entry["num_fewshot"]
    n_shots = shots[0] if isinstance(shots, list) and len(shots) == 1 else shots
    if not isinstance(n_shots, int) or n_shots < 0:
        raise ValueError(f"{path}: task {label} has num_fewshot {shots!r}: give one number, 0 or more")
    if label not in baselines:
        raise ValueError(f"task {label} of {path} has no row in eval_meta_data.csv: add its random baseline there")
    data = storage.join(directory, "eval_data", str(entry["dataset_uri"]))
    examples = tuple(_read_examples(data, type_))
    if len(examples) <= n_shots:
        raise ValueError(f"{data} has {len(examples)} examples, too few for {n_shots} shots beside the one evaluated")
    return Task(
        label=label,
        type=type_,
        n_shots=n_shots,
        continuation_delimiter=entry.get("continuation_delimiter", CONTINUATION_DELIMITER),
        example_delimiter=entry.get("example_delimiter", EXAMPLE_DELIMITER),
        baseline=baselines[label],
        examples=examples,
    )


def _read_examples(path: str, type_: TaskType) -> Iterator[Example]:
    # Not splitlines(): JSON may hold U+2028 and its like as they are.
    for number, line in enumerate(_read_text(path).split("\n"), start=1):
        if line.strip():
            try:
                yield _example(json.loads(line), type_)
            except ValueError as error:  # JSONDecodeError is one
                raise ValueError(f"{path}, line {number}: {error}; a {type_} task cannot use it") from error


def _example(row: Any, type_: TaskType) -> Example:
    if not isinstance(row, dict):
        raise ValueError(f"{row!r} is no JSON object")
    match type_:
        case "multiple_choice":
            query = _text(row, "query")
            options = tuple((query, choice) for choice in _texts(row, "choices"))
        case "schema":
            continuation = _text(row, "continuation")
            options = tuple((context, continuation) for context in _texts(row, "context_options"))
        case "language_modeling":
            options = ((_text(row, "context"), _text(row, "continuation")),)
    gold = 0 if type_ == "language_modeling" else row.get("gold")
    if type(gold) is not int or not 0 <= gold < len(options):
        raise ValueError(f"gold {gold!r} is no index of its {len(options)} options")
    if not all(continuation for _, continuation in options):
        raise ValueError("an empty continuation")
    return Example(options=options, gold=gold)


def _text(row: Mapping[str, Any], key: str) -> str:
    value = row.get(key)
    if not isinstance(value, str):
        raise ValueError(f"{key} is {value!r}, not a text")
    return value.strip()


def _texts(row: Mapping[str, Any], key: str) -> list[str]:
    values = row.get(key)
    if not isinstance(values, list) or len(values) < 2 or not all(isinstance(v, str) for v in values):
        raise ValueError(f"{key} is {values!r}, not a list of two texts or more")
    return [v.strip() for v in values]
