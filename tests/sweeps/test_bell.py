"""The bell: heard by who listens, also after its process was killed."""

from __future__ import annotations

import ray

from sweeps import bell, cluster


def test_a_bell_is_heard_and_outlives_its_process(cluster_address: str) -> None:
    with cluster.joined(cluster_address):
        hung = bell.hang_up()
        heard = bell.listen(hung)
        ray.kill(hung, no_restart=False)
        bell.ring(hung)
        assert heard.wait(timeout=30)
