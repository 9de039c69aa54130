"""What every test shares: hypothesis examples that are the same in each run, and a Ray of one's own."""

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
