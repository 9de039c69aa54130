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
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from tinyllm import batching, checkpoint, hardware, interrupt, record, storage
from tinyllm.config import CorpusFacts, TrainConfig, differences
from tinyllm.core_eval import tasks_of
from tinyllm.corpus import DEFAULT_SEQ_LEN, default_corpus
from tinyllm.data import ArrayCorpus, Corpus, TokenSource
from tinyllm.options import RunOptions
from tinyllm.plan import Plan, plan, resolution_warnings, resolve
from tinyllm.record import RunRecord
from tinyllm.recorder import reached_budgets
from tinyllm.rules import with_corpus
from tinyllm.worker import Job, corpus_facts

SAVES = 10  # checkpoints of a run that leaves `save_every` open, so that a killed one loses a tenth of it at most
RUN_FILE = "run.json"  # the config of the run that a directory holds
OTHER_DIRECTORY = "choose another directory (--name; from Python: out=)"


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
        path = _corpus_path(asked)
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


def plan_on_paper(asked: TrainConfig, precision: str) -> tuple[TrainConfig, Plan, tuple[str, ...]]:
    """The resolved config, its plan and warnings, also where it could not be trained here as it stands.

    A corpus that is too small, of another vocabulary or context, or that can't be prepared, and a model that no memory
    here holds, are warned of. Raises ValueError for an impossible horizon, and where the vocabulary is not known.
    """
    facts, warnings = _facts_on_paper(asked)
    config = resolve(asked, facts, precision)  # type: ignore[arg-type]
    plan_ = plan(config, on_paper=True)
    if not torch.cuda.is_available():  # a GPU is not woken to ask for its memory
        memory = hardware.machine_memory_bytes()
        too_large = batching.too_large(config.model, config.optim.optimizer, config.precision, memory, "this machine")
        warnings += [f"it can't be trained on this machine: {too_large}"] if too_large is not None else []
    return config, plan_, (*warnings, *resolution_warnings(asked, facts), *plan_.warnings)


def _facts_on_paper(asked: TrainConfig) -> tuple[CorpusFacts, list[str]]:
    """The corpus, or what the config supposes of one, and why it could not be trained on."""
    facts, vocab_size, seq_len = None, asked.model.vocab_size, asked.model.seq_len
    try:
        facts = corpus_facts(Corpus.open(_corpus_path(asked)))
        with_corpus(asked.model, facts)
    except ValueError as error:
        vocab_size = vocab_size or (facts.vocab_size if facts else None)
        seq_len = seq_len or (facts.seq_len if facts else DEFAULT_SEQ_LEN)
        if vocab_size is None:
            raise
        supposed = CorpusFacts(
            name="on paper",
            digest="",
            vocab_size=vocab_size,
            seq_len=seq_len,
            train_tokens=None,
            val_tokens=max(seq_len, asked.data.eval_tokens),
        )
        return supposed, [f"it can't be trained as it stands: {error}"]
    return facts, []


def _corpus_path(asked: TrainConfig) -> str:
    return default_corpus(asked.data.data, vocab_size=asked.model.vocab_size, seq_len=asked.model.seq_len)


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

    A Ctrl-C or SIGTERM saves the state and then raises KeyboardInterrupt or SystemExit(143); the same call goes on. A
    run that `options.stop_after` ended has no records yet of the budgets after it.

    Args:
        asked: the config; what it leaves open is derived.
        out: directory or URI of records/ and runs/<run_id>/. The same call again continues, and redoes nothing. A local
            directory is locked: a second run, or a sweep, in it is refused. Object stores have no locks: there see to
            it that no other process trains in the same place.
        n_workers: processes. Default: one for each local GPU, else one.
        tokens, val_tokens: train on these flat arrays of ids instead of a corpus; `asked.model` must then give
            vocab_size and seq_len, and there is one worker.

    Raises ValueError with the remedy for a user's mistakes.
    """
    options = options or RunOptions()
    if n_workers is not None and n_workers < 1:
        raise ValueError(f"--workers {n_workers}: give 1 or more, or leave it out (from Python: n_workers=)")
    if options.core_data is not None:
        options = replace(options, core_data=storage.absolute(options.core_data))
    device = hardware.pick_device(options.device)
    precision = hardware.computed_precision(device) if asked.precision == "auto" else asked.precision
    arrays = _arrays(asked, tokens, val_tokens)
    prepared = prepare_run(asked, precision, arrays)
    config = prepared.config
    world = n_workers or (hardware.device_count(device) if arrays is None else 1)
    if arrays is not None and world > 1:
        raise ValueError(f"n_workers {world}: arrays in memory are trained on by one worker; prepare a corpus instead")
    # What would fail in every worker, or only at the end of a budget, is refused here, once, with its remedy.
    if isinstance(prepared.corpus, Corpus):
        prepared.corpus.check()
    _refuse_too_large(config, device, world)
    batching.device_rows(prepared.plan, config, world, options.device_batch_size, hardware.memory_bytes(device))
    tasks_of(options, prepared.corpus)
    if options.save_every is None:
        options = replace(options, save_every=-(-prepared.plan.budgets[-1].steps // SAVES))
    job = Job(config=config, options=options, root=storage.absolute(out))
    storage.check_writable(job.root, flag="--out (from Python: out=)")
    with storage.locked(job.root, lambda: _refuse_second(job.root)):
        _refuse_another_run(job)
        if options.resume_from is not None:
            done = reached_budgets(job.root, config.run_id)
            checkpoint.resumable(job.run_root, prepared.plan, done, from_step=options.resume_from)
        storage.write_bytes(storage.join(job.root, RUN_FILE), config.to_json().encode())
        if echo is not None:
            for warning in prepared.warnings:
                echo(f"warning: {warning}")
        if world == 1:
            _train_here(job, arrays, echo)
        else:
            _train_in_group(job, world, device, echo)
        planned = {b.tokens for b in prepared.plan.budgets}
        return [r for r in record.read(job.root, config.run_id) if r.planned_tokens in planned]


def _train_here(job: Job, arrays: ArrayCorpus | None, echo: Callable[[str], None] | None) -> None:
    from tinyllm.trainers import local_trainer  # Ray: seconds that `tinyllm plan` need not wait for

    with _ray(needed=job.options.feed == "ray", workers=1), interrupt.deferred(notice=echo is not None) as should_stop:
        local_trainer(job, corpus=arrays, should_stop=should_stop, echo=echo).fit()


def _train_in_group(job: Job, world: int, device: torch.device, echo: Callable[[str], None] | None) -> None:
    """The workers hear of a stop by a file that appears; one of this machine is enough, since they vote."""
    from ray.util.queue import Queue

    from tinyllm.trainers import group_trainer

    ended: list[BaseException | None] = []

    def fit() -> None:
        try:
            trainer.fit()
            ended.append(None)
        except BaseException as error:
            ended.append(error)  # raised again below
        lines.put(None)

    def show() -> None:
        while (line := lines.get()) is not None:
            if echo is not None:
                echo(line)

    with tempfile.TemporaryDirectory(prefix="tinyllm-") as directory, _ray(needed=True, workers=world):
        stop, lines = Path(directory) / "stop", Queue(actor_options={"num_cpus": 0})
        trainer = group_trainer(
            job,
            n_workers=world,
            use_gpu=device.type == "cuda",
            cpus_per_worker=1,
            listen=lambda: stop.exists,
            echo=lines.put,
        )
        with interrupt.deferred(notice=echo is not None, on_first=stop.touch):
            # In a thread: in the main one Ray Train would take Ctrl-C for itself and abort the workers unsaved.
            threads = [threading.Thread(target=target, daemon=True) for target in (fit, show)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            if ended[0] is not None:
                raise ended[0]


def _refuse_second(root: str) -> None:
    raise ValueError(f"another process trains in {root}: wait for it, end it with Ctrl-C, or {OTHER_DIRECTORY}")


def _refuse_too_large(config: TrainConfig, device: torch.device, world: int) -> None:
    on_gpu = device.type == "cuda"
    reason = batching.too_large(
        config.model,
        config.optim.optimizer,
        config.precision,
        hardware.state_memory_bytes(device),
        f"the device ({hardware.machine(device)['chip']})" if on_gpu else "this machine",
        copies=1 if on_gpu else world,
    )
    if reason is not None:
        raise ValueError(f"depth {config.model.depth} {reason}")


def _refuse_another_run(job: Job) -> None:
    """A directory holds one run: a changed setting is told apart from a longer horizon, which continues it."""
    path = storage.join(job.root, RUN_FILE)
    if storage.exists(path):
        found = differences(TrainConfig.from_json(storage.read_bytes(path).decode()), job.config)
        if found:
            raise ValueError(
                f"{job.root} holds another run: {'; '.join(found)}. "
                f"Restore these settings to go on with it, or {OTHER_DIRECTORY}"
            )


def _arrays(asked: TrainConfig, tokens: np.ndarray | None, val_tokens: np.ndarray | None) -> ArrayCorpus | None:
    if tokens is None and val_tokens is None:
        return None
    if tokens is None or val_tokens is None:
        raise ValueError("give both tokens= and val_tokens=: a loss on the tokens trained on says little")
    return ArrayCorpus(tokens, val_tokens, vocab_size=asked.model.vocab, seq_len=asked.model.context)


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
            log_to_driver=False,  # Ray's own lines, one a second without a dashboard; ours come by a queue
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
