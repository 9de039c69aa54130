"""Sweeps over depth, learning rate and token budget on a Ray cluster. See `python -m sweeps.depth_grid --help`."""

import os

# Read when Ray is imported.
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_AIR_NEW_OUTPUT", "0")  # the sweep shows its own table
# What a process died of the sweep says in a line (`sweeps.reasons`); Ray has a page about it.
os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", "^A worker died or was killed while executing a task")
