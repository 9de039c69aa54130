"""A sweep whose storage is a local S3 server: the same results, nothing run twice, no credentials written."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import boto3
import pytest
from moto.server import ThreadedMotoServer
from pyarrow import fs

from sweeps import runner
from sweeps.grid import Grid
from sweeps.lock import only_here
from sweeps.options import SweepOptions
from sweeps.status import read_board
from tests.sweeps.test_together import start
from tinyllm import record, storage

Make = Callable[..., tuple[SweepOptions, Grid]]
SECRET = "no-secret-but-must-not-be-written"


@pytest.fixture(scope="module")
def bucket(monkeypatch_module: pytest.MonkeyPatch) -> Iterator[str]:
    """URI of an empty bucket."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    host, port = server.get_host_and_port()
    keys = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_DEFAULT_REGION": "us-east-1"}
    for name, value in keys.items():
        monkeypatch_module.setenv(name, value)
    boto3.client("s3", endpoint_url=f"http://{host}:{port}").create_bucket(Bucket="sweeps")
    yield f"s3://sweeps/here?scheme=http&endpoint_override={host}:{port}&region=us-east-1"
    server.stop()


@pytest.fixture(scope="module")
def monkeypatch_module() -> Iterator[pytest.MonkeyPatch]:
    with pytest.MonkeyPatch.context() as patch:
        yield patch


def test_a_second_process_is_refused_by_a_lease_that_is_renewed(bucket: str) -> None:
    root, said = storage.join(bucket, "held"), []
    with only_here(root, say=print, renew_s=1, lapse_s=10):
        with (
            pytest.raises(
                ValueError, match=r"runs the sweep in .*: watch it with `python -m sweeps.status held --storage"
            ),
            only_here(root, say=said.append, renew_s=1, lapse_s=10),
        ):
            raise AssertionError("two processes hold one sweep")
        assert "waiting up to 10 s" in said[0]
    assert storage.list_names(storage.join(root, "lease")) == []
    with only_here(root, say=said.append):
        assert len(said) == 1  # given back: nobody is waited for


def test_the_lease_of_a_killed_process_lapses(bucket: str) -> None:
    root = storage.join(bucket, "killed")
    storage.write_bytes(storage.join(root, "lease", "killed"), b"")
    said: list[str] = []
    with only_here(root, say=said.append, renew_s=1, lapse_s=2):
        assert "killed held this sweep a moment ago" in said[0]
        assert len(storage.list_names(storage.join(root, "lease"))) == 1


def test_two_sweeps_at_once_share_a_place_and_a_corpus_on_s3(bucket: str, cluster_address: str) -> None:
    place = storage.join(bucket, "shared")
    sweeps = {name: start(name, cluster_address, place) for name in ("one", "two")}
    for name, sweep in sweeps.items():
        text, _ = sweep.communicate(timeout=400)
        assert sweep.returncode == 0, (name, text)
    one, two = (record.read(storage.join(place, name)) for name in sweeps)
    assert [(r.run_id, r.steps, r.status) for r in one] == [(r.run_id, r.steps, "done") for r in two]
    assert len(one) == 4
    assert [(r.token_digest, r.val_loss) for r in one] == [(r.token_digest, r.val_loss) for r in two]
    assert not {r.attempt for r in one} & {r.attempt for r in two}
    for name in sweeps:
        assert read_board(storage.join(place, name))[1].startswith("ended: complete, 100% of the FLOPs")
        assert storage.list_names(storage.join(place, name, "lease")) == []


def test_a_sweep_on_s3(bucket: str, cluster_address: str, make_sweep: Make, capsys: pytest.CaptureFixture[str]) -> None:
    options, grid = make_sweep(lrs=(0.01, 0.02), storage=bucket, address=cluster_address, early_stop=False)
    assert runner.run(options, grid, "") == 0
    root = storage.join(bucket, "s")
    rows = record.read(root)
    assert {(r.lr, r.steps, r.status) for r in rows} == {(lr, s, "done") for lr in (0.01, 0.02) for s in (30, 60)}
    assert read_board(root)[0].share_done == 1
    capsys.readouterr()
    assert runner.run(options, grid, "") == 0
    assert "trials to run" not in capsys.readouterr().out
    assert {r.attempt for r in record.read(root)} == {r.attempt for r in rows}
    filesystem, inner = storage.open_fs(root)
    for info in filesystem.get_file_info(fs.FileSelector(inner, recursive=True)):
        if info.type == fs.FileType.File:
            with filesystem.open_input_file(info.path) as file:
                assert SECRET.encode() not in file.read(), info.path
