"""The cluster files against Ray's own rules, and what the sweep needs of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import boto3
import pytest
import yaml
from moto import mock_aws
from ray.autoscaler._private.aws import config as aws
from ray.autoscaler._private.aws.node_provider import AWSNodeProvider
from ray.autoscaler._private.util import prepare_config, validate_config
from ray.autoscaler.tags import TAG_RAY_LAUNCH_CONFIG, TAG_RAY_NODE_NAME, TAG_RAY_USER_NODE_TYPE

from sweeps.resources import TRIAL_SLOT

ROOT = Path(__file__).parents[2]


def prepared(name: str) -> dict[str, Any]:
    """As `ray up` would complete it. (The raw schema refuses valid files of local machines.)"""
    return prepare_config(yaml.safe_load((ROOT / name).read_text()))


@pytest.mark.parametrize("name", ["cluster.yaml", "cluster-onprem.yaml"])
def test_ray_accepts_the_file(name: str) -> None:
    validate_config(prepared(name))


def test_what_is_proven_on_premises_holds_on_the_cloud() -> None:
    """`make cluster` brings the one file up; the other differs in how the head is told its resources, and in boto3."""
    local, cloud = prepared("cluster-onprem.yaml"), prepared("cluster.yaml")
    same = ["file_mounts", "rsync_exclude", "rsync_filter", "worker_setup_commands", "worker_start_ray_commands"]
    assert {name: cloud[name] for name in same} == {name: local[name] for name in same}
    assert cloud["head_setup_commands"][:-1] == local["head_setup_commands"]
    assert "boto3" in cloud["head_setup_commands"][-1]
    resources = " --resources='{\"trial_slot\":8}'"
    assert [f"{cloud['head_start_ray_commands'][1]}{resources}"] == local["head_start_ray_commands"][1:]


def test_the_cloud_has_spot_gpus_that_can_go_to_zero_and_an_on_demand_head_that_trains_nothing() -> None:
    types = prepared("cluster.yaml")["available_node_types"]
    head, spot = types["head"], types["gpu_spot"]
    assert head["resources"]["CPU"] == 0
    assert head["resources"][TRIAL_SLOT] > 0
    assert "InstanceMarketOptions" not in head["node_config"]
    assert spot["node_config"]["InstanceMarketOptions"] == {"MarketType": "spot"}
    assert spot["min_workers"] == 0
    assert spot["resources"]["GPU"] >= 1


def test_ray_launches_an_on_demand_head_and_spot_workers_that_may_use_the_bucket(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a simulated AWS."""
    for name, value in {"ACCESS_KEY_ID": "x", "SECRET_ACCESS_KEY": "x", "DEFAULT_REGION": "us-east-1"}.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    monkeypatch.setenv("HOME", str(tmp_path))  # gets the private key
    config = prepared("cluster.yaml")
    with mock_aws():
        iam, role = boto3.client("iam"), "ray-autoscaler-v1"  # as Ray makes it at the first `ray up`
        iam.create_role(RoleName=role, AssumeRolePolicyDocument="{}")
        iam.create_instance_profile(InstanceProfileName=role)
        iam.add_role_to_instance_profile(InstanceProfileName=role, RoleName=role)
        image = boto3.client("ec2").describe_images()["Images"][0]["ImageId"]
        for node in config["available_node_types"].values():
            node["node_config"]["ImageId"] = image
        config = aws.bootstrap_aws(AWSNodeProvider.fillout_available_node_types_resources(config))
        provider = AWSNodeProvider(config["provider"], config["cluster_name"])
        for name, node in config["available_node_types"].items():
            own = config["head_node"] if name == config["head_node_type"] else {}
            tags = {TAG_RAY_USER_NODE_TYPE: name, TAG_RAY_LAUNCH_CONFIG: "", TAG_RAY_NODE_NAME: name}
            provider.create_node(node["node_config"] | own, tags, 1)
        head, spot = [r["Instances"][0] for r in boto3.client("ec2").describe_instances()["Reservations"]]
    assert (head["InstanceType"], head.get("InstanceLifecycle")) == ("m7i.xlarge", None)
    assert (spot["InstanceType"], spot.get("InstanceLifecycle")) == ("g6.2xlarge", "spot")
    assert spot["IamInstanceProfile"]["Arn"] == head["IamInstanceProfile"]["Arn"]
