"""Joining a Ray cluster that runs."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

HEAD = """
import ray, sys
print(ray.init(address="local", num_cpus=1, include_dashboard=False, _temp_dir=sys.argv[1]).address_info["gcs_address"])
sys.stdout.flush()
sys.stdin.read()
"""
JOIN = """
import sys
from sweeps.cluster import joined
with joined(sys.argv[1]) as line:
    print(line)
"""


def test_a_cluster_that_asks_for_a_token_is_joined_by_who_has_the_token(tmp_path: Path) -> None:
    """As Ray asks for one wherever `ray.init` has left one in the home directory: after `make demo`, say."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_AUTH")}
    environment |= {"HOME": str(tmp_path), "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
    with (
        tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as directory,
        subprocess.Popen(
            [sys.executable, "-c", HEAD, directory],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as head,
    ):
        assert head.stdout is not None
        address = head.stdout.readline().strip()
        assert (tmp_path / ".ray" / "auth_token").exists()
        join = [sys.executable, "-c", JOIN, address]
        answer = subprocess.run(join, env=environment, capture_output=True, text=True, timeout=120)
        stranger = environment | {"HOME": str(tmp_path / "nobody")}
        refused = subprocess.run(join, env=stranger, capture_output=True, text=True, timeout=120)
        head.communicate("")
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout.startswith(f"Joined the Ray cluster at {address}: 1 node(s), 1 CPUs")
    assert refused.returncode != 0
    assert "no Ray cluster answers" in refused.stderr
