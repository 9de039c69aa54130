"""Flags: grouped help without noise, suffixes of whole numbers, presets that follow the corpus."""

from __future__ import annotations

import re
from dataclasses import fields

import pytest

from tinyllm.arguments import parse
from tinyllm.cli import COMMANDS, PlanCommand, Train, main
from tinyllm.config import DataConfig, ModelConfig, OptimConfig
from tinyllm.options import RunOptions
from tinyllm.presets import PRESETS


def plan_flags(*argv: str) -> PlanCommand:
    return parse(PlanCommand, argv, prog="test", presets=PRESETS)


def help_of(command: str, capsys: pytest.CaptureFixture[str], *flags: str) -> str:
    with pytest.raises(SystemExit) as ended:
        main([command, *flags, "--help"])
    assert not ended.value.code
    return capsys.readouterr().out


@pytest.mark.parametrize("command", COMMANDS)
def test_the_help_of_every_command_has_no_noise(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = " ".join(help_of(command, capsys).replace("│", " ").split())
    assert "{None}" not in text and "None}" not in text
    assert "(default: )" not in text and "(default: None)" not in text


def test_the_help_of_train_is_in_groups_that_hold_every_flag(capsys: pytest.CaptureFixture[str]) -> None:
    text = help_of("train", capsys)
    _, *parts = re.split(r"^\W*(?:(\w+) )?options\W*\n", text, flags=re.MULTILINE)  # the titles
    groups = dict(zip(parts[::2], parts[1::2], strict=True))
    assert list(groups) == [None, "horizon", "model", "optim", "data", "run"]
    held = {"model": ModelConfig, "optim": OptimConfig, "data": DataConfig, "run": RunOptions}
    for name, kind in held.items():
        for field in fields(kind):
            assert f"--{field.name.replace('_', '-')} " in groups[name], field.name
    for flag in ("--tokens", "--tokens-per-param", "--flops", "--steps"):
        assert f"{flag} N" in groups["horizon"]
    assert "--out STR" in groups[None]


def test_the_help_after_a_preset_shows_its_values(capsys: pytest.CaptureFixture[str]) -> None:
    text = " ".join(help_of("train", capsys, "--preset", "smoke").replace("│", " ").split())
    assert "--vocab-size INT Vocabulary. Default: the corpus'. (default: 1024)" in text


def test_counts_take_the_suffixes_of_horizons() -> None:
    config = plan_flags("--total-batch-size", "512k", "--warmup-tokens", "1.5M", "--eval-tokens=64k").config()
    assert config.optim.total_batch_size == 512_000
    assert config.optim.warmup_tokens == 1_500_000
    assert config.data.eval_tokens == 64_000
    options = parse(Train, ["--device-batch-size", "1k", "--stop-after", "2k"], prog="test", presets=PRESETS).run
    assert (options.device_batch_size, options.stop_after) == (1000, 2000)


@pytest.mark.parametrize("text", ["1.5", "0.0001k", "many", ""])
def test_what_is_no_whole_number_is_refused(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        plan_flags("--depth", text)
    assert ended.value.code == 2
    assert "--depth" in capsys.readouterr().err


@pytest.mark.parametrize(
    "given",
    [["--tokens", "1k", "--tokens", "2k"], ["--lr=1", "--lr", "2"], ["--n_kv_heads", "1", "--n-kv-heads", "1"]],
)
def test_a_flag_given_twice_is_refused(given: list[str]) -> None:
    with pytest.raises(ValueError, match="is given twice: keep one"):
        plan_flags(*given)


def test_a_presets_vocabulary_and_context_are_those_of_the_built_in_text_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TINYLLM_DATA", raising=False)
    for flags in ([], ["--data", "sotu"]):
        model = plan_flags("--preset", "smoke", *flags).config().model
        assert (model.vocab_size, model.seq_len, model.aspect_ratio) == (1024, 256, 16)
    for data in ("zipf:V=256,s=1.5", "out/corpus"):
        model = plan_flags("--preset", "smoke", "--data", data).config().model
        assert (model.vocab_size, model.seq_len, model.aspect_ratio) == (None, None, 16)
    assert plan_flags("--preset", "smoke", "--data", "zipf", "--vocab-size", "64").config().model.vocab_size == 64
    monkeypatch.setenv("TINYLLM_DATA", "elsewhere")
    assert plan_flags("--preset", "smoke").config().model.vocab_size is None
