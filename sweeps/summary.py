"""The last lines of a sweep: what was reached, what is missing, and what to do next."""

from __future__ import annotations

import shlex

from sweeps.board import Board
from sweeps.quote import compact
from sweeps.remedy import Remedy

EXIT_DONE, EXIT_MISSING, EXIT_INTERRUPTED = 0, 1, 130


def last_lines(root: str, board: Board, remedy: Remedy, *, interrupted: bool) -> tuple[list[str], int]:
    """Lines to print, and the exit code: 0 = nothing is missing but what early stopping left out."""
    counts = {name: board.count(name) for name in ("done", "stopped", "diverged", "failed", "budget", "waiting")}
    lines = ["", f"{len(board.cells)} budgets: " + ", ".join(f"{n} {name}" for name, n in counts.items() if n)]
    for line in board.lines():
        if line.best_loss is not None:
            where = f"d{line.depth} {compact(line.tokens):>6} tokens"
            lines.append(f"  {where}: val_loss {line.best_loss:.4f} at {line.best}")
    for (run_id, tokens), status in board.status.items():
        if status in ("failed", "diverged"):
            reason = board.reasons.get((run_id, tokens), "no reason known")
            lines.append(f"  {status}: {run_id} at {tokens:,} tokens: {reason}")
    missing = counts["failed"] + counts["budget"] + counts["waiting"]
    lines.append(f"Records: {root}/records")
    if missing:
        lines += [f"Missing: {missing} budgets. {remedy.why}", f"  {remedy.command}"]
    lines.append(f"Report: python -m analysis report {shlex.quote(root)}")
    if counts["stopped"]:
        lines.append("Trials that early stopping ended go on with --retry-stopped.")
    return lines, EXIT_INTERRUPTED if interrupted and missing else EXIT_MISSING if missing else EXIT_DONE
