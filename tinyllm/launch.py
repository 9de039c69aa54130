"""One model on this node: from a config as a person writes it to records. What `tinyllm train` calls, and Python can.

>>> from tinyllm.config import ModelConfig, TrainConfig
>>> from tinyllm.horizon import Horizon
>>> from tinyllm.launch import train
>>> config = TrainConfig(model=ModelConfig(depth=2), horizons=(Horizon(value=1e6),))  # doctest: +SKIP
>>> records = train(config, out="out/first")  # doctest: +SKIP
"""

from __future__ import annotations

import logging
import os
import shutil
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np

from tinyllm import batching, hardware, record, storage
from tinyllm.config import TrainConfig, differences
from tinyllm.core_eval import tasks_of
from tinyllm.corpus import default_corpus
from tinyllm.data import ArrayCorpus, Corpus, TokenSource
from tinyllm.options import RunOptions
from tinyllm.plan import Plan, plan, resolution_warnings, resolve
from tinyllm.record import RunRecord
from tinyllm.worker import Job, corpus_facts

RUN_FILE = "run.json"  # the config of the run that a directory holds


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """A config that is ready to run."""

    config: TrainConfig
    plan: Plan
    corpus: TokenSource
    warnings: tuple[str, ...]


def prepare_run(asked: TrainConfig, precision: str, corpus: TokenSource | None = None) -> Prepared:
    """Find (or prepare) the corpus, fill what the config leaves open, and plan.

    Raises ValueError for what a user can get wrong: no corpus, a context other than the corpus', an impossible horizon.
    """
    if corpus is None:
        path = default_corpus(asked.data.data, vocab_size=asked.model.vocab_size, seq_len=asked.model.seq_len)
        asked = replace(asked, data=replace(asked.data, data=path))
        corpus = Corpus.open(path)
    facts = corpus_facts(corpus)
    config = resolve(asked, facts, precision)  # type: ignore[arg-type]
    plan_ = plan(config)
    return Prepared(
        config=config,
        plan=plan_,
        corpus=corpus,
        warnings=(*resolution_warnings(asked, facts), *plan_.warnings),
    )


def train(
    asked: TrainConfig,
    options: RunOptions | None = None,
    *,
    out: str,
    n_workers: int | None = None,
    tokens: np.ndarray | None = None,
    val_tokens: np.ndarray | None = None,
    echo: Callable[[str], None] | None = print,
) -> list[RunRecord]:
    """Train one model on this node and return its records, one a budget, by increasing tokens.

    Args:
        asked: the config; what it leaves open is derived.
        out: directory or URI of records/ and runs/<run_id>/. The same call again continues, and redoes nothing.
        n_workers: processes. Default: one for each local GPU, else one.
        tokens, val_tokens: train on these flat arrays of ids instead of a corpus; `asked.model` must then give
            vocab_size and seq_len, and there is one worker.

    Raises ValueError with the remedy for a user's mistakes.
    """
    from tinyllm.trainers import group_trainer, local_trainer  # Ray: seconds that `tinyllm plan` need not wait for

    options = options or RunOptions()
    if options.core_data is not None:
        options = replace(options, core_data=storage.absolute(options.core_data))
    device = hardware.pick_device(options.device)
    precision = hardware.computed_precision(device) if asked.precision == "auto" else asked.precision
    arrays = _arrays(asked, tokens, val_tokens)
    prepared = prepare_run(asked, precision, arrays)
    config = prepared.config
    job = Job(config=config, options=options, root=storage.absolute(out))
    world = n_workers or (hardware.device_count(device) if arrays is None else 1)
    if arrays is not None and world > 1:
        raise ValueError(f"n_workers {world}: arrays in memory are trained on by one worker; prepare a corpus instead")
    # What would fail in every worker is refused here, once, with its remedy.
    memory = hardware.memory_bytes(device)
    batching.device_rows(prepared.plan, config.model, precision, world, options.device_batch_size, memory)
    tasks_of(options, prepared.corpus)
    _refuse_another_run(job)
    if echo is not None:
        for warning in prepared.warnings:
            echo(f"warning: {warning}")
    if world == 1:
        with _stop_on_interrupt(echo) as should_stop, _ray(needed=options.feed == "ray", workers=world):
            local_trainer(job, corpus=arrays, should_stop=should_stop, echo=echo).fit()
    else:
        with _ray(needed=True, workers=world):
            group_trainer(job, n_workers=world, use_gpu=device.type == "cuda", cpus_per_worker=1).fit()
    planned = {b.tokens for b in prepared.plan.budgets}
    return [r for r in record.read(job.root, config.run_id) if r.planned_tokens in planned]


def _refuse_another_run(job: Job) -> None:
    """A directory holds one run: a changed setting is told apart from a longer horizon, which continues it."""
    path = storage.join(job.root, RUN_FILE)
    if storage.exists(path):
        found = differences(TrainConfig.from_json(storage.read_bytes(path).decode()), job.config)
        if found:
            raise ValueError(
                f"{job.root} holds another run: {'; '.join(found)}. "
                "Restore these settings to go on with it, or choose another --name"
            )
    storage.write_bytes(path, job.config.to_json().encode())


def _arrays(asked: TrainConfig, tokens: np.ndarray | None, val_tokens: np.ndarray | None) -> ArrayCorpus | None:
    if tokens is None and val_tokens is None:
        return None
    if tokens is None or val_tokens is None:
        raise ValueError("give both tokens= and val_tokens=: a loss on the tokens trained on says little")
    return ArrayCorpus(tokens, val_tokens, vocab_size=asked.model.vocab, seq_len=asked.model.context)


@contextmanager
def _stop_on_interrupt(echo: Callable[[str], None] | None) -> Iterator[Callable[[], bool]]:
    """The first Ctrl-C asks the loop to stop after its step and save; the second one kills."""
    asked = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield asked.is_set
        return
    before = signal.getsignal(signal.SIGINT)

    def on_interrupt(number: int, frame: object) -> None:
        asked.set()
        signal.signal(signal.SIGINT, before)
        if echo is not None:
            echo("stopping after this step and saving; press Ctrl-C again to end at once")

    signal.signal(signal.SIGINT, on_interrupt)
    try:
        yield asked.is_set
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def _ray(*, needed: bool, workers: int) -> Iterator[None]:
    """A Ray of our own on this machine for the while, where one is needed and none runs in this process."""
    import ray

    if not needed or ray.is_initialized():
        yield
        return
    logging.getLogger("ray.data").setLevel(logging.WARNING)
    os.environ.setdefault("RAY_TRAIN_HEALTH_CHECK_INTERVAL_S", "0.2")  # a report waits for the controller's poll
    cores = hardware.usable_cores()
    # Short: Ray puts sockets there, whose paths may not be long.
    scratch = tempfile.mkdtemp(prefix="tinyllm-")
    try:
        ray.init(
            address="local",
            num_cpus=max(cores, workers),
            include_dashboard=False,
            logging_level="ERROR",
            _temp_dir=scratch,
            runtime_env={
                "env_vars": {
                    "OMP_NUM_THREADS": str(max(1, cores // workers)),
                    "TORCH_CPP_LOG_LEVEL": "ERROR",  # DDP's advice on unused parameters (see tinyllm/train.py)
                }
            },
        )
        yield
    finally:
        ray.shutdown()
        shutil.rmtree(scratch, ignore_errors=True)
