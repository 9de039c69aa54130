"""Where a report may be written: never over a file that the analysis did not write."""

from __future__ import annotations

from pathlib import Path

from tinyllm import storage

MARKS = {"report.html": b"<title>Scaling report:", "report.md": b"# Scaling report:", "fit.json": b'"headline":'}
"""The files of a report, and what each of them holds when it is one."""


def choose(source: str) -> str:
    """Where the report on `source` goes: the sweep's directory; of a table or URI ./report.

    A directory with another report.md (`tinyllm train` leaves one of its run) gets it in its subdirectory analysis.
    """
    if not Path(source).is_dir():
        return "report"
    return storage.join(source, "analysis") if foreign(source) else source


def foreign(directory: str) -> list[str]:
    """Names of a report's files that are in `directory` (a path or URI) and are not the analysis's own."""
    paths = {name: storage.join(directory, name) for name in MARKS}
    return [
        name
        for name, path in paths.items()
        if storage.exists(path) and MARKS[name] not in storage.read_bytes(path)[:65_536]
    ]


def claim(directory: str) -> None:
    """Make `directory` (a path or URI), so that one that cannot be written is refused before any work is spent on it.

    ValueError with the remedy; also where a file of the report's names is there that the analysis did not write.
    """
    filesystem, inner = storage.open_fs(directory)
    try:
        filesystem.create_dir(inner, recursive=True)
        refuse_foreign(directory)
    except OSError as error:
        raise unwritable(directory, error) from error


def refuse_foreign(directory: str) -> None:
    """ValueError where writing a report would overwrite another file."""
    if names := foreign(directory):
        raise ValueError(
            f"{directory} holds {', '.join(names)}, not written by the analysis: give another --out, so that nothing "
            "is lost"
        )


def unwritable(directory: str, error: OSError) -> ValueError:
    """What to raise for a place that cannot be written."""
    return ValueError(f"{directory} cannot be written ({error}): give another --out, a directory or s3://bucket/dir")
