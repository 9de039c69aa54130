"""Two sweeps at once on one cluster, into one place, with one corpus that neither finds prepared."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tinyllm import record

SETTINGS = ["model.vocab_size=64", "model.seq_len=32", "model.aspect_ratio=16", "model.target_head_dim=8"]
SETTINGS += ["optim.total_batch_size=128", "optim.warmup_tokens=512", "data.eval_tokens=1024"]


def start(name: str, address: str, storage: Path | str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "sweeps.depth_grid", "--address", address, "--preset", "base", "--depths", "1"]
    command += ["--lrs", "0.01", "0.02", "--budgets", "30", "60", "--unit", "steps", "--no-early-stop"]
    command += ["--data", "zipf:V=64,s=1.5", "--name", name, "--storage", str(storage), "--set", *SETTINGS]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def test_two_sweeps_share_a_place_and_a_corpus(cluster_address: str, tmp_path: Path) -> None:
    sweeps = {name: start(name, cluster_address, tmp_path) for name in ("one", "two")}
    for name, sweep in sweeps.items():
        text, _ = sweep.communicate(timeout=400)
        assert sweep.returncode == 0, text
        assert f"Records: {tmp_path}/{name}/records" in text
    one, two = (record.read(str(tmp_path / name)) for name in sweeps)
    assert [(r.run_id, r.steps, r.status) for r in one] == [(r.run_id, r.steps, "done") for r in two]
    assert len(one) == 4
    # Each trained its own, from the same tokens.
    assert [(r.token_digest, r.val_loss) for r in one] == [(r.token_digest, r.val_loss) for r in two]
    assert not {r.attempt for r in one} & {r.attempt for r in two}
    assert len([path for path in (tmp_path / "corpora").iterdir() if path.is_dir()]) == 1
