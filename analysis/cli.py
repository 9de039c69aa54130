"""python -m analysis report PATH | backtest PATH"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from analysis import report
from analysis.backtest import backtest
from analysis.runs import Flops, LrChoice, Params, load
from analysis.study import study
from analysis.wording import compute, formula, number, span, verdict


@dataclass(frozen=True, kw_only=True)
class Report:
    """Fit a sweep's losses and write report.html, report.md and fit.json."""

    path: Annotated[str, tyro.conf.Positional]
    """A sweep's directory or URI, or a csv or Parquet table (columns: see analysis/runs.py)."""
    out: str | None = None
    """Where to write: a directory or a URI. Default: the sweep's directory; for a table or a URI, ./report."""
    params: Params = "with_head"
    """Which parameters N counts."""
    flops: Flops = "exact"
    """Which FLOPs C counts."""
    lr_choice: LrChoice = "lowest"
    """lowest = the lowest loss over the LRs tried; interpolated = the vertex of a parabola through it."""
    bootstrap: int = 1000
    """Resamples behind the intervals."""
    seed: int = 0
    """Seed of the resamples."""
    targets: tuple[float, ...] = ()
    """FLOPs to advise on. Default: 1, 10 and 100 times the largest compute of the data."""

    def run(self) -> None:
        """Do it, and print what qualifies the answer, the law, the optimum a target, and where the report lies."""
        runs = load(self.path, params=self.params, flops=self.flops)
        out = self.out or (self.path if Path(self.path).is_dir() else "report")
        report.claim(out)
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
        print(f"law ({result.headline}, {result.fit.status}): {formula(result.fit)}")
        for advice in result.advice:
            flops, times = compute(advice.flops), f"{advice.flops / largest:.3g}"
            model = f"depth {advice.depth}, " if advice.depth is not None else ""
            lr = f", lr {number(advice.lr.value)}" if advice.lr else ""
            print(
                f"optimum at {flops} FLOPs ({times}x the largest run): {model}"
                f"N {number(advice.n)}, D {number(advice.d)}{lr}, "
                f"loss {advice.loss.value:.4f} ({span(advice.loss.interval, 5)})"
            )
        for where, warn in report.all_warnings(result):
            print(f"warning ({where}): {warn}")
        print(f"report: {written.html}")


@dataclass(frozen=True, kw_only=True)
class Backtest:
    """Leave out the largest budget(s), fit the rest; print predicted against measured loss and the optimum's drift."""

    path: Annotated[str, tyro.conf.Positional]
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
    """Resamples behind the intervals."""
    seed: int = 0
    """Seed of the resamples."""

    def run(self) -> None:
        """Do it, and print one line a held-out point."""
        points = load(self.path, params=self.params, flops=self.flops).best(self.lr_choice)
        result = backtest(points, budgets=self.budgets, bootstrap=self.bootstrap, seed=self.seed)
        print(f"law ({result.approach}, {result.fit.status}): {formula(result.fit)}")
        print(f"{'point':32} {'N':>8} {'D':>8} {'measured':>9} {'predicted':>9} {'error':>8}  90 % interval")
        for i, point in enumerate(result.ids):
            print(
                f"{point:32} {number(result.n[i]):>8} {number(result.d[i]):>8} {result.measured[i]:9.4f} "
                f"{result.predicted[i]:9.4f} {100 * result.error[i]:+7.2f}%  {result.low[i]:.4f} … {result.high[i]:.4f}"
            )
        print(
            f"N* at {compute(float(points.flops.max()))} FLOPs moves by a factor {result.drift:.3f} "
            "when all budgets join"
        )
        for warn in result.warnings:
            print(f"warning: {warn}")


def main() -> None:
    """Parse and run. A mistake of the user's ends with its message and exit code 1."""
    command = tyro.extras.subcommand_cli_from_dict({"report": Report, "backtest": Backtest}, description=__doc__)
    try:
        command.run()
    except ValueError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
