"""The sweep's `Session` on the interfaces of Ray Tune: scheduler, queue of trials, and callback."""

from __future__ import annotations

from typing import Any

from ray import cloudpickle
from ray.tune.experiment import Trial as TuneTrial
from ray.tune.progress_reporter import TrialProgressCallback
from ray.tune.schedulers import TrialScheduler
from ray.tune.search import BasicVariantGenerator

from sweeps import groups
from sweeps.reasons import reason_of
from sweeps.session import Session


def run_id_of(trial: TuneTrial) -> str:
    return trial.config["run_id"]


class RungScheduler(TrialScheduler):
    """Asks the session at every report whether the trial goes on, waits without a slot, or ends.

    Trials run in the order they were added (largest first), one that was paused and may go on before later ones.
    """

    def __init__(self, session: Session) -> None:
        super().__init__()
        self._session = session

    def on_trial_add(self, controller: Any, trial: TuneTrial) -> None:
        self._session.queued(run_id_of(trial))

    def on_trial_error(self, controller: Any, trial: TuneTrial) -> None:
        self._session.lost(run_id_of(trial))

    def on_trial_result(self, controller: Any, trial: TuneTrial, result: dict[str, Any]) -> str:
        run_id = run_id_of(trial)
        self._session.reported(run_id, result)
        match self._session.answer(run_id, result["rung"]):
            case "go":
                return TrialScheduler.CONTINUE
            case "wait":
                return TrialScheduler.PAUSE
            case "stop":
                return TrialScheduler.STOP

    def on_trial_complete(self, controller: Any, trial: TuneTrial, result: dict[str, Any]) -> None:
        # A last report comes here alone, not to on_trial_result.
        self._session.reported(run_id_of(trial), result)
        self._session.left(run_id_of(trial))

    def on_trial_remove(self, controller: Any, trial: TuneTrial) -> None:
        """A trial that waited is stopped: the session said so."""

    def choose_trial_to_run(self, controller: Any) -> TuneTrial | None:
        self._session.settle()
        chosen = None
        for trial in list(controller.get_trials()):
            if trial.status not in (TuneTrial.PENDING, TuneTrial.PAUSED):
                continue
            if self._session.closing is not None:
                controller.stop_trial(trial)
                continue
            rung = (trial.last_result or {}).get("rung", 0) if trial.status == TuneTrial.PAUSED else 0
            answer = self._session.judged(run_id_of(trial), rung)
            if answer == "stop":
                controller.stop_trial(trial)
            elif answer == "go" and chosen is None:
                chosen = trial
        return chosen

    def debug_string(self) -> str:
        return ""


class TrialQueue(BasicVariantGenerator):
    """Tune's grid search, finished only when every trial is: until then Tune keeps an idle actor for reuse."""

    def __init__(self, session: Session, n_trials: int) -> None:
        super().__init__()
        self._session, self._unfinished = session, n_trials
        self._held: TuneTrial | None = None

    def next_trial(self) -> TuneTrial | None:
        """The next one that the limit holds; None for now where that depends on what others will have spent."""
        while self._session.closing is None:
            trial, self._held = self._held or super().next_trial(), None
            if trial is None:
                break
            match self._session.admitted(run_id_of(trial)):
                case "go":
                    return trial
                case "wait":
                    self._held = trial
                    break
                case "stop":
                    self._unfinished -= 1
        return None

    def set_finished(self) -> None:
        """The generator calls this when it has handed out its last trial."""

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        super().on_trial_complete(trial_id, result, error)
        self._unfinished -= 1

    def is_finished(self) -> bool:
        return self._unfinished <= 0 or self._session.closing is not None

    def save_to_dir(self, dirpath: str, session_str: str) -> None:
        """Nothing: a restarted sweep plans anew what is missing."""


class Reporter(TrialProgressCallback):
    """Keeps the session up to date at every turn of Tune's loop. In place of Tune's own printer, which it replaces."""

    def __init__(self, session: Session) -> None:
        super().__init__()
        self._session = session

    def on_step_end(self, iteration: int, trials: list[TuneTrial], **info: Any) -> None:
        self._session.tick({run_id_of(t) for t in trials if t.status == TuneTrial.RUNNING})

    def on_trial_result(self, *args: Any, **info: Any) -> None:
        """The scheduler has told the session."""

    def on_trial_complete(self, *args: Any, **info: Any) -> None:
        """The scheduler has told the session."""

    def on_trial_recover(self, iteration: int, trials: list[TuneTrial], trial: TuneTrial, **info: Any) -> None:
        groups.remove_left(run_id_of(trial))
        self._session.say(f"{run_id_of(trial)}: {_reason(trial)}; it is tried again from its last checkpoint")

    def on_trial_error(self, iteration: int, trials: list[TuneTrial], trial: TuneTrial, **info: Any) -> None:
        groups.remove_left(run_id_of(trial))
        # Tune gives no second try to a trial whose actor dies while it is handed over by the trial before.
        self._session.failed(run_id_of(trial), _reason(trial), innocent=trial.num_failures <= trial.max_failures)


def _reason(trial: TuneTrial) -> str:
    """What a trial died of, in a line."""
    # Tune's own `get_error` looks on storage, where the file arrives later than this is asked.
    with open(trial.pickled_error_file, "rb") as file:
        return reason_of(cloudpickle.load(file))
