"""The training loop of one trial as its actor sees it: started, asked for its next report, told to go on or to stop."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True, kw_only=True)
class Ended:
    """The loop is over: at its end, because it was asked to stop, or by an exception."""

    error: BaseException | None
    retried: bool = False
    """Whether what the error ended was tried again as often as it may be."""


# `tinyllm.trainers.metrics` of a budget that was reached or of a run that diverged, or the end.
Report = dict[str, Any] | Ended


class Loop(Protocol):
    """Runs from the moment it is made, and halts at every budget until it is told to go on.

    A halt costs a message; in return no token is trained on before the sweep has decided that it should be.
    """

    def next_report(self) -> Report:
        """Wait for the next budget, or the end."""

    def go_on(self) -> None:
        """Leave the budget that was reported last."""

    def stop(self, timeout_s: float) -> bool:
        """End the loop, its state on storage; whether it ended in time."""
