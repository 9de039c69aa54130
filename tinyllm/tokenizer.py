"""Byte-level BPE with one special token, trained and run by Hugging Face `tokenizers`."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property

import numpy as np
import tokenizers
from tokenizers import Regex, decoders, models, pre_tokenizers, trainers

BOS = "<|bos|>"
# GPT-4's split of text into words (tiktoken, cl100k_base), with runs of digits cut into pairs instead of triples, as
# nanochat has it: three-digit tokens waste a small vocabulary.
SPLIT_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,2}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
MIN_VOCAB_SIZE = 256 + 1  # every byte and BOS: any text can be written


def check_vocab_size(vocab_size: int) -> int:
    """The same number. Raises ValueError where it is too small for a tokenizer."""
    if vocab_size < MIN_VOCAB_SIZE:
        raise ValueError(
            f"--vocab-size {vocab_size} is below {MIN_VOCAB_SIZE} (256 bytes and {BOS}): give at least that"
        )
    return vocab_size


class Tokenizer:
    """Text to ids and back. Markup in the text that looks like a special token is encoded as plain text."""

    def __init__(self, inner: tokenizers.Tokenizer) -> None:
        inner.encode_special_tokens = True
        self._inner = inner
        bos_id = inner.token_to_id(BOS)
        assert bos_id is not None, f"a tokenizer without {BOS}"
        self.bos_id: int = bos_id

    @classmethod
    def train(cls, texts: Iterable[str], vocab_size: int) -> Tokenizer:
        """Train on texts. Raises ValueError when the vocabulary is below 257 or more than the texts can fill."""
        check_vocab_size(vocab_size)
        inner = tokenizers.Tokenizer(models.BPE())
        inner.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(Regex(SPLIT_PATTERN), behavior="isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )
        inner.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(
            vocab_size=vocab_size,
            special_tokens=[BOS],
            initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
            show_progress=False,
        )
        inner.train_from_iterator(texts, trainer)
        if inner.get_vocab_size() < vocab_size:
            raise ValueError(
                f"--vocab-size {vocab_size} is more than this text can fill: it has merges for "
                f"{inner.get_vocab_size()} tokens; give at most that, or more text"
            )
        return cls(inner)

    @classmethod
    def from_json(cls, text: str) -> Tokenizer:
        return cls(tokenizers.Tokenizer.from_str(text))

    def to_json(self) -> str:
        """The `tokenizers` file format, which other tools load as well."""
        return self._inner.to_str(pretty=False)

    @property
    def vocab_size(self) -> int:
        return self._inner.get_vocab_size()

    @property
    def digest(self) -> str:
        """`json_digest` of the file that this tokenizer is written to."""
        return json_digest(self.to_json())

    @cached_property
    def token_bytes(self) -> np.ndarray:
        """Bytes of text behind each id: int32 (vocab_size,), 0 for the special token.

        A byte-level token is written with one character a byte, so the length of its name is the count.
        """
        lengths = np.zeros(self.vocab_size, np.int32)
        for name, i in self._inner.get_vocab().items():
            lengths[i] = 0 if name == BOS else len(name)
        return lengths

    def encode(self, text: str) -> list[int]:
        """Ids of a text, without BOS."""
        return self._inner.encode(text).ids

    def encode_batch(self, texts: Sequence[str], dtype: type[np.unsignedinteger]) -> Iterator[np.ndarray]:
        """Ids of each text, without BOS."""
        for encoding in self._inner.encode_batch_fast(texts):
            yield np.array(encoding.ids, dtype)

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids, special tokens left out; bytes that are no UTF-8 become U+FFFD."""
        return self._inner.decode(list(ids))


def json_digest(text: str) -> str:
    """blake2b-128 of a tokenizer's JSON."""
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
