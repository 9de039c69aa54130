"""`tinyllm train` and friends as a person calls them: one directory, one run; mistakes are told in one line."""

from __future__ import annotations

import io
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from tests.tinyllm.core_model import DIRECTORY
from tests.tinyllm.test_record import row
from tinyllm import show
from tinyllm.cli import main
from tinyllm.core_eval import core
from tinyllm.generate import load_model
from tinyllm.presets import PRESETS
from tinyllm.record import read

TINY = [
    "--depth", "2", "--aspect-ratio", "16", "--target-head-dim", "16", "--total-batch-size", "512",
    "--warmup-tokens", "2048", "--lr", "0.02", "--eval-tokens", "640",
]  # fmt: skip


def tinyllm(*argv: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(argv)
    return int(ended.value.code or 0)


def test_train_continues_and_refuses_another_run(
    zipf_path: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    common = ["train", *TINY, "--data", zipf_path, "--out", str(tmp_path)]
    assert tinyllm(*common, "--steps", "10") == 0
    assert "budget 5,120 tokens | val_loss" in capsys.readouterr().out
    assert tinyllm(*common, "--steps", "10", "20") == 0  # a longer horizon goes on
    assert [r.steps for r in read(str(tmp_path / "train"))] == [10, 20]
    report = (tmp_path / "train" / "report.md").read_text()
    assert "5,120" in report and "10,240" in report and '"depth": 2' in report
    assert tinyllm(*common, "--steps", "10", "--seed", "1", "--decay-share", "0.3") == 2
    error = capsys.readouterr().err
    assert "optim.decay_share 0.2 -> 0.3; seed 0 -> 1" in error
    assert "choose another directory (--name; from Python: out=)" in error
    assert len(read(str(tmp_path / "train"))) == 2


def test_a_rerun_of_what_is_done_says_so_and_shows_the_result(
    zipf_path: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["train", *TINY, "--data", zipf_path, "--out", str(tmp_path), "--steps", "10", "20"]
    assert tinyllm(*command) == 0
    assert "starting on cpu" in capsys.readouterr().out
    assert tinyllm(*command) == 0
    out = capsys.readouterr().out
    assert "every budget is on record, nothing is left to train" in out
    assert "starting" not in out and "10,240" in out


def test_the_result_fits_a_terminal_of_80_columns_and_says_why_a_budget_was_missed() -> None:
    done = row(
        planned_tokens=12_345_678_901, val_loss=3.25, val_bpb=1.125, train_loss=3.5, core=0.0625, flops=1.25e21,
        tokens_per_second=1_234_567.0, mfu=0.4321, seconds=36_000.0,
    )  # fmt: skip
    missed = row(status="diverged", val_loss=None, reason="the loss is nan at step 7; last good loss 3.5")
    console = Console(file=io.StringIO(), width=80)
    console.print(show.summary_table([done, missed]))
    printed = console.file.getvalue()  # type: ignore[attr-defined]
    for cell in ("12,345,678,901", "diverged", "3.2500", "1.125", "0.0625", "1.25e+21", "1.23M", "43%", "10 h 0 min"):
        assert cell in printed, cell
    assert "…" not in printed and len(printed.splitlines()) == 3
    assert len(show.LEGEND) <= 80
    assert show.reasons([done, missed]) == ["1,000 tokens diverged: the loss is nan at step 7; last good loss 3.5"]
    headers = [column.header for column in show.summary_table([row()]).columns]
    assert headers == ["tokens", "status", "val", "FLOPs"]  # a column without any figure is left out


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--steps", "10", "--tokens", "1k"], "--tokens, --steps: how long to train is said in one unit"),
        (["--steps", "10", "--seq-len", "33"], "tinyllm prepare --seq-len 33"),
        (["--steps", "10", "--device", "cuda"], "--device cuda: not on this machine; it has"),
        (["--steps", "10", "--device-batch-size", "3"], "take one of [1, 2, 4, 8, 16]"),
        (["--steps", "10", "--workers", "3"], "does not divide among 3 ranks: take one of [1, 2, 4, 8, 16] ranks"),
        (["--preset", "nothing"], "take one of smoke"),
        (["--tokens", "0"], "--tokens '0' is not positive and finite: write e.g. 200k"),
        (["--tokens", "-100k"], "--tokens '-100k' is not positive and finite: write e.g. 200k"),
        (["--tokens-per-param", "many"], "--tokens-per-param 'many' is no quantity: write e.g. 200k"),
        (["--tokens", "5"], "a horizon of 5 tokens is 0 steps of 512 tokens, at least 2 are needed"),
        (["--steps", "40.5"], "horizon of 40.5 steps: give a whole number, e.g. 40"),
        (["--steps", "10", "--workers", "0"], "--workers 0: give 1 or more"),
        (["--steps", "10", "--workers", "-2"], "--workers -2: give 1 or more"),
        (["--steps", "10", "--resume-from", "20"], "--resume-from 20: no checkpoint up to that step, there is none"),
        (["--steps", "10", "--name", "../../x"], "--name '../../x': a name without / is wanted; --out says where"),
        (["--steps", "10", "--name", ".."], "--name '..': a name without / is wanted"),
        (["--steps", "10", "--preset", "smoke", "--preset", "base"], "--preset is given twice: keep one"),
        (["--steps", "10", "--lr", "0.1"], "--lr is given twice: keep one"),
        (["--steps", "10", "--seed", "-1"], "seed -1: give a whole number from 0"),
        (["--steps", "10", "--stop-after", "0"], "stop_after 0 must be positive"),
        (["--steps", "10", "--stop-after", "-1"], "stop_after -1 must be positive"),
        (["--steps", "10", "--log-every", "-1"], "log_every -1 must be 0 (off) or more steps"),
        (["--steps", "10", "--peak-tflops", "nan"], "peak_tflops nan must be positive"),
        (["--steps", "10", "--max-epochs", "nan"], "max_epochs nan must be positive"),
        (["--steps", "10", "--logit-softcap", "-1"], "logit_softcap -1.0 must be 0 (off) or more"),
    ],
)
def test_mistakes_are_one_line_with_the_remedy(
    zipf_path: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], argv: list[str], message: str
) -> None:
    assert tinyllm("train", *TINY, "--data", zipf_path, "--out", str(tmp_path), *argv) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("error: ")
    assert message in captured.err
    assert captured.err.count("\n") == 1
    assert read(str(tmp_path / "train")) == []


def test_a_missing_corpus_is_named_with_the_command_that_prepares_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tinyllm("plan", *TINY, "--data", str(tmp_path / "none")) == 2
    assert "tinyllm prepare" in capsys.readouterr().err


def test_no_figure_of_a_plan_is_cut_in_80_columns(
    zipf_path: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    flags = ["--data", zipf_path, "--tokens", "2B", "4B", "--tflops", "0.001"]
    assert tinyllm("plan", *TINY, *flags) == 0
    tables = capsys.readouterr().out.partition("warning: ")[0]
    assert "4,000,000,000" in tables and "6,250,000" in tables and "…" not in tables


def test_plan_prints_counts_budgets_and_time(zipf_path: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert tinyllm("plan", *TINY, "--data", zipf_path, "--steps", "10", "20", "--tflops", "0.001") == 0
    out = capsys.readouterr().out
    for text in ("28,676", "26,628", "24,580", "10,240", "0.733 of the tokens of separate runs", "2 s"):
        assert text in out, text


def test_paths_that_fail_are_one_line(zipf_path: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("in the way")
    for out in (str(tmp_path / "file"), "/proc/nope"):
        for command in (["prepare", "zipf"], ["export", "any"], ["train", *TINY, "--steps", "10", "--data", zipf_path]):
            assert tinyllm(*command, "--out", out) == 2
            error = capsys.readouterr().err
            assert error.startswith(f"error: nothing can be written to {out}") and error.count("\n") == 1
            assert "give another --out" in error


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--seed", "-1"], "seed -1: give a whole number from 0"),
        (["--num-cpus", "0"], "--num-cpus 0: give 1 or more"),
        (["--shards", "0"], "--shards 0: give 1 or more"),
        (["--val-fraction", "nan"], "--val-fraction nan: a share of the documents between 0 and 1"),
        (["--seq-len", "1"], "--seq-len 1: a row needs at least 2 tokens"),
    ],
)
def test_what_prepare_cannot_do_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: list[str], message: str
) -> None:
    (tmp_path / "text.txt").write_text("some text")
    assert tinyllm("prepare", str(tmp_path / "text.txt"), "--out", str(tmp_path / "corpus"), *flags) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith(f"error: {message}") and captured.err.count("\n") == 1
    assert not (tmp_path / "corpus").exists()


@pytest.mark.parametrize("vocab_size", ["3", "256", "-1"])
def test_an_impossible_vocabulary_is_refused_before_anything_is_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], vocab_size: str
) -> None:
    (tmp_path / "text.txt").write_text("some text")
    out = tmp_path / "corpus"
    assert tinyllm("prepare", str(tmp_path / "text.txt"), "--vocab-size", vocab_size, "--out", str(out)) == 2
    assert f"--vocab-size {vocab_size} is below 257" in capsys.readouterr().err
    assert not out.exists()


def test_plan_names_the_precision_that_training_takes(zipf_path: str, capsys: pytest.CaptureFixture[str]) -> None:
    import torch

    from tinyllm.hardware import computed_precision, pick_device

    assert tinyllm("plan", *TINY, "--data", zipf_path, "--steps", "20") == 0
    expected = computed_precision(pick_device("auto")) if not torch.cuda.is_available() else "bf16"
    assert expected in capsys.readouterr().out


def test_every_preset_is_in_the_help_and_plans(zipf_path: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert tinyllm("plan", "--help") == 0
    help_text = capsys.readouterr().out
    for name, optimizer in {"smoke": "muon", "base": "muon", "adamw": "adamw"}.items():
        assert name in help_text
        sizes = ["--vocab-size", "64", "--seq-len", "32", "--depth", "2"]
        assert tinyllm("plan", "--preset", name, *sizes, "--data", zipf_path, "--tokens", "10M") == 0
        assert f"{optimizer}, wsd" in capsys.readouterr().out
    assert set(PRESETS) == {"smoke", "base", "adamw"}


def test_a_plan_of_what_its_corpus_cannot_train_is_shown_with_the_reason_and_refused_by_train(
    zipf_path: str, text_path: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for flags, reason in (
        (["--data", text_path, "--tokens", "64M"], "more than 4: take one of"),
        (["--data", zipf_path, "--tokens", "64M", "--vocab-size", "50304"], "vocab_size 50304 is not that of corpus"),
        (
            ["--data", zipf_path, "--tokens", "64M", "--vocab-size", "64", "--seq-len", "16"],
            "seq_len 16 is not that of",
        ),
        (["--data", "nowhere", "--tokens", "64M", "--vocab-size", "4096", "--seq-len", "16"], "no corpus at"),
    ):
        assert tinyllm("plan", *TINY, *flags) == 0
        out = capsys.readouterr().out
        assert "warning: it can't be trained as it stands: " in out and reason in out
        assert "64,000,000" in out
        assert tinyllm("train", *TINY, *flags, "--out", str(tmp_path)) == 2
        captured = capsys.readouterr()
        assert reason in captured.err and captured.out == ""


def test_a_model_that_no_memory_here_holds_is_warned_of_by_plan_and_refused_by_train(
    zipf_path: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    big = ["--depth", "400", "--data", zipf_path, "--device", "cpu"]
    assert tinyllm("plan", *big[:-2]) == 0
    assert "warning: it can't be trained on this machine: needs about" in capsys.readouterr().out
    assert tinyllm("train", *big, "--out", str(tmp_path)) == 2
    assert "error: depth 400 needs about" in capsys.readouterr().err
    assert not (tmp_path / "train").exists()


def test_unknown_commands_and_help() -> None:
    assert tinyllm("trian") == 2
    assert tinyllm("--help") == 0
    assert tinyllm() == 2


def test_help_and_plan_of_every_command_load_no_torch(zipf_path: str) -> None:
    code = (
        "import sys; from tinyllm.cli import main\n"
        "try: main(['train', '--help'])\n"
        "except SystemExit: pass\n"
        "assert not {'torch', 'ray'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_export_round_trip_without_this_package(
    zipf_path: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = ["--data", zipf_path, "--out", str(tmp_path)]
    model = ["--window-pattern", "SL", "--n-kv-heads", "1", "--value-embeddings", "True"]
    assert tinyllm("train", *TINY, *model, *out, "--steps", "10", "20") == 0
    (weights,) = (tmp_path / "train" / "runs").glob("*/weights/5120")
    exported = tmp_path / "exported"
    assert tinyllm("export", str(weights), "--out", str(exported)) == 0
    files = {path.name: path.read_bytes() for path in exported.iterdir()}
    assert tinyllm("export", str(weights), "--out", str(exported)) == 0  # again the same
    assert tinyllm("export", str(weights.parent / "10240"), "--out", str(exported)) == 2
    assert "holds other weights" in capsys.readouterr().err
    assert {path.name: path.read_bytes() for path in exported.iterdir()} == files
    script = (
        "import sys, json, torch; sys.path.insert(0, sys.argv[1]); import model\n"
        "assert 'tinyllm' not in sys.modules\n"
        "ids = torch.arange(20)[None] % 64\n"
        "print(json.dumps(model.load(sys.argv[1])(ids)[0].tolist()))"
    )
    printed = subprocess.run(
        [sys.executable, "-c", script, str(exported)], check=True, capture_output=True, text=True, cwd=tmp_path
    )
    import torch

    from tinyllm.generate import load_model

    loaded, _, tokenizer = load_model(str(weights), "cpu")
    assert tokenizer is None
    want = loaded.logits(torch.arange(20)[None] % 64)[0]
    torch.testing.assert_close(torch.tensor(json.loads(printed.stdout)), want.detach(), rtol=1e-4, atol=1e-4)


def test_sampling_ids_that_are_no_text_and_a_directory_that_is_no_checkpoint_are_refused(
    zipf_path: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tinyllm("train", *TINY, "--data", zipf_path, "--out", str(tmp_path), "--steps", "10") == 0
    (weights,) = (tmp_path / "train" / "runs").glob("*/weights/5120")
    capsys.readouterr()
    assert tinyllm("sample", str(weights), "--device", "cpu") == 2
    assert "no text" in capsys.readouterr().err
    assert tinyllm("score", str(weights), "--core-data", DIRECTORY, "--device", "cpu") == 2
    assert "the tasks are text" in capsys.readouterr().err
    assert tinyllm("sample", str(tmp_path), "--device", "cpu") == 2
    assert "is no checkpoint" in capsys.readouterr().err
    assert tinyllm("sample", str(tmp_path / "train"), "--device", "cpu") == 2
    assert f"is no model: it holds {weights}; take one" in capsys.readouterr().err


def test_samples_best_weights_and_offline_tracking_survive_a_stop(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text_path: str
) -> None:
    run = [
        "train", "--depth", "1", "--aspect-ratio", "16", "--target-head-dim", "16", "--total-batch-size", "512",
        "--warmup-tokens", "2048", "--lr", "0.02", "--eval-tokens", "640", "--data", text_path, "--out", str(tmp_path),
        "--steps", "8", "12", "--eval-every", "4", "--log-every", "2", "--save-every", "3", "--sample-every", "5",
        "--wandb", "offline",
    ]  # fmt: skip
    capsys.readouterr()
    assert tinyllm(*run, "--stop-after", "5") == 0  # it did what it was asked
    *_, stopped, last = capsys.readouterr().out.splitlines()
    assert "trunk step 5 | stopped; the same command without --stop-after goes on from here" in stopped
    assert last == "--stop-after 5: the same command without it, or with a later step, goes on"
    assert tinyllm(*run) == 0
    assert tinyllm(*run, "--resume-from", "2") == 2
    assert "--resume-from 2: every budget of the run is on record" in capsys.readouterr().err
    (root,) = (tmp_path / "train" / "runs").iterdir()
    log = (root / "log.txt").read_text()
    assert log.count("sample: The state of the") >= 3  # at step 5 and at the end of each budget
    best = json.loads((root / "best.json").read_text())
    done = read(str(tmp_path / "train"))
    assert best["val_loss"] == min(r.val_loss for r in done if r.val_loss is not None)
    capsys.readouterr()
    assert tinyllm("sample", str(root), "--device", "cpu", "--tokens", "8", "--prompt", "spam", "eggs ham") == 0
    out = capsys.readouterr().out
    assert out.startswith("spam") and "eggs ham" in out
    for flags, message in (
        (["--top-k", "-5"], "top_k -5: give 0 (choose among all) or more"),
        (["--tokens", "0"], "tokens 0: ask for 1 or more"),
        (["--tokens", "-3"], "tokens -3: ask for 1 or more"),
        (["--temperature", "-0.5"], "temperature -0.5: give 0"),
        (["--temperature", "nan"], "temperature nan: give 0"),
        (["--seed", "-1"], "seed -1: give a whole number"),
        (["--seed", str(2**80)], "give a whole number from 0 to 2^63 - 1"),
        (["--prompt", b"caf\xe9".decode("utf-8", "surrogateescape")], "is no text in UTF-8"),
        (["--prompt"], "there is no prompt"),
    ):
        assert tinyllm("sample", str(root), "--device", "cpu", *flags) == 2
        captured = capsys.readouterr()
        assert message in captured.err and captured.err.count("\n") == 1 and captured.out == ""
    for flags, message in (
        (["--max-examples", "0"], "max_examples 0 must be 1 or more"),
        (["--device-batch-size", "0"], "device_batch_size 0 must be 1 or more"),
        (["--seed", "-1"], "seed -1: give a whole number"),
        (["--core-data", "nowhere"], "nowhere"),
    ):
        given = [] if "--core-data" in flags else ["--core-data", DIRECTORY]
        assert tinyllm("score", str(root), "--device", "cpu", *given, *flags) == 2
        captured = capsys.readouterr()
        assert message in captured.err and captured.err.count("\n") == 1 and captured.out == ""
    assert tinyllm("score", str(root), "--core-data", DIRECTORY, "--device", "cpu", "--max-examples", "5") == 0
    out = capsys.readouterr().out
    best_model, _, tokenizer = load_model(str(root), "cpu")
    assert tokenizer is not None
    want = core(best_model, tokenizer, DIRECTORY, device_rows=3, max_examples=5)
    assert "metric version 1" in out and f"{want.mean:.4f}" in out
    for task in want.tasks:
        (line,) = (line for line in out.splitlines() if line.startswith(task.label))
        assert line.split()[1:] == [
            "5",
            str(task.n_cut),
            *(f"{x:.4f}" for x in (task.accuracy, task.baseline, task.centred)),
        ]
    told: list[dict[str, object]] = []
    for entry in (e for file in sorted(root.glob("wandb/offline-run-*/run-*.wandb")) for e in history(file)):
        if int(str(entry["_step"])) < len(told):  # told again, in case the first process had been killed: the same
            again = {key: value for key, value in entry.items() if not key.startswith("_")}
            assert again.items() <= told[int(str(entry["_step"]))].items()
        else:
            told.append(entry)
    assert len(list(root.glob("wandb/offline-run-*"))) == 2
    assert len({file.name.split("-")[-1] for file in root.glob("wandb/offline-run-*/run-*.wandb")}) == 1  # one id
    steps = [entry["_step"] for entry in told]
    assert steps == list(range(len(steps)))  # the second process goes on where the first one stood
    by_key = {key: [e["tokens"] for e in told if key in e] for e in told for key in e}
    assert by_key["trunk/train_loss"] == [512 * s for s in (2, 3, 4, 5, 6, 8, 9, 10)]
    assert by_key["trunk/val_loss"] == [0, 2048, 4096]
    assert by_key["branch/4096/val_loss"] == [4096]
    assert by_key["branch/6144/val_loss"] == [6144]
    for key in ("train/lr", "train/grad_norm", "train/tok_per_s", "train/dt", "train/epoch", "val/bpb", "val/best"):
        assert key in by_key, key
    bests = [e["val/best"] for e in told if "val/best" in e]
    assert bests == sorted(bests, reverse=True)


def history(file: Path) -> list[dict[str, object]]:
    """The history rows of an offline W&B run file: a LevelDB log (32 KiB blocks) after a header of 7 bytes."""
    from wandb.proto import wandb_internal_pb2

    data, position, parts, rows = file.read_bytes(), 7, b"", []
    while position + 7 <= len(data):
        if 32768 - position % 32768 < 7:  # too little left of a block for a header
            position += 32768 - position % 32768
            continue
        length, kind = int.from_bytes(data[position + 4 : position + 6], "little"), data[position + 6]
        parts += data[position + 7 : position + 7 + length]
        position += 7 + length
        if kind not in (1, 4):  # the record goes on in the next block
            continue
        record = wandb_internal_pb2.Record()
        record.ParseFromString(parts)
        parts = b""
        if record.WhichOneof("record_type") == "history":
            row = {(i.key or "/".join(i.nested_key)): json.loads(i.value_json) for i in record.history.item}
            rows.append({**row, "_step": record.history.step.num})
    return rows


def test_a_killed_run_goes_on_by_default_close_to_where_it_stood(zipf_path: str, tmp_path: Path) -> None:
    code = """
import os, signal, sys
from tinyllm import launch
from tinyllm.config import DataConfig, ModelConfig, OptimConfig, TrainConfig
from tinyllm.horizon import Horizon

def echo(line):
    print(line, flush=True)
    if " step 70/" in line and sys.argv[3] == "kill":
        os.kill(os.getpid(), signal.SIGKILL)

launch.train(
    TrainConfig(
        model=ModelConfig(depth=2, aspect_ratio=16, target_head_dim=16),
        optim=OptimConfig(lr=0.02, total_batch_size=512, warmup_tokens=2048),
        data=DataConfig(data=sys.argv[1], eval_tokens=640),
        horizons=(Horizon(value=100, unit="steps"),),
    ),
    out=sys.argv[2],
    echo=echo,
)
"""

    def run(out: str, kill: str, code_wanted: int) -> str:
        argv = [sys.executable, "-c", code, zipf_path, str(tmp_path / out), kill]
        ended = subprocess.run(argv, check=False, capture_output=True, text=True)
        assert ended.returncode == code_wanted, ended.stderr
        return ended.stdout

    run("killed", "kill", -signal.SIGKILL)
    gone_on = run("killed", "", 0)
    assert "continuing from" in gone_on
    assert " step 60/" not in gone_on and " step 70/" in gone_on  # without, it has no checkpoint before the fork at 80
    run("undisturbed", "", 0)
    assert [r.val_loss for r in read(str(tmp_path / "killed"))] == [
        r.val_loss for r in read(str(tmp_path / "undisturbed"))
    ]


def test_a_validation_split_smaller_than_asked_is_warned_of(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    corpus = str(tmp_path / "corpus")
    assert tinyllm("prepare", "zipf:V=64,s=1.5", "--seq-len", "8", "--out", corpus) == 0  # 4096 rows for validation
    assert "warning: 32,768 tokens for validation, fewer than the 65,536" in capsys.readouterr().out
    command = ["plan", *TINY[:-2], "--data", corpus, "--steps", "10"]
    assert tinyllm(*command) == 0
    assert "--eval-tokens 65,536 are asked for" in capsys.readouterr().out
    assert tinyllm(*command, "--eval-tokens", "32768") == 0
    assert "are asked for" not in capsys.readouterr().out


@pytest.mark.parametrize("split", ["train", "val"])
def test_a_damaged_shard_is_refused_once_before_anything_is_trained(
    text_path: str, tmp_path: Path, split: str, capsys: pytest.CaptureFixture[str]
) -> None:
    corpus = tmp_path / "corpus"
    shutil.copytree(text_path, corpus)
    (shard,) = corpus.glob(f"{split}-*.parquet")
    shard.write_bytes(shard.read_bytes()[:-100])
    command = ["train", *TINY, "--data", str(corpus), "--out", str(tmp_path), "--steps", "10"]
    assert tinyllm(*command) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count(f"{shard.name} is damaged") == 1
    assert not (tmp_path / "train").exists()


def test_what_fails_in_the_run_is_told_once_and_stays_in_the_log(
    text_path: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    corpus = tmp_path / "corpus"
    shutil.copytree(text_path, corpus)
    (shard,) = corpus.glob("val-*.parquet")
    data = bytearray(shard.read_bytes())
    data[len(data) // 2] ^= 1  # among the ids: the footer is sound
    shard.write_bytes(data)
    assert tinyllm("train", *TINY, "--data", str(corpus), "--out", str(tmp_path), "--steps", "10") == 2
    printed = capsys.readouterr()
    assert (printed.out + printed.err).count("is damaged") == 1
    (log,) = (tmp_path / "train" / "runs").glob("*/log.txt")
    assert "FAILED: ValueError: shard" in log.read_text()


@pytest.mark.parametrize("module", ["tinyllm", "tinyllm.cli"])
def test_the_commands_run_as_modules_and_help_may_be_cut_off(module: str) -> None:
    command = [sys.executable, "-m", module]
    listed = subprocess.run([*command, "--help"], check=True, capture_output=True, text=True)
    assert "usage: tinyllm COMMAND" in listed.stdout
    for arguments in (["--help"], ["train", "--help"]):
        reading, writing = os.pipe()
        os.close(reading)  # the reader is gone before the first line
        ended = subprocess.run([*command, *arguments], stdout=writing, stderr=subprocess.PIPE, text=True)
        os.close(writing)
        assert ended.stderr == ""
