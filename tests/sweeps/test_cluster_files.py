"""The cluster files against Ray's own rules, and what the sweep needs of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from ray.autoscaler._private.util import prepare_config, validate_config

from sweeps.resources import TRIAL_SLOT

ROOT = Path(__file__).parents[2]


def prepared(name: str) -> dict[str, Any]:
    """As `ray up` would complete it. (The raw schema refuses valid files of local machines.)"""
    return prepare_config(yaml.safe_load((ROOT / name).read_text()))


@pytest.mark.parametrize("name", ["cluster.yaml", "cluster-onprem.yaml"])
def test_ray_accepts_the_file(name: str) -> None:
    validate_config(prepared(name))


@pytest.mark.parametrize("name", ["cluster.yaml", "cluster-onprem.yaml"])
def test_every_node_installs_this_package_and_starts_ray(name: str) -> None:
    config = prepared(name)
    setup = " ".join(config["setup_commands"] + config["head_setup_commands"])
    assert "pip install" in setup
    assert "tinyllm[train,demo]" in setup
    assert "ray start --head" in " ".join(config["head_start_ray_commands"])
    assert "ray start --address=$RAY_HEAD_IP:6379" in " ".join(config["worker_start_ray_commands"])


def test_the_cloud_has_spot_gpus_that_can_go_to_zero_and_an_on_demand_head_that_trains_nothing() -> None:
    types = prepared("cluster.yaml")["available_node_types"]
    head, spot = types["head"], types["gpu_spot"]
    assert head["resources"]["CPU"] == 0
    assert head["resources"][TRIAL_SLOT] > 0
    assert "InstanceMarketOptions" not in head["node_config"]
    assert spot["node_config"]["InstanceMarketOptions"] == {"MarketType": "spot"}
    assert spot["min_workers"] == 0
    assert spot["resources"]["GPU"] >= 1
