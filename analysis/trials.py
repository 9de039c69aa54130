"""Trials worth having: with which LRs and seed, and by which command they are run."""

from __future__ import annotations

import dataclasses
import json
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from analysis.laws import FloatArray, LrLaw
from analysis.lr import optima
from analysis.result import Fit
from analysis.runs import Points, Runs
from tinyllm import storage

SAME = 1.1
"""Sizes and token counts within this factor are one: a budget is rounded to whole steps."""
SWEEP_FILE = "sweep.json"
RUN = ("done", "stopped", "diverged")
GRID_FLAGS = ("--depths", "--lrs", "--budgets", "--seeds", "--unit", "--flops", "--center", "--factor", "--count")
ONCE_FLAGS = ("--dry-run", "--probe", "--retry-stopped", "--early-stop", "--no-early-stop")


@dataclass(frozen=True, kw_only=True)
class Trial:
    """A run worth having: n parameters, d tokens, training flops of each LR, depth (None without a ladder).

    gain: share in [0, 1] of the variance of the target's log loss that measuring it would remove; None where there is
    no variance to remove yet, or where `why` says what else it is for. lrs: peak LRs, empty where none is known.
    branches: smaller token counts that the same trunk is to reach on its way.
    """

    depth: int | None
    n: float
    d: float
    flops: float
    gain: float | None
    lrs: tuple[float, ...] = ()
    seed: int = 0
    branches: tuple[float, ...] = ()
    why: str = ""


def is_measured(points: Points, n: float, d: float) -> bool:
    """Whether a point of this size and token count is there."""
    return bool(_near(points.n, points.d, n, d).any())


def _near(ns: FloatArray, ds: FloatArray, n: float, d: float) -> np.ndarray:
    return (np.abs(np.log(ns / n)) < np.log(SAME)) & (np.abs(np.log(ds / d)) < np.log(SAME))


def with_lrs(trials: Iterable[Trial], runs: Runs, lr: Fit[LrLaw] | None) -> list[Trial]:
    """The trials, each with the LRs that are to bracket its best one; those that the records hold already are left out.

    Three LRs in the ratio of those tried: around the LR law's, or from the edge outward where the best is only bounded.
    """
    found = []
    for trial in trials:
        if lr is None:
            found.append(trial)
            continue
        lrs = tuple(x for x in _bracket(runs, lr, trial.n, trial.d) if not _is_run(runs, trial, x))
        if lrs:
            found.append(dataclasses.replace(trial, lrs=lrs))
    return found


def around_best(runs: Runs, *, another_seed: bool) -> list[Trial]:
    """Trials at sizes and token counts measured: LRs beyond an edge at which the best one lies, and `another_seed`.

    LRs are for the largest of a size's token counts with such an edge, the others are branches. The seed is for the
    smallest size at its largest token count: the noise of log loss is to be seen, and it is cheap there.
    """
    cells = optima(runs).sort_values(["n", "d"])
    if cells.empty:
        return []
    ratio, found = _ratio(_tried(runs)), []
    for _, edge in cells[cells["bound"] != ""].groupby(["n", "bound"]):
        last, tokens = edge.iloc[-1].to_dict(), edge["d"].tolist()
        lr = float(last["lr"])
        steps, side = {
            "at least": ((1, 2), "the highest"),
            "at most": ((-2, -1), "the lowest"),
            "only": ((-1, 1), "the only one"),
        }[last["bound"]]
        trial = _at(runs, last["n"], last["d"], f"the best LR there, {lr:.2g}, is {side} tried")
        lrs = tuple(x for x in (_round(lr * ratio**k) for k in steps) if not _is_run(runs, trial, x))
        found += [dataclasses.replace(trial, lrs=lrs, branches=tuple(tokens[:-1]))] if lrs else []
    if another_seed:
        last = cells[cells["n"] == cells["n"].min()].iloc[-1].to_dict()
        trial = _at(runs, last["n"], last["d"], "again with another seed: nothing shows the noise of a loss")
        here = runs.measured[(runs.measured["n"] == trial.n) & (runs.measured["d"] == trial.d)]
        lr, seed = float(here.sort_values("loss")["lr"].iloc[0]), int(runs.table["seed"].max()) + 1
        found.append(dataclasses.replace(trial, lrs=(lr,), seed=seed))
    return found


def _at(runs: Runs, n: float, d: float, why: str) -> Trial:
    first = runs.table[(runs.table["n"] == n) & (runs.table["d"] == d)].iloc[0].to_dict()
    depth = int(first["depth"]) if first["depth"] >= 0 else None
    return Trial(depth=depth, n=float(n), d=float(d), flops=float(first["flops"]), gain=None, why=why)


def _tried(runs: Runs) -> FloatArray:
    return np.sort(runs.table["lr"].dropna().unique())


def _ratio(tried: FloatArray) -> float:
    """Of neighbouring LRs; 2 where there is one."""
    return float(np.exp(np.median(np.diff(np.log(tried))))) if len(tried) > 1 else 2.0


def _round(lr: float) -> float:
    return float(f"{lr:.2g}")


def _bracket(runs: Runs, lr: Fit[LrLaw], n: float, d: float) -> tuple[float, ...]:
    tried = _tried(runs)
    ratio = _ratio(tried)
    best = float(lr.law(n, d))
    steps = {"at least": (0, 1, 2), "at most": (-2, -1, 0)}.get(lr.settings["bound"], (-1, 0, 1))
    # On the grid of the LRs tried, where a trunk of the same LR may be there to go on with.
    nearest = float(tried[np.argmin(np.abs(np.log(tried / best)))])
    centre = nearest if abs(np.log(nearest / best)) <= 0.501 * np.log(ratio) else best
    lrs = [centre * ratio**k for k in steps]
    return tuple(_round(next((float(x) for x in tried if abs(np.log(x / lr)) < 0.05), lr)) for lr in lrs)


def _is_run(runs: Runs, trial: Trial, lr: float) -> bool:
    """Whether the records hold this trial with this LR and seed, whatever came of it."""
    table = runs.table[runs.table["status"].isin(RUN) & (runs.table["seed"] == trial.seed)]
    near = _near(table["n"].to_numpy(float), table["d"].to_numpy(float), trial.n, trial.d)
    return bool((near & (np.abs(np.log(table["lr"].to_numpy(float) / lr)) < 0.05)).any())


def commands(trials: Sequence[Trial], runs: Runs) -> list[str]:
    """Shell commands that run the trials, one for all token counts of a (depth, LRs), with the seeds that these runs
    have; none for a trial without depth or LRs.

    They begin as the command of the sweep did that left these records, as far as all of its trials share it.
    """
    base, measured = _base(runs.source), set(runs.table["d"])
    usual = usual_seeds(runs)
    budgets: dict[tuple[int, tuple[float, ...], tuple[int, ...]], list[float]] = {}
    for trial in trials:
        if trial.depth is not None and trial.lrs:
            # The seeds of the runs, unless the trial is there for another one.
            seeds = usual if trial.seed in usual else (trial.seed,)
            budgets.setdefault((trial.depth, trial.lrs, seeds), []).extend([*trial.branches, trial.d])
    found = []
    for (depth, lrs, seeds), tokens in budgets.items():
        # A token count that was measured is met exactly; a new one need not be.
        counts = dict.fromkeys(f"{d if d in measured else float(f'{d:.3g}'):.0f}" for d in sorted(tokens))
        grid = ["--depths", str(depth), "--lrs", *(f"{lr:g}" for lr in lrs), "--budgets", *counts]
        grid += ["--seeds", *map(str, seeds)]
        found.append(shlex.join([*base, *grid]))
    return found


def usual_seeds(runs: Runs) -> tuple[int, ...]:
    """The seeds that most points of the runs were measured with, ascending: a second one of few points is a probe."""
    rows = runs.measured
    cells = rows.groupby("seed")["cell"].nunique()
    return tuple(sorted(int(seed) for seed in cells.index[cells > rows["cell"].nunique() / 2]))


def known_sweep(source: str) -> bool:
    """Whether the sweep's own command lies beside its records."""
    return bool(_own_command(source))


def _own_command(source: str) -> list[str]:
    """The words of the command of the sweep at `source`; none where it left none, or another program's file."""
    path = storage.join(source, SWEEP_FILE)
    kept = json.loads(storage.read_bytes(path)) if storage.exists(path) else {}
    return shlex.split(kept["command"]) if isinstance(kept, dict) and isinstance(kept.get("command"), str) else []


def _base(source: str) -> list[str]:
    """The command of the sweep at `source` without its grid; a bare one where it left none."""
    start = ["python", "-m", "sweeps.depth_grid"]
    kept, dropping = [], False
    for word in _own_command(source)[len(start) :]:
        if word.startswith("--"):
            dropping = word.partition("=")[0] in (*GRID_FLAGS, *ONCE_FLAGS)
        if not dropping:
            kept.append(word)
    return [*start, *kept]
