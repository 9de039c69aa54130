"""A trained model as plain files that load without this package."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from safetensors.torch import save as save_tensors

from tinyllm import standalone, storage
from tinyllm.checkpoint import load_weights
from tinyllm.config import ModelConfig, TrainConfig
from tinyllm.model import ROTARY_BASE


def export_model(checkpoint: str, out: str) -> None:
    """Write model.safetensors, config.json, model.py (a loader of its own) and, for text, tokenizer.json to `out`.

    Raises ValueError when `checkpoint` is no valid checkpoint or weights directory, and when `out` holds an export of
    other weights.
    """
    weights, config_json, tokenizer_json = load_weights(storage.absolute(checkpoint))
    config = TrainConfig.from_json(config_json)
    files = {
        "model.safetensors": save_tensors(weights),
        "config.json": json.dumps({**exported_config(config.model), "run_id": config.run_id}, indent=2).encode(),
        "model.py": Path(standalone.__file__).read_bytes(),
    }
    if tokenizer_json is not None:
        files["tokenizer.json"] = tokenizer_json.encode()
    there = storage.join(storage.absolute(out), "model.safetensors")
    if storage.exists(there) and storage.read_bytes(there) != files["model.safetensors"]:
        raise ValueError(f"{there} holds other weights than {checkpoint}: give another --out, or delete it first")
    for name, data in files.items():
        storage.write_bytes(storage.join(storage.absolute(out), name), data)


def exported_config(model: ModelConfig) -> dict[str, Any]:
    """What the exported model.py needs to know of a model."""
    return {
        "depth": model.depth,
        "width": model.width,
        "n_heads": model.n_heads,
        "n_kv_heads": model.kv_heads,
        "head_dim": model.head_dim,
        "vocab_size": model.vocab,
        "seq_len": model.context,
        "windows": list(model.windows),
        "logit_softcap": model.logit_softcap,
        "rotary_base": ROTARY_BASE,
    }
