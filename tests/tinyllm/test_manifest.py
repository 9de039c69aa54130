import json
import subprocess
import sys
from dataclasses import replace

import pytest

from tinyllm.manifest import Manifest, Shard

MANIFEST = Manifest(
    name="sample",
    kind="text",
    source="sample.txt",
    licence="none",
    digest="00",
    source_digest="11",
    tokenizer_digest="22",
    vocab_size=300,
    seq_len=32,
    seed=0,
    train_rows=100,
    val_rows=10,
    n_documents=5,
    n_duplicates=1,
    cropped_share=0.01,
    bytes_per_token=2.5,
    entropy=None,
    shards=(Shard(file="train-00000.parquet", split="train", rows=100, row_group_rows=64, digest="33"),),
    recipe={"seed": 0},
)


def test_it_comes_back(tmp_path):
    (tmp_path / "manifest.json").write_text(MANIFEST.to_json())
    assert Manifest.load(str(tmp_path)) == MANIFEST
    assert MANIFEST.train_tokens == 3200
    assert json.loads(MANIFEST.to_json())["val_tokens"] == 320


@pytest.mark.parametrize("directory", ["empty", "nowhere", "file"])
def test_where_there_is_none_the_command_is_given(tmp_path, directory):
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("text")
    path = f"{tmp_path}/{directory}"
    with pytest.raises(ValueError, match=rf"no corpus at '{path}'.*`tinyllm prepare SOURCE --out {path}`"):
        Manifest.load(path)


@pytest.mark.parametrize(
    "content", ["", "[]", "{}", MANIFEST.to_json()[:-20], MANIFEST.to_json().replace("seed", "sed")]
)
def test_a_damaged_one_is_named(tmp_path, content):
    (tmp_path / "manifest.json").write_text(content)
    with pytest.raises(ValueError, match=r"manifest.json is no valid manifest.*delete"):
        Manifest.load(str(tmp_path))


def test_another_schema_version_is_refused(tmp_path):
    (tmp_path / "manifest.json").write_text(replace(MANIFEST, schema_version=99).to_json())
    with pytest.raises(ValueError, match="schema version 99, this program reads 1; delete"):
        Manifest.load(str(tmp_path))


def test_it_is_light():
    code = "import sys, tinyllm.manifest; print('torch' in sys.modules, 'ray' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert run.stdout == "False False\n"
