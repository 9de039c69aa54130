"""What the entry points share: parse, run, and the exit code."""

from __future__ import annotations

import inspect
import shlex
import sys
from collections.abc import Sequence

import tyro

from sweeps.options import SweepOptions
from tinyllm.pipe import reader_may_leave


def main(kind: type[SweepOptions], argv: Sequence[str] | None = None) -> None:
    """Parse the flags of an entry point and do the sweep; ends the process with its exit code (2 = a wrong flag)."""
    argv = sys.argv[1:] if argv is None else list(argv)
    spec = sys.modules[kind.__module__].__spec__
    program = f"python -m {spec.name if spec is not None else kind.__module__}"
    with reader_may_leave():
        options = tyro.cli(
            kind, args=argv, prog=program, description=inspect.getdoc(kind), config=(tyro.conf.DisallowNone,)
        )
    command = f"{program} {shlex.join(argv)}"
    try:
        grid = options.grid()
        from sweeps.runner import run  # Ray and torch: seconds that --help need not wait for

        code = run(options, grid, command)
    except KeyboardInterrupt:
        print("interrupted; the same command goes on", file=sys.stderr)
        code = 130
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        code = 2
    sys.exit(code)
