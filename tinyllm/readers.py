"""Readers of the loop's events: what keeps a run's state and records, and what a run writes about itself on the way.

Every rank calls every reader at every event, since some of them add up over ranks; the first rank alone writes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tinyllm import checkpoint, ranks
from tinyllm.core_eval import CoreReader
from tinyllm.data import TokenSource
from tinyllm.events import CoreScored, Diverged, Event, Forked, HorizonReached, Sampled, StepDone, Stopped
from tinyllm.generate import continue_texts
from tinyllm.options import RunOptions
from tinyllm.plan import Budget
from tinyllm.recorder import Recorder
from tinyllm.runlog import RunLog, describe
from tinyllm.state import TrainState
from tinyllm.track import Tracker

# Fixed, so that samples of different steps and runs compare.
PROMPTS = ("The state of the", "Our people have", "In the year", "I ask the Congress to")
SAMPLE_TOKENS = 48


class Saver:
    """Checkpoints at forks, every `save_every` steps and where a run stops; the decayed weights of each budget."""

    def __init__(self, root: str, state: TrainState, options: RunOptions) -> None:
        self.root, self.state, self.options = root, state, options

    def read(self, event: Event) -> None:
        match event:
            case Forked():
                checkpoint.save(self.root, self.state, at_fork=True)
                if self.options.keep_forks == "last":
                    checkpoint.drop_forks(self.root, before=self.state.step)
            case StepDone() if self._is_due(event):
                # Before the evaluation that may follow: a run killed in it resumes with no step left to do.
                self._save()
            case HorizonReached() if self.options.save_weights:
                checkpoint.save_weights(self.root, self.state, event.budget.tokens, event.val_loss)
            case Stopped():
                self._save()

    def _save(self) -> None:
        checkpoint.save(self.root, self.state)
        checkpoint.prune(self.root, self.options.keep, self.state.segment)

    def _is_due(self, event: StepDone) -> bool:
        every = self.options.save_every
        return every is not None and every > 0 and (event.step % every == 0 or event.ends_branch)


class Bookkeeper:
    """A record for every budget: done as it is reached; diverged or failed where the run ends before it."""

    def __init__(self, recorder: Recorder, budgets: Sequence[Budget]) -> None:
        self.recorder, self.remaining = recorder, list(budgets)

    def read(self, event: Event, answers: Sequence[Event]) -> None:
        """`answers`: the examiner's, whose scores belong to the record: a run killed before them has none yet."""
        match event:
            case HorizonReached():
                self.recorder.reached(event, next((a.result for a in answers if isinstance(a, CoreScored)), None))
                self.remaining = [b for b in self.remaining if b.tokens != event.budget.tokens]
            case Diverged():
                self.recorder.missed(self.remaining, "diverged", str(event))

    def failed(self, error: Exception) -> None:
        self.recorder.missed(self.remaining, "failed", f"{type(error).__name__}: {error}")


class Examiner:
    """Answers an event with further ones: scores on in-context tasks, samples of text."""

    def __init__(self, state: TrainState, corpus: TokenSource, options: RunOptions, device_rows: int) -> None:
        self.state, self.tokenizer, self.every = state, corpus.tokenizer, options.sample_every
        self.core = CoreReader(options, corpus, device_rows=device_rows, precision=state.config.precision)

    def read(self, event: Event) -> list[Event]:
        found: list[Event] = []
        if (result := self.core.read(event, self.state.model)) is not None:
            found.append(CoreScored(**self.state.position, result=result))
        if self.tokenizer is not None and ranks.rank() == 0 and self._sample_is_due(event):
            texts = continue_texts(self.state.model, self.tokenizer, PROMPTS, SAMPLE_TOKENS)
            found.append(Sampled(**self.state.position, texts=tuple(texts)))
        return found

    def _sample_is_due(self, event: Event) -> bool:
        if isinstance(event, StepDone):
            return bool(self.every) and event.step % self.every == 0 and not event.ends_branch
        return bool(self.every) and isinstance(event, HorizonReached)


class Narrator:
    """Tells every event to the run's log and to Weights & Biases; on the first rank alone."""

    def __init__(self, log: RunLog, tracker: Tracker, state: TrainState, mfu: Callable[[float | None], float | None]):
        self.log, self.tracker, self.state, self.mfu = log, tracker, state, mfu

    def read(self, event: Event) -> None:
        speed = event.tokens_per_second if isinstance(event, StepDone) else None
        if (text := describe(event, self.state.plan, self.mfu(speed))) is not None:
            self.log.line(text)
        self.tracker.read(event)

    def failed(self, error: Exception) -> None:
        # In the caller's process whoever called is told by the exception; a group's may be swallowed by a retry.
        self.log.line(f"FAILED: {type(error).__name__}: {error}", echo=ranks.world_size() > 1)

    def close(self) -> None:
        self.tracker.close()
        self.log.flush()
