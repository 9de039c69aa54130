"""The placement groups of multi-worker trials, which Ray keeps when their controller is killed: found by name, removed.

Ray Train's own cleaner needs the dashboard, and knows of a group only once all of its workers run.
"""

from __future__ import annotations

import uuid

import ray
from ray.util.placement_group import get_placement_group, placement_group_table, remove_placement_group


def new_name(run_id: str) -> str:
    """For one more placement group of a trial."""
    return f"{_prefix(run_id)}{uuid.uuid4().hex}"


def remove_left(run_id: str) -> None:
    """Remove those that a trial of this sweep has left; their workers, if any, end with them."""
    for group in placement_group_table().values():
        if group["name"].startswith(_prefix(run_id)) and group["state"] != "REMOVED":
            remove_placement_group(get_placement_group(group["name"]))


def _prefix(run_id: str) -> str:
    # Another sweep on the cluster may have a trial of that name as well.
    return f"{ray.get_runtime_context().get_job_id()}-{run_id}-"
