"""What every test shares: hypothesis examples that are the same in each run, and a Ray of one's own."""

import os
import tempfile

import pytest
from hypothesis import settings

# A busy machine fails no test.
settings.register_profile("fixed", derandomize=True, deadline=None, database=None)
settings.load_profile("fixed")


@pytest.fixture(scope="module")
def local_ray():
    """A local Ray of two CPUs for one module, in a directory of its own (socket paths must be short)."""
    import ray

    with (
        tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as directory,
        ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False, _temp_dir=directory),
    ):
        yield


@pytest.fixture(scope="session")
def address_directory() -> None:
    """What `ray start` makes and `ray.cluster_utils.Cluster` expects: where a cluster's address is written."""
    from ray._private.utils import get_ray_address_file

    os.makedirs(os.path.dirname(get_ray_address_file(None)), exist_ok=True)
