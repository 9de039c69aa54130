"""`tinyllm`: prepare, plan, train, sample, score, export. Torch and Ray are loaded by the commands that need them."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Literal

import tyro

from tinyllm import presets
from tinyllm.arguments import ConfigArguments, parse
from tinyllm.options import RunOptions

COMMANDS = {
    "prepare": "text -> tokenizer, token shards in Parquet, manifest",
    "plan": "what a config amounts to: counts, steps, LRs, FLOPs, memory, time; trains nothing",
    "train": "one model on this node",
    "sample": "text from a trained model",
    "score": "a trained model on in-context tasks",
    "export": "weights, config and tokenizer for use without this package",
}


@dataclass(frozen=True, kw_only=True)
class Prepare:
    """Prepare a corpus: text -> BPE tokenizer, token shards in Parquet, manifest.

    Interrupted, the same command continues. The same source and options give the same digest on any machine.
    """

    source: Annotated[str, tyro.conf.Positional] = "sotu"
    """sotu, zipf (or zipf:V=256,s=1.5), or text, JSON lines or Parquet: a file, directory, glob or URI (s3://, hf://)."""
    out: str = "out/corpus"
    """Directory or URI of the corpus."""
    vocab_size: int | None = None
    """Default: 4096 for sotu, 256 for zipf, else 32768."""
    seq_len: int | None = None
    """Tokens a row. Default: 2048, 256 for zipf."""
    seed: int = 0
    """Seeds the order of documents and the split."""
    val_fraction: float | None = None
    """Share of the documents held out for validation. Default: .05 for sotu, else .01."""
    shards: int | None = None
    """Training files. Default: one for each 64 MiB of text."""
    documents: Literal["files", "paragraphs", "lines"] = "files"
    """What a document of a plain text file is."""
    text_column: str = "text"
    """Column of the text in JSON lines and Parquet."""
    num_cpus: int | None = None
    """CPUs of the Ray started here when none is running. Default: all."""


@dataclass(frozen=True, kw_only=True)
class PlanCommand(ConfigArguments):
    """Print what a config amounts to; trains nothing and touches no GPU."""

    tflops: float | None = None
    """Achieved TFLOP/s of the whole node to reckon the time with."""
    measured_in: str | None = None
    """Reckon the time with the speed of the runs recorded in this directory instead."""


@dataclass(frozen=True, kw_only=True)
class Train(ConfigArguments):
    """Train one model on this node: all local GPUs, else the CPU. The same command again continues."""

    options: Annotated[RunOptions, tyro.conf.arg(name="")] = field(default_factory=RunOptions)
    out: str = "out"
    """Parent of the output directory."""
    name: str = "train"
    """Name of the run's directory in --out."""
    workers: int | None = None
    """Processes. Default: one a local GPU, else one."""


@dataclass(frozen=True, kw_only=True)
class Sample:
    """Continue prompts with a trained model."""

    checkpoint: Annotated[str, tyro.conf.Positional]
    """A weights/<tokens> or checkpoints/<name> directory of a run."""
    prompt: tuple[str, ...] = ("The state of the Union is",)
    """Texts to continue, as one batch."""
    tokens: int = 64
    """Tokens to add."""
    temperature: float = 0.8
    """0 = always the likeliest token."""
    top_k: int = 50
    """Choose among this many likeliest tokens; 0 = all."""
    seed: int = 0
    """Seed of the draws."""
    device: Literal["auto", "cuda", "mps", "cpu"] = "auto"
    """Where to compute."""


@dataclass(frozen=True, kw_only=True)
class Score:
    """Accuracy of a trained model on in-context tasks, as at the end of a budget with `tinyllm train --core-data`."""

    checkpoint: Annotated[str, tyro.conf.Positional]
    """A weights/<tokens> or checkpoints/<name> directory of a run."""
    core_data: str
    """Directory or URI in the format of DCLM's evaluation."""
    max_examples: int | None = None
    """At most so many examples of each task; training takes 500. Default: all."""
    seed: int = 0
    """Draws the examples and the shots; training takes 0."""
    device: Literal["auto", "cuda", "mps", "cpu"] = "auto"
    """Where to compute."""
    device_batch_size: int = 16
    """Prompts at once."""


@dataclass(frozen=True, kw_only=True)
class Export:
    """Write safetensors + config.json + tokenizer.json that load without this package's training code."""

    checkpoint: Annotated[str, tyro.conf.Positional]
    """A weights/<tokens> or checkpoints/<name> directory of a run."""
    out: str
    """Directory to write."""


def prepare(args: Prepare) -> None:
    from dataclasses import asdict

    from tinyllm.corpus import prepare as prepare_corpus
    from tinyllm.show import human

    logging.basicConfig(level=logging.INFO, format="%(message)s")
    options = asdict(args)
    manifest = prepare_corpus(options.pop("source"), options.pop("out"), **options)
    print(f"{args.out}: {manifest.name}, {human(manifest.train_tokens)} training tokens, digest {manifest.digest}")
    print(f"vocabulary {manifest.vocab_size}, {manifest.seq_len} tokens a row, {manifest.licence}")
    print(f"train with: tinyllm train --data {args.out} --depth 4")


def show_plan(args: PlanCommand) -> None:
    from tinyllm import show
    from tinyllm.launch import prepare_run

    prepared = prepare_run(args.config(), args.planned_precision())
    speed, source = None, ""
    if args.measured_in is not None:
        speed = show.measured_flops_per_second(args.measured_in, prepared.config.model.depth)
        source = f"measured in {args.measured_in}"
    elif args.tflops is not None:
        speed, source = args.tflops * 1e12, "as stated"
    show.print_tables(show.plan_tables(prepared.config, prepared.plan, speed, source))
    for warning in prepared.warnings:
        print(f"warning: {warning}")


def train(args: Train) -> int:
    import os

    from tinyllm import launch, show

    root = os.path.join(args.out, args.name) if "://" not in args.out else f"{args.out.rstrip('/')}/{args.name}"
    rows = launch.train(args.config(), args.options, out=root, n_workers=args.workers)
    if not rows:
        print("no budget was reached; the same command goes on from the last checkpoint")
        return 130
    show.print_tables([show.summary_table(rows)])
    print("\n".join([show.LEGEND, *show.reasons(rows)]))
    print(f"report: {show.write_report(root, rows)}")
    return 0 if all(r.status == "done" for r in rows) else 1


def sample(args: Sample) -> None:
    from tinyllm.generate import sample_texts

    texts = sample_texts(
        args.checkpoint,
        args.prompt,
        n_tokens=args.tokens,
        temperature=args.temperature,
        top_k=args.top_k,
        seed=args.seed,
        device=args.device,
    )
    for text in texts:
        print(text, end="\n\n")


def score(args: Score) -> None:
    from tinyllm import show, storage
    from tinyllm.core_eval import core
    from tinyllm.evaluate import METRIC_VERSIONS
    from tinyllm.generate import load_model
    from tinyllm.hardware import computed_precision, pick_device

    model, config, tokenizer = load_model(storage.absolute(args.checkpoint), args.device)
    if tokenizer is None:
        raise ValueError(f"{args.checkpoint} was trained on ids that are no text: the tasks are text")
    chip = computed_precision(pick_device(args.device))
    result = core(
        model,
        tokenizer,
        storage.absolute(args.core_data),
        device_rows=args.device_batch_size,
        precision=config.precision if chip == "bf16" else "fp32",
        max_examples=args.max_examples,
        seed=args.seed,
    )
    show.print_tables([show.core_table(result, METRIC_VERSIONS["core"])])


def export(args: Export) -> None:
    from tinyllm.export import export_model

    export_model(args.checkpoint, args.out)
    print(f"wrote {args.out}: model.py in it loads the rest with torch and safetensors alone")


def main(argv: Sequence[str] | None = None) -> None:
    """Entry point. A user's mistake and a path that fails are printed as one line; else the traceback stays."""
    argv = list(sys.argv[1:] if argv is None else argv)
    runners: dict[str, tuple[type, Callable[..., int | None]]] = {
        "prepare": (Prepare, prepare),
        "plan": (PlanCommand, show_plan),
        "train": (Train, train),
        "sample": (Sample, sample),
        "score": (Score, score),
        "export": (Export, export),
    }
    if not argv or argv[0] in ("-h", "--help") or argv[0] not in runners:
        print("usage: tinyllm COMMAND [OPTIONS]\n")
        print("\n".join(f"  {name:8} {what}" for name, what in COMMANDS.items()))
        print("\n`tinyllm COMMAND --help` lists the options of a command.")
        if argv and argv[0] not in ("-h", "--help"):
            print(f"\nerror: there is no command {argv[0]!r}", file=sys.stderr)
            sys.exit(2)
        sys.exit(0 if argv else 2)
    arguments, runner = runners[argv[0]]
    try:
        sys.exit(runner(parse(arguments, argv[1:], prog=f"tinyllm {argv[0]}", presets=presets.PRESETS)))
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
