"""What a worker does: build or resume a run, drive the loop, and let its readers see every event.

One loop serves everything: `tinyllm train` and a sweep's trial, in one process or as one rank of a group
(`tinyllm.trainers`). The run's own directory says where it stands.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

from tinyllm import batching, checkpoint, hardware, ranks, storage
from tinyllm.config import CorpusFacts, TrainConfig
from tinyllm.data import Corpus, Feed, TokenSource
from tinyllm.events import Event
from tinyllm.options import RunOptions
from tinyllm.plan import plan
from tinyllm.readers import Bookkeeper, Examiner, Narrator, Saver
from tinyllm.recorder import Recorder, reached_budgets
from tinyllm.runlog import LOG_NAME, RunLog
from tinyllm.state import TrainState
from tinyllm.track import Tracker
from tinyllm.train import Batches, train


@dataclass(frozen=True, kw_only=True)
class Job:
    """One run to do: what, how, where."""

    config: TrainConfig
    """Resolved."""
    options: RunOptions
    root: str
    """Absolute directory or URI of the sweep (or of a single run): holds records/ and runs/<run_id>/."""
    sweep: str | None = None
    device_share: float = 1.0
    """Part of the GPU's memory that is this run's, where several share one."""

    @property
    def run_root(self) -> str:
        return storage.join(self.root, checkpoint.RUNS_DIR, self.config.run_id)


def corpus_facts(corpus: TokenSource) -> CorpusFacts:
    """What a config has to know of a corpus."""
    m = corpus.manifest
    return CorpusFacts(
        name=m.name,
        digest=m.digest,
        vocab_size=m.vocab_size,
        seq_len=m.seq_len,
        train_tokens=None if m.kind == "zipf" else m.train_tokens,
        val_tokens=m.val_tokens,
    )


def run(
    job: Job,
    *,
    corpus: TokenSource | None = None,
    on_event: Callable[[Event], None] = lambda event: None,
    should_stop: Callable[[], bool] = lambda: False,
    echo: Callable[[str], None] | None = None,
    open_feed: Callable[..., Batches] = Feed,
) -> TrainState:
    """Do a job in this process, as one rank of however many there are; returns the state it ended in.

    Continues from the run's newest valid checkpoint and redoes no budget that is on record. Rows are written for every
    budget: done as it is reached; diverged, failed where the run ends before it. An exception is recorded and raised.
    """
    config, options = job.config, job.options
    device = hardware.pick_device(options.device)
    hardware.configure(device, deterministic=options.deterministic)
    hardware.reset_peak_memory(device)
    corpus = corpus if corpus is not None else open_corpus(config)
    plan_ = plan(config)
    state = TrainState(config, plan_, device)
    rows = batching.device_rows(
        plan_, config, ranks.world_size(), options.device_batch_size, hardware.memory_bytes(device, job.device_share)
    )
    # A changed config is refused here, before anything is recorded: a mistake of the user's, not a run that failed.
    done = reached_budgets(job.root, config.run_id)
    entry = checkpoint.resume(job.run_root, state, plan_, done, from_step=options.resume_from)
    if corpus.tokenizer is not None:
        checkpoint.save_tokenizer(job.run_root, corpus.tokenizer.to_json())

    recorder = Recorder(
        job.root,
        state,
        sweep=job.sweep,
        peak_tflops=options.peak_tflops or hardware.peak_tflops(device, config.precision),
        log_path=storage.join(job.run_root, LOG_NAME),
    )
    saver = Saver(job.run_root, state, options)
    bookkeeper = Bookkeeper(recorder, [b for b in plan_.budgets if b.tokens not in done])
    examiner = Examiner(state, corpus, options, rows)
    narrator = None
    if ranks.rank() == 0:
        run_log = RunLog(job.run_root, echo)
        if bookkeeper.remaining:
            start = f"continuing from {os.path.basename(entry.path)}" if entry else "starting"
            run_log.line(f"{config.run_id}: {start} on {device}, {ranks.world_size()} rank(s), {config.precision}")
        else:
            run_log.line(f"{config.run_id}: every budget is on record, nothing is left to train")
        tracker = Tracker(job.run_root, state, options, sweep=job.sweep, mfu=recorder.mfu)
        narrator = Narrator(run_log, tracker, state, recorder.mfu)
    events = train(state, corpus, options, device_rows=rows, done=done, should_stop=should_stop, open_feed=open_feed)
    try:
        for event in events:
            if narrator is not None:
                narrator.read(event)  # first: a checkpoint of this step counts the event as told
            saver.read(event)
            answers = examiner.read(event)
            if narrator is not None:
                for answer in answers:
                    narrator.read(answer)
            bookkeeper.read(event, answers)
            on_event(event)
    except Exception as error:
        bookkeeper.failed(error)
        if narrator is not None:
            narrator.failed(error)
        raise
    finally:
        if narrator is not None:
            narrator.close()
    return state


def open_corpus(config: TrainConfig) -> TokenSource:
    """The config's corpus. Raises ValueError when it is not the one that the config was resolved with."""
    assert config.data.data is not None
    assert config.corpus is not None
    corpus = Corpus.open(config.data.data)
    if corpus.manifest.digest != config.corpus.digest:
        raise ValueError(
            f"corpus {config.data.data} has digest {corpus.manifest.digest}, the run was planned for "
            f"{config.corpus.digest}: point --data at the corpus it was planned with"
        )
    return corpus
