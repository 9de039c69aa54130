"""How long a running sweep will still take."""

from __future__ import annotations

import time

from sweeps import stopping
from sweeps.planned import Planned
from sweeps.session import Session


def seconds_left(planned: Planned, session: Session) -> float | None:
    """Seconds until the queue is empty, by the speed of the segments that have ended; None before the first one.

    Early stopping is taken to save half of what it may.
    """
    board, pace = session.board, session.pace
    if not pace.measured:
        return None
    total, longest, now = 0.0, 0.0, time.monotonic()
    quotes = planned.quotes(board, pace, new_processes=session.slots - session.processes)
    for q in quotes:
        run_id = q.trial.run_id
        waiting = sum(s for tokens, s in q.device_seconds.items() if board.status[run_id, tokens] == "waiting")
        if not waiting:
            continue
        left = max(0.0, waiting / pace.resources[run_id].devices - pace.elapsed(run_id, now))
        total, longest = total + left, max(longest, left)
    if session.halving is not None and (whole := sum(q.device_hours for q in quotes)):
        saving = stopping.saving(quotes, planned.groups, board, session.halving.factor)
        total *= (saving.least + saving.most) / 2 / whole
    return max(longest, total / session.slots)
