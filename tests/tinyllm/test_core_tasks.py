"""Reading in-context tasks, their prompts, and what a score is centred on."""

from __future__ import annotations

import json
import shutil
from collections import Counter, defaultdict
from collections.abc import Callable
from itertools import product
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tinyllm.core_model import DIRECTORY, facts
from tinyllm.core_tasks import CoreResult, TaskResult, fit_prompt, read_tasks

SOUNDS, LIKES, DAYS = read_tasks(DIRECTORY)


def test_the_three_types_are_read_as_options() -> None:
    assert [(t.label, t.type, t.n_shots, t.baseline, len(t.examples)) for t in (SOUNDS, LIKES, DAYS)] == [
        ("sounds", "multiple_choice", 2, 0.25, 8),
        ("likes", "schema", 0, 0.5, 6),
        ("days", "language_modeling", 1, 0.0, 6),
    ]
    query = "What does the sheep say?"
    assert SOUNDS.examples[1].options == tuple((query, choice) for choice in ("woof woof", "quack", "hoot", "baa"))
    assert SOUNDS.examples[1].gold == 3
    contexts = ("The one who eats is the pig, and the pig", "The one who eats is the bee, and the bee")
    assert LIKES.examples[3].options == tuple((context, "likes flowers.") for context in contexts)
    assert DAYS.examples[0].options == (("The day after Monday is", "Tuesday"),)  # the file has a space at the end


def test_a_prompt_without_shots_is_context_delimiter_continuation() -> None:
    first, second = LIKES.prompts(0, seed=0)
    assert (first.before, first.whole) == (
        "The one who eats is the dog, and the dog",
        "The one who eats is the dog, and the dog likes bones.",
    )
    assert second.whole == "The one who eats is the cat, and the cat likes bones."


def test_shots_are_other_examples_answered() -> None:
    solved = {fact for fact in facts() if "Answer" in fact}
    used: dict[int, Counter[str]] = defaultdict(Counter)
    for index, seed in product(range(8), range(40)):
        example = SOUNDS.examples[index]
        prompts = SOUNDS.prompts(index, seed)
        own = [f"{query}\nAnswer: {choice}" for query, choice in example.options]
        shots = {prompt.whole.removesuffix(text) for prompt, text in zip(prompts, own, strict=True)}
        (text,) = shots  # the same for every option
        lines = text.split("\n")
        assert lines.pop() == ""
        answered = ["\n".join(lines[i : i + 2]) for i in range(0, len(lines), 2)]
        assert len(set(answered)) == 2
        assert set(answered) <= solved - {own[example.gold]}
        assert {p.before for p in prompts} == {text + example.options[0][0] + "\nAnswer:"}
        used[index].update(answered)
    for counts in used.values():  # 80 draws of 7 others: 11.4 each
        assert len(counts) == 7
        assert max(counts.values()) < 25


def test_draws_follow_the_seed_and_not_the_number_of_examples() -> None:
    whole = SOUNDS.drawn(None, seed=3)
    assert sorted(whole) == list(range(8))
    assert SOUNDS.drawn(5, seed=3) == whole[:5]
    assert SOUNDS.drawn(100, seed=3) == whole
    assert SOUNDS.drawn(None, seed=4) != whole
    assert SOUNDS.prompts(2, seed=3) == SOUNDS.prompts(2, seed=3)
    assert any(SOUNDS.prompts(i, seed=3) != SOUNDS.prompts(i, seed=4) for i in range(8))


def test_the_span_begins_where_the_tokens_part() -> None:
    plain = fit_prompt([5, 6], [5, 6, 7, 8], bos_id=0, context=10)
    assert (plain.ids, plain.start, plain.cut) == ((0, 5, 6, 7, 8), 3, False)
    one_token = fit_prompt([5, 6], [5, 6, 7], bos_id=0, context=10)
    assert (one_token.ids[one_token.start :], one_token.cut) == ((7,), False)
    # the continuation's first characters were joined with the context's last token
    joined = fit_prompt([5, 6, 7], [5, 6, 9, 8], bos_id=0, context=10)
    assert joined.ids[joined.start :] == (9, 8)
    nothing_before = fit_prompt([], [7, 8], bos_id=0, context=10)
    assert nothing_before.ids[nothing_before.start :] == (7, 8)


def test_a_prompt_too_long_loses_its_beginning_and_keeps_bos() -> None:
    fits = fit_prompt([1, 2, 3], [1, 2, 3, 4], bos_id=0, context=4)  # 5 ids: 4 are read, 4 are predicted
    assert (fits.ids, fits.start, fits.cut) == ((0, 1, 2, 3, 4), 4, False)
    cut = fit_prompt([1, 2, 3], [1, 2, 3, 4], bos_id=0, context=3)
    assert (cut.ids, cut.start, cut.cut) == ((0, 2, 3, 4), 3, True)
    span_too_long = fit_prompt([1], [1, 2, 3, 4], bos_id=0, context=2)
    assert (span_too_long.ids, span_too_long.start, span_too_long.cut) == ((0, 3, 4), 1, True)


@given(
    before=st.lists(st.integers(1, 3), max_size=12),
    continuation=st.lists(st.integers(4, 6), min_size=1, max_size=12),
    context=st.integers(1, 30),
)
def test_what_is_scored_is_the_end_of_the_continuation(
    before: list[int], continuation: list[int], context: int
) -> None:
    fitted = fit_prompt(before, before + continuation, bos_id=0, context=context)
    assert fitted.ids[0] == 0
    assert len(fitted.ids) <= context + 1
    assert list(fitted.ids[1:]) == (before + continuation)[-context:]
    assert list(fitted.ids[fitted.start :]) == continuation[-context:]
    assert fitted.cut == (len(before) + len(continuation) > context)


def test_centring_by_hand() -> None:
    def result(n_correct: int, baseline: float) -> TaskResult:
        return TaskResult(label="t", n_examples=40, n_correct=n_correct, n_cut=0, baseline=baseline)

    assert result(10, 0.25).centred == pytest.approx(0.0)
    assert result(40, 0.25).centred == pytest.approx(1.0)
    assert result(16, 0.25).centred == pytest.approx(0.2)  # (.4 - .25) / .75
    assert result(21, 0.62).centred == pytest.approx(-0.25)  # (.525 - .62) / .38: worse than the commoner answer
    assert result(16, 0.0).centred == result(16, 0.0).accuracy == pytest.approx(0.4)
    tasks = (result(16, 0.25), result(21, 0.62), result(16, 0.0))
    assert CoreResult(tasks=tasks).mean == pytest.approx((0.2 - 0.25 + 0.4) / 3)


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    return Path(shutil.copytree(DIRECTORY, tmp_path / "core"))


def edit(file: str, old: str, new: str) -> Callable[[Path], None]:
    def change(directory: Path) -> None:
        text = (directory / file).read_text()
        assert old in text
        (directory / file).write_text(text.replace(old, new, 1))

    return change


def remove(file: str) -> Callable[[Path], None]:
    return lambda directory: (directory / file).unlink()


YAML, CSV = "core.yaml", "eval_meta_data.csv"
SOUNDS_FILE, LIKES_FILE, DAYS_FILE = (f"eval_data/{f}.jsonl" for f in ("facts/sounds", "language/likes", "facts/days"))
MISTAKES = {
    "no core.yaml": (remove(YAML), r"there is no .*core/core.yaml: a directory of in-context tasks holds core.yaml"),
    "no baselines": (remove(CSV), r"there is no .*eval_meta_data.csv: a directory"),
    "no data": (remove(DAYS_FILE), r"there is no .*eval_data/facts/days.jsonl"),
    "not YAML": (edit(YAML, "icl_tasks:", "icl_tasks: ["), r"core.yaml is no YAML"),
    "no tasks": (edit(YAML, "icl_tasks:", "tasks:"), r"core.yaml has no list icl_tasks: give a directory in the form"),
    "a key is missing": (edit(YAML, "num_fewshot: [1]", ""), r"the task .*days.* needs .*num_fewshot"),
    "an unknown key": (
        edit(YAML, "has_categories: true", "question_prelimiter: Q"),
        r"task days sets \['question_prelimiter'\], which is not supported",
    ),
    "another type": (
        edit(YAML, "schema", "generation"),
        r"likes is of type 'generation', which is none of multiple_choice, schema, language_modeling",
    ),
    "several shots": (edit(YAML, "[2]", "[0, 2]"), r"sounds has num_fewshot \[0, 2\]: give one number"),
    "too many shots": (edit(YAML, "[2]", "[8]"), r"sounds.jsonl has 8 examples, too few for 8 shots"),
    "the same label": (edit(YAML, "label: days", "label: sounds"), r"more than one task labelled \['sounds'\]"),
    "no baseline": (edit(CSV, "days,", "weeks,"), r"task days of .* has no row in eval_meta_data.csv"),
    "a fraction of 100": (edit(CSV, ",25,", ",100,"), r"eval_meta_data.csv, line 2: random baseline '100' is no perc"),
    "a baseline in words": (edit(CSV, ",50,", ",half,"), r"eval_meta_data.csv, line 3: random baseline 'half'"),
    "another table": (edit(CSV, "Random baseline", "Chance"), r"has no column \['Random baseline'\]"),
    "half a line": (edit(DAYS_FILE, '"Thursday", "category": "days"}', '"Thur'), r"days.jsonl, line 3: Unterminated"),
    "a line that is no object": (edit(LIKES_FILE, "{", "[{"), r"likes.jsonl, line 1: "),
    "a field is missing": (
        edit(SOUNDS_FILE, '"query": "What does the cat', '"q": "'),
        r"sounds.jsonl, line 4: query is",
    ),
    "one choice": (edit(SOUNDS_FILE, '"quack", "meow", "buzz", "baa"', '"quack"'), r"line 4: choices is .*not a list"),
    "a label out of range": (
        edit(SOUNDS_FILE, '"gold": 3', '"gold": 4'),
        r"sounds.jsonl, line 2: gold 4 is no index of its 4 options; a multiple_choice task cannot use it",
    ),
    "a negative label": (edit(LIKES_FILE, '"gold": 0', '"gold": -1'), r"likes.jsonl, line 1: gold -1 is no index"),
    "a label that is a letter": (edit(SOUNDS_FILE, '"gold": 0', '"gold": "A"'), r"line 1: gold 'A' is no index"),
    "nothing to predict": (edit(DAYS_FILE, '"Friday"', '" "'), r"days.jsonl, line 4: an empty continuation"),
}


@pytest.mark.parametrize(("mistake", "message"), MISTAKES.values(), ids=MISTAKES.keys())
def test_a_directory_that_is_not_of_the_format_is_refused(
    copied: Path, mistake: Callable[[Path], None], message: str
) -> None:
    assert len(read_tasks(str(copied))) == 3
    mistake(copied)
    with pytest.raises(ValueError, match=message):
        read_tasks(str(copied))


def test_separators_that_json_leaves_as_they_are_split_no_line(copied: Path) -> None:
    row = {"context": "a\u2028b", "continuation": "c\u0085d"}
    with (copied / DAYS_FILE).open("a", encoding="utf-8") as file:
        file.write("\n" + json.dumps(row, ensure_ascii=False) + "\n")
    assert read_tasks(str(copied))[2].examples[-1].options == (("a\u2028b", "c\u0085d"),)
