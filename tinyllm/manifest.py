"""What a prepared corpus is: counts, digests, and which files hold it. Loads neither torch nor Ray."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any, Literal

from tinyllm import storage

SCHEMA_VERSION = 1
MANIFEST_FILE = "manifest.json"
TOKENIZER_FILE = "tokenizer.json"


@dataclass(frozen=True, kw_only=True)
class Shard:
    """One Parquet file of token rows."""

    file: str
    split: Literal["train", "val"]
    rows: int
    row_group_rows: int
    """Rows in every row group but the last, which may hold fewer."""
    digest: str
    """blake2b-128 over the digests of the row groups' ids (`tinyllm.shards`)."""


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """A corpus: the directory that holds it exists as a corpus only once this is written, last."""

    schema_version: int = SCHEMA_VERSION
    name: str
    kind: Literal["text", "zipf", "array"]
    """Text that was tokenised, the generated chain of `tinyllm.zipf`, or ids that were handed over in memory."""
    source: str
    licence: str
    digest: str
    """Identifies the ids of both splits and their order; the same for any number of Ray workers."""
    source_digest: str
    """Identifies the set of documents, whatever their order; empty where there are none."""
    tokenizer_digest: str | None
    vocab_size: int
    seq_len: int
    """Tokens a row trains on; a row holds seq_len + 1 ids."""
    seed: int
    train_rows: int
    val_rows: int
    n_documents: int
    """Different, non-empty documents of both splits."""
    n_duplicates: int
    """Exact repetitions that were left out."""
    cropped_share: float
    """Share of the tokens, BOS included, that packing cropped."""
    bytes_per_token: float | None
    """Bytes of text per validation target, special tokens left out of both; null where ids are not text."""
    entropy: float | None
    """Irreducible loss in nats per token, where it is known in closed form."""
    shards: tuple[Shard, ...]
    recipe: dict[str, Any]
    """Everything that decided the content; a corpus is used again only for the same recipe."""

    @property
    def train_tokens(self) -> int:
        return self.train_rows * self.seq_len

    @property
    def val_tokens(self) -> int:
        return self.val_rows * self.seq_len

    def to_json(self) -> str:
        counts = {"train_tokens": self.train_tokens, "val_tokens": self.val_tokens}
        return json.dumps(asdict(self) | counts, indent=1)

    @classmethod
    def load(cls, path: str) -> Manifest:
        """The manifest of the corpus in a directory, local or any pyarrow.fs URI.

        Raises ValueError naming the path and the command that prepares it when there is none, or none that is valid.
        """
        file = storage.join(path, MANIFEST_FILE)
        remedy = f"prepare one with `{prepare_command('SOURCE', path)}` (SOURCE: sotu, zipf, or files of text)"
        try:
            content = json.loads(storage.read_bytes(file))
            version = content["schema_version"]
            if version == SCHEMA_VERSION:
                del content["train_tokens"], content["val_tokens"]
                return cls(**content | {"shards": tuple(Shard(**shard) for shard in content["shards"])})
        except (FileNotFoundError, NotADirectoryError) as error:
            raise ValueError(f"no corpus at {path!r}: it has no {MANIFEST_FILE}; {remedy}") from error
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{file} is no valid manifest ({error!r}); delete {path!r} and {remedy}") from error
        raise ValueError(
            f"{file} has schema version {version!r}, this program reads {SCHEMA_VERSION}; delete {path!r} and {remedy}"
        )


def prepare_command(source: str, out: str, **options: object) -> str:
    """The shell command that prepares a corpus, for messages; options as --flag value, None left out."""
    flags = [f" --{name.replace('_', '-')} {value}" for name, value in options.items() if value is not None]
    return f"tinyllm prepare {source} --out {out}" + "".join(flags)
