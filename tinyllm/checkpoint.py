"""Checkpoints: files and a manifest of their hashes, written last. Without a valid manifest there is no checkpoint.

Layout, under a run's directory, the same for one process and for a worker group:

    checkpoints/trunk-00000050/{model.safetensors, optimizer.pt, state.json, config.json, manifest.json}
    checkpoints/fork-00000078/...                 the trunk where a budget's branch leaves it; kept
    checkpoints/branch-198656-00000090/...        refers to its fork
    weights/198656/{model.safetensors, config.json, manifest.json}      the decayed model of a budget
    tokenizer.json, best.json (which weights have the lowest validation loss)
"""

from __future__ import annotations

import hashlib
import io
import json
import logging
import os
import uuid
from collections.abc import Set
from dataclasses import dataclass
from typing import Any

import torch
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors

from tinyllm import ranks, storage
from tinyllm.config import TRAINING_VERSION, TrainConfig, canonical_json, differences
from tinyllm.plan import Plan
from tinyllm.state import TrainState

FORMAT = 1  # raised when files of before cannot be read any more
RUNS_DIR, CHECKPOINTS_DIR, WEIGHTS_DIR = "runs", "checkpoints", "weights"
TEMPORARY = ".tmp-"  # begins the name of a checkpoint that is being written
SHOWN_MODELS = 6
MANIFEST, TOKENIZER, BEST = "manifest.json", "tokenizer.json", "best.json"

log = logging.getLogger(__name__)


class DamagedCheckpointError(ValueError):
    """A file of a checkpoint is missing or is not what its manifest says."""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A checkpoint that exists: what its manifest says."""

    path: str
    segment: str
    budget: int | None
    """Planned tokens of the branch; None on the trunk."""
    step: int
    is_fork: bool
    """Whether a branch left the trunk here: such a checkpoint is kept, for branches that resume and budgets to come."""
    fork: str | None
    """Name of the fork a branch returns to."""


def save(root: str, state: TrainState, *, at_fork: bool = False) -> str:
    """Save the state under a run's directory; returns the checkpoint's path. Every rank must call it, the first writes.

    A checkpoint that is there is not written again: a position has one state.
    """
    shared = state.shared_state_dict()
    assert not (at_fork and state.budget), "a fork is on the trunk"
    fork = storage.join(root, CHECKPOINTS_DIR, _name("fork", state.step))
    # On the trunk a fork at this step holds the same: a trial that is paused where it forked has nothing new to save.
    if at_fork or (state.budget is None and _current(_manifest(fork))):
        path = fork
    else:
        path = storage.join(root, CHECKPOINTS_DIR, _name(state.segment, state.step))
    if ranks.rank() == 0 and not _current(_manifest(path)):
        about = {
            "segment": state.segment,
            "budget": state.budget.tokens if state.budget else None,
            "step": state.step,
            "is_fork": at_fork,
            "fork": _name("fork", state.budget.fork_step) if state.budget else None,
        }
        _write(path, _serialise(shared, state.config.to_json()), about)
    ranks.barrier()
    return path


def save_weights(root: str, state: TrainState, tokens: int, val_loss: float) -> str:
    """Save the weights alone as the model of a budget; returns the path. The first rank writes.

    best.json names the one of the lowest validation loss: undecayed weights of the trunk are no candidates.
    """
    path = storage.join(root, WEIGHTS_DIR, str(tokens))
    if ranks.rank() != 0:
        return path
    if not _current(_manifest(path)):
        files = {
            "model.safetensors": save_tensors(_contiguous(state.model.state_dict())),
            "config.json": state.config.to_json().encode(),
        }
        _write(path, files, {"tokens": tokens, "step": state.step, "val_loss": val_loss})
    best = storage.join(root, BEST)
    if not storage.exists(best) or json.loads(storage.read_bytes(best))["val_loss"] > val_loss:
        about = {"weights": f"{WEIGHTS_DIR}/{tokens}", "val_loss": val_loss}
        storage.write_bytes(best, canonical_json(about).encode())
    return path


def entries(root: str) -> list[Entry]:
    """The checkpoints of a run that have a manifest, oldest step first."""
    directory = storage.join(root, CHECKPOINTS_DIR)
    names = [name for name in storage.list_names(directory) if not name.startswith(TEMPORARY)]
    found = [_entry(storage.join(directory, name)) for name in names]
    return sorted((e for e in found if e is not None), key=lambda e: (e.step, e.segment))


def resume(root: str, state: TrainState, plan: Plan, done: Set[int], *, from_step: int | None = None) -> Entry | None:
    """Load the checkpoint that leaves least to do for the budgets not done; None when there is none.

    A damaged one falls back to the one before, with a warning. `from_step`: only checkpoints up to that step; raises
    ValueError where there is none, or nothing left to do.
    """
    for entry in reversed(resumable(root, plan, done, from_step=from_step)):
        try:
            fork = None
            if entry.fork is not None:
                fork = _load(storage.join(root, CHECKPOINTS_DIR, entry.fork), state.config)
            loaded = _load(entry.path, state.config)
        except DamagedCheckpointError as error:
            log.warning("%s; falling back to the checkpoint before it", error)
            if ranks.rank() == 0:
                storage.delete_dir(entry.path)  # else it would stand where a whole one is to be saved again
            continue
        state.load_state_dict(state.own_share(loaded))
        state.fork = state.own_share(fork) if fork is not None else None
        return entry
    return None


def resumable(root: str, plan: Plan, done: Set[int], *, from_step: int | None = None) -> list[Entry]:
    """The checkpoints that lead to the first budget not done, oldest step first; see `resume`."""
    pending = [b for b in plan.budgets if b.tokens not in done]
    if not pending:
        if from_step is not None:
            raise ValueError(
                f"--resume-from {from_step}: every budget of the run is on record, nothing is left to train. "
                "Leave it out, or train anew in another directory"
            )
        return []
    first = pending[0]
    found = [e for e in entries(root) if e.budget == first.tokens or (e.budget is None and e.step <= first.fork_step)]
    usable = [e for e in found if from_step is None or e.step <= from_step]
    if from_step is not None and not usable:
        there = f"the first one is of step {found[0].step}" if found else "there is none"
        raise ValueError(f"--resume-from {from_step}: no checkpoint up to that step, {there}; leave it out to go on")
    return usable


def load_weights(path: str) -> tuple[dict[str, torch.Tensor], str, str | None]:
    """Weights, config (JSON) and tokenizer (JSON, None where ids are no text) of a checkpoint or weights directory.

    A run's directory stands for its best weights. Raises DamagedCheckpointError (a ValueError).
    """
    best = storage.join(path, BEST)
    if storage.exists(best):
        path = storage.join(path, json.loads(storage.read_bytes(best))["weights"])
    elif _manifest(path) is None and (inside := _models_in(path)):
        more = f" and {len(inside) - SHOWN_MODELS} more" if len(inside) > SHOWN_MODELS else ""
        raise DamagedCheckpointError(f"{path} is no model: it holds {', '.join(inside[:SHOWN_MODELS])}{more}; take one")
    files = _read_files(path, ("model.safetensors", "config.json"))
    tokenizer = storage.join(storage.parent(storage.parent(path)), TOKENIZER)
    return (
        load_tensors(files["model.safetensors"]),
        files["config.json"].decode(),
        storage.read_bytes(tokenizer).decode() if storage.exists(tokenizer) else None,
    )


def _models_in(path: str) -> list[str]:
    """What `load_weights` would take below a directory of runs, or of one run."""
    runs = [storage.join(path, RUNS_DIR, name) for name in storage.list_names(storage.join(path, RUNS_DIR))]
    found = []
    for run in runs or [path]:
        for kind in (WEIGHTS_DIR, CHECKPOINTS_DIR):
            names = storage.list_names(storage.join(run, kind))
            if found_here := [storage.join(run, kind, n) for n in names if _manifest(storage.join(run, kind, n))]:
                found += found_here
                break
    return found


def save_tokenizer(root: str, tokenizer_json: str) -> None:
    """Keep a run's tokenizer beside its checkpoints."""
    path = storage.join(root, TOKENIZER)
    if ranks.rank() == 0 and not storage.exists(path):
        storage.write_bytes(path, tokenizer_json.encode())


def prune(root: str, keep: int, segment: str) -> None:
    """Delete all but the `keep` newest checkpoints and those at forks. The first rank deletes.

    Newest are those of `segment`, where the run stands: a branch that has ended, though it took more steps, is older
    than the trunk that goes on. What processes killed while they saved have left goes as well.
    """
    if ranks.rank() != 0:
        return
    found = entries(root)
    forks = {e.step for e in found if e.is_fork}

    def age(entry: Entry) -> tuple[bool, bool, int]:
        same_as_fork = entry.budget is None and entry.step in forks
        return not same_as_fork, entry.segment == segment, entry.step

    for entry in sorted((e for e in found if not e.is_fork), key=age)[:-keep]:
        storage.delete_dir(entry.path)
    directory = storage.join(root, CHECKPOINTS_DIR)
    for name in storage.list_names(directory):
        if name.startswith(TEMPORARY):
            storage.delete_dir(storage.join(directory, name))


def drop_forks(root: str, *, before: int) -> None:
    """Delete the states at forks before a step, whose budgets are done. The first rank deletes."""
    if ranks.rank() == 0:
        for entry in entries(root):
            if entry.is_fork and entry.step < before:
                storage.delete_dir(entry.path)


def _name(segment: str, step: int) -> str:
    return f"{segment}-{step:08d}"


def _serialise(shared: dict[str, Any], config: str) -> dict[str, bytes]:
    buffer = io.BytesIO()
    torch.save({k: shared[k] for k in ("optimizers", "rng", "loss_ema")}, buffer)
    state = {"position": {**shared["position"]}, "totals": shared["totals"], "told": shared["told"]}
    return {
        "model.safetensors": save_tensors(_contiguous(shared["model"])),
        "optimizer.pt": buffer.getvalue(),
        "state.json": json.dumps(state).encode(),
        "config.json": config.encode(),
    }


def _contiguous(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: t.detach().cpu().contiguous() for name, t in tensors.items()}


def _write(path: str, files: dict[str, bytes], about: dict[str, Any]) -> None:
    manifest = {
        **about,
        "format": FORMAT,
        "training_version": TRAINING_VERSION,
        "files": {name: {"sha256": _sha256(data), "bytes": len(data)} for name, data in files.items()},
    }
    local = storage.is_local(path)
    # Local files appear at once, by a rename of their directory. Object stores have none: there the manifest, put last,
    # makes the checkpoint exist.
    target = storage.join(storage.parent(path), f"{TEMPORARY}{uuid.uuid4().hex}") if local else path
    if not local:
        storage.delete_dir(path)
    try:
        for name, data in {**files, MANIFEST: canonical_json(manifest).encode()}.items():
            storage.write_bytes(storage.join(target, name), data)
        if local:
            storage.delete_dir(path)  # whatever lies there has no manifest of this version, so it is no checkpoint
            os.rename(storage.absolute(target), storage.absolute(path))
    finally:
        if local:
            storage.delete_dir(target)


def _manifest(path: str) -> dict[str, Any] | None:
    try:
        return json.loads(storage.read_bytes(storage.join(path, MANIFEST)))
    except (FileNotFoundError, json.JSONDecodeError):
        return None


def _current(manifest: dict[str, Any] | None) -> bool:
    """Whether it is the manifest of a checkpoint that this version wrote, or could have."""
    return manifest is not None and (manifest.get("format"), manifest.get("training_version")) == (
        FORMAT,
        TRAINING_VERSION,
    )


def _entry(path: str) -> Entry | None:
    manifest = _manifest(path)
    if manifest is None or not _current(manifest):
        return None
    return Entry(
        path=path,
        segment=manifest["segment"],
        budget=manifest["budget"],
        step=manifest["step"],
        is_fork=manifest["is_fork"],
        fork=manifest["fork"],
    )


def _read_files(path: str, names: tuple[str, ...]) -> dict[str, bytes]:
    manifest = _manifest(path)
    if manifest is None:
        raise DamagedCheckpointError(f"{path} is no checkpoint: it has no readable {MANIFEST}")
    if not _current(manifest):
        raise DamagedCheckpointError(f"checkpoint {path} was written by another version of tinyllm")
    files = {}
    for name in names:
        try:
            files[name] = storage.read_bytes(storage.join(path, name))
        except FileNotFoundError as error:
            raise DamagedCheckpointError(f"checkpoint {path} lacks its file {name}") from error
        if _sha256(files[name]) != manifest["files"][name]["sha256"]:
            raise DamagedCheckpointError(f"checkpoint {path} is damaged: {name} is not what its manifest says")
    return files


def _load(path: str, config: TrainConfig) -> dict[str, Any]:
    files = _read_files(path, ("model.safetensors", "optimizer.pt", "state.json", "config.json"))
    if found := differences(TrainConfig.from_json(files["config.json"].decode()), config):
        raise ValueError(
            f"checkpoint {path} belongs to another run: {'; '.join(found)}. "
            "Restore these settings to go on with it, or choose another output directory"
        )
    state = torch.load(io.BytesIO(files["optimizer.pt"]), map_location="cpu", weights_only=True)
    state.update(json.loads(files["state.json"]))
    state["model"] = load_tensors(files["model.safetensors"])
    return state


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
