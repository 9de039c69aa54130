"""How many trials fit, by hand-made counts."""

from __future__ import annotations

import pytest

from sweeps.options import SweepOptions
from sweeps.resources import TRIAL_SLOT, Resources, all_fit

CLUSTER = [{"CPU": 8.0, "GPU": 2.0, TRIAL_SLOT: 4.0}] * 2


@pytest.mark.parametrize(
    ("resources", "slots", "bundle", "devices"),
    [
        (Resources(), 16, {"CPU": 1}, 1),
        (Resources(gpus=1), 4, {"CPU": 1, "GPU": 1}, 1),
        (Resources(cpus=4, gpus=0.5), 4, {"CPU": 4, "GPU": 0.5}, 0.5),
        (Resources(workers=2, gpus=1), 2, {TRIAL_SLOT: 1}, 2),
        (Resources(workers=8, gpus=1), 0, {TRIAL_SLOT: 1}, 8),
        (Resources(workers=2, cpus=0.5), 8, {TRIAL_SLOT: 1}, 2),
        # 16 CPUs in all, and no node with more than 8.
        (Resources(cpus=6), 2, {"CPU": 6}, 1),
        (Resources(cpus=16), 0, {"CPU": 16}, 1),
        (Resources(workers=3, cpus=3), 1, {TRIAL_SLOT: 1}, 3),
    ],
)
def test_slots_and_what_the_actor_asks_for(
    resources: Resources, slots: int, bundle: dict[str, float], devices: float
) -> None:
    assert resources.slots(CLUSTER) == slots
    assert resources.bundle == bundle
    assert resources.devices == devices


def test_trials_of_several_kinds_share_a_cluster() -> None:
    small, large = Resources(gpus=1), Resources(workers=2, gpus=1)
    assert all_fit([small, small, large], CLUSTER)
    assert not all_fit([small, large, large], CLUSTER)
    assert not all_fit([large], [{"CPU": 16.0, "GPU": 4.0}])


def test_workers_by_depth_take_the_entry_at_or_below() -> None:
    options = SweepOptions(workers=("12=2", "24=8"), gpus_per_worker=1)
    assert [options.resources(d, on_gpu=True).workers for d in (4, 12, 20, 24, 48)] == [1, 2, 2, 8, 8]
