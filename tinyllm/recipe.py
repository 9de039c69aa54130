"""Which corpus a directory holds or is about to hold: its recipe, and the lock of whoever prepares it.

An unfinished corpus has `staging/` and no manifest. Everything in `staging/` belongs to the recipe that lies in it.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tinyllm import storage
from tinyllm.config import canonical_json
from tinyllm.manifest import MANIFEST_FILE, Manifest

STAGING_DIR = "staging"
_RECIPE_FILE = "recipe.json"
_log = logging.getLogger(__name__)

Recipe = dict[str, Any]


def digest(content: object) -> str:
    """blake2b-128 of the canonical JSON of something."""
    return hashlib.blake2b(canonical_json(content).encode(), digest_size=16).hexdigest()


@contextmanager
def exclusive(out: str) -> Iterator[None]:
    """Hold a directory against other preparations of it: whoever comes second waits.

    Object stores have no locks: there two preparations of one corpus write the same files with the same content.
    """
    with storage.locked(out, lambda: _log.info("waiting for another process that prepares %s", out)):
        yield


def claim(out: str, recipe: Recipe) -> Manifest | None:
    """Make sure that `out` holds this recipe or nothing; the manifest, when the corpus there is complete.

    Raises ValueError naming the differences when another corpus lies there, finished or not.
    """
    manifest = Manifest.load(out) if storage.exists(storage.join(out, MANIFEST_FILE)) else None
    begun = storage.join(out, STAGING_DIR, _RECIPE_FILE)
    if manifest:
        found = manifest.recipe
    elif storage.exists(begun):
        found = json.loads(storage.read_bytes(begun))
    else:
        found = recipe
    differing = [key for key in sorted(found.keys() | recipe.keys()) if found.get(key) != recipe.get(key)]
    if differing:
        changes = ", ".join(f"{key} is {found.get(key)!r}, not {recipe.get(key)!r}" for key in differing)
        state = "holds" if manifest else "holds the unfinished preparation of"
        raise ValueError(f"{out} {state} another corpus: {changes}; choose another --out, or remove it: rm -r {out}")
    if manifest:
        lost = {shard.file for shard in manifest.shards} - set(storage.list_names(out))
        if not lost:
            return manifest
        _log.warning("%s lacks %s: making it again", out, ", ".join(sorted(lost)))
    storage.write_bytes(begun, json.dumps(recipe).encode())
    return None
