"""python -m analysis report PATH | backtest PATH"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import tyro

from analysis import place, report
from analysis.axes import axes
from analysis.backtest import backtest
from analysis.lr import optima
from analysis.plots import size_labels
from analysis.runs import Flops, LrChoice, Params, load
from analysis.study import Study, study
from analysis.trials import commands, known_sweep
from analysis.wording import best_lr, compute, formula, loss_words, lr_short, number, span, trial_words, verdict
from tinyllm.pipe import reader_may_leave

Path = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="PATH", help_behavior_hint="")]


@dataclass(frozen=True, kw_only=True)
class Report:
    """Fit a sweep's losses and write report.html, report.md and fit.json."""

    path: Path
    """A sweep's directory or URI, or a csv or Parquet table (columns: see analysis/runs.py)."""
    out: Annotated[str | None, tyro.conf.arg(metavar="DIR", help_behavior_hint="")] = None
    """Where to write: a directory or a URI. Default: the sweep's directory, or analysis/ in it where another
    report.md lies there already; for a table or a URI, ./report."""
    params: Params = "with_head"
    """Which parameters N counts."""
    flops: Flops = "exact"
    """Which FLOPs C counts."""
    lr_choice: LrChoice = "lowest"
    """lowest = the lowest loss over the LRs tried; interpolated = the vertex of a parabola through it."""
    bootstrap: int = 1000
    """Resamples behind the intervals; 0 for none."""
    seed: int = 0
    """Seed of the resamples."""
    targets: Annotated[tuple[float, ...], tyro.conf.arg(metavar="FLOPS ...", help_behavior_hint="")] = ()
    """FLOPs to advise on. Default: 1, 10 and 100 times the largest compute of the data."""

    def run(self) -> None:
        """Do it, and print what qualifies the answer, the law, the optimum a target, and where the report lies."""
        check_flags(self.bootstrap, self.seed)
        for target in self.targets:
            if not 0 < target < math.inf:
                raise ValueError(f"--targets {target:g} is no compute to spend: give positive FLOPs, e.g. 1e18")
        runs = load(self.path, params=self.params, flops=self.flops)
        out = self.out or place.choose(self.path)
        place.claim(out)
        result = study(
            runs,
            lr_choice=self.lr_choice,
            bootstrap=self.bootstrap,
            seed=self.seed,
            targets=self.targets,
        )
        written = report.write(result, out)
        largest = float(result.points.flops.max())
        for sentence in verdict(result):
            print(sentence)
        law = formula(result.fit) if result.fit.determined else "not known"
        print(f"law ({result.headline}, {result.fit.status}): {law}")
        for advice in result.advice:
            where = f"optimum at {compute(advice.flops)} FLOPs ({advice.flops / largest:.3g}x the largest run)"
            if not advice.identified:
                print(f"{where}: no advice; N* {span(advice.n_interval)}, loss {loss_words(advice)}")
                continue
            model = f"depth {advice.depth}, " if advice.depth is not None else ""
            lr = f", lr {lr_short(advice)}" if advice.lr else ""
            print(f"{where}: {model}N {number(advice.n)}, D {number(advice.d)}{lr}, loss {loss_words(advice)}")
        if not result.fit.determined:
            print_choices(result)
        for where, warn in report.all_warnings(result):
            print(f"warning ({where}): {warn}")
        found = commands(result.next_trials, runs)
        if found and not known_sweep(runs.source):
            print("next: these commands need the --preset, --data, --name and --set of these runs as well")
        for command in found:
            print(f"next: {command}")
        for trial in result.next_trials:
            # No model of a ladder, or no LR known: there is no command for it.
            if trial.depth is None or not trial.lrs:
                print(f"next: {trial_words(trial)}")
        print(f"report: {written.html}")


@dataclass(frozen=True, kw_only=True)
class Backtest:
    """Leave out the largest budget(s), fit the rest; print predicted against measured loss and the optimum's drift."""

    path: Path
    """A sweep's directory or URI, or a csv or Parquet table."""
    budgets: int = 1
    """How many of the largest budgets are held out."""
    params: Params = "with_head"
    """Which parameters N counts."""
    flops: Flops = "exact"
    """Which FLOPs C counts."""
    lr_choice: LrChoice = "lowest"
    """lowest = the lowest loss over the LRs tried; interpolated = the vertex of a parabola through it."""
    bootstrap: int = 1000
    """Resamples behind the intervals; 0 for none."""
    seed: int = 0
    """Seed of the resamples."""

    def run(self) -> None:
        """Do it, and print one line a held-out point."""
        check_flags(self.bootstrap, self.seed)
        if self.budgets < 1:
            raise ValueError(f"--budgets {self.budgets} holds nothing out: give 1 or more")
        points = load(self.path, params=self.params, flops=self.flops).best(self.lr_choice)
        result = backtest(points, budgets=self.budgets, bootstrap=self.bootstrap, seed=self.seed)
        print(f"law ({result.approach}, {result.fit.status}): {formula(result.fit)}")
        print(f"{'point':32} {'N':>8} {'D':>8} {'measured':>9} {'predicted':>9} {'error':>8}  90 % interval")
        for i, point in enumerate(result.ids):
            known = np.isfinite(result.high[i])
            interval = f"{result.low[i]:.4f} … {result.high[i]:.4f}" if known else "not known"
            print(
                f"{point:32} {number(result.n[i]):>8} {number(result.d[i]):>8} {result.measured[i]:9.4f} "
                f"{result.predicted[i]:9.4f} {100 * result.error[i]:+7.2f}%  {interval}"
            )
        print(
            f"N* at {compute(float(points.flops.max()))} FLOPs moves by a factor {result.drift:.3f} "
            "when all budgets join"
        )
        for warn in result.warnings:
            print(f"warning: {warn}")


def print_choices(result: Study) -> None:
    """The best LR of each size and token count, and which value of another setting won: known without a law."""
    names = size_labels(result.points)
    for row in optima(result.runs).sort_values(["n", "d"]).to_dict("records"):
        print(f"best LR of {names[row['n']]} at {number(row['d'])} tokens: {best_lr(row)}, loss {row['loss']:.4f}")
    for axis in axes(result.runs):
        total = sum(axis.wins.values())
        print(f"{axis.name}: {', '.join(f'{value} won {count} of {total}' for value, count in axis.wins.items())}")


def check_flags(bootstrap: int, seed: int) -> None:
    """ValueError for numbers that no resample can be drawn with."""
    if bootstrap < 0 or bootstrap == 1:
        raise ValueError(f"--bootstrap {bootstrap} gives no interval: 1000 or so, or 0 for a report without intervals")
    if seed < 0:
        raise ValueError(f"--seed {seed} is negative: give 0 or more")


def main() -> None:
    """Parse and run. A mistake of the user's ends with its message and exit code 1."""
    with reader_may_leave():
        command = tyro.extras.subcommand_cli_from_dict(
            {"report": Report, "backtest": Backtest}, prog="python -m analysis", description=__doc__
        )
    try:
        command.run()
    except ValueError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
