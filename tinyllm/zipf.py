"""A synthetic source of tokens whose irreducible loss is known in closed form, to check fits against.

Every context has its own random permutation of one Zipf law q_r = r^-s / Z over the vocabulary, so the entropy of the
next token is the same after any history: E = H(q) = ln Z + s * sum_r q_r ln r. Which token is the likely one must be
learnt context by context, which is what makes loss fall with size and data.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from tinyllm.hashing import uniform

_STRUCTURE, _STREAM = 2, 3  # first parts of the keys, apart from every other use of the same seed
_BURN_IN = 32  # steps before a row begins, so that its first id already has the stationary law
_MAX_VOCAB, _MAX_VOCAB_ORDER_2 = 4096, 256  # tables of V^2 and of V^3 ids


@dataclass(frozen=True, kw_only=True)
class ZipfChain:
    """The chain. With `order2 > 0` that share of the contexts needs the last two tokens instead of one.

    That variant is a cautionary example: its losses fit a power law well whose plateau lies far above the entropy,
    because models at small scale learn only the first-order part.
    """

    vocab_size: int = 256
    s: float = 1.5
    """Exponent of the Zipf law."""
    order2: float = 0.0
    """Share of the contexts that are of order two."""
    seed: int = 0

    def __post_init__(self) -> None:
        limit = _MAX_VOCAB_ORDER_2 if self.order2 else _MAX_VOCAB
        if not 2 <= self.vocab_size <= limit:
            raise ValueError(f"zipf vocabulary V={self.vocab_size}: give 2 to {limit} (tables grow with V)")
        if not self.s >= 0:
            raise ValueError(f"zipf exponent s={self.s}: give 0 or more")
        if not 0 <= self.order2 <= 1:
            raise ValueError(f"zipf order2={self.order2}: a share of the contexts, 0 to 1")

    @classmethod
    def parse(cls, source: str, *, vocab_size: int | None = None, seed: int = 0) -> ZipfChain:
        """From `zipf` or `zipf:V=256,s=1.5,order2=0.5` (any of the three). Raises ValueError on anything else."""
        values: dict[str, float] = {}
        for part in filter(None, source.removeprefix("zipf").removeprefix(":").split(",")):
            match = re.fullmatch(r"(V|s|order2)=([0-9.]+)", part.strip())
            if match is None:
                raise ValueError(f"source {source!r}: {part!r} is not understood; write zipf:V=256,s=1.5,order2=0.5")
            values[match[1]] = float(match[2])
        asked = cls.vocab_size if vocab_size is None else vocab_size
        in_source = int(values.get("V", asked))
        if vocab_size not in (None, in_source):
            raise ValueError(f"source {source!r} says V={in_source}, --vocab-size says {vocab_size}: give one of them")
        return cls(
            vocab_size=in_source,
            s=values.get("s", cls.s),
            order2=values.get("order2", cls.order2),
            seed=seed,
        )

    @property
    def source(self) -> str:
        """The source string that `parse` reads back."""
        return f"zipf:V={self.vocab_size},s={self.s},order2={self.order2}"

    @cached_property
    def law(self) -> np.ndarray:
        """q: probability of the r-th likeliest next token, float64 (vocab_size,)."""
        weights = np.arange(1, self.vocab_size + 1, dtype=np.float64) ** -self.s
        return weights / weights.sum()

    @property
    def entropy(self) -> float:
        """E = H(q) in nats per token: the loss of a model that has learnt the chain."""
        return float(-(self.law * np.log(self.law)).sum())

    def rows(self, index: np.ndarray, length: int, *stream: int) -> np.ndarray:
        """Ids of the rows with these numbers in a stream, uint16 (len(index), length).

        A row is a pure function of (chain, stream, its number), whichever rows are asked for along with it.
        """
        return self._sample(index, length, *stream)[0]

    def losses(self, index: np.ndarray, length: int, *stream: int) -> np.ndarray:
        """-ln q of each id of those rows given what precedes it, float64: what a perfect model would lose."""
        return -np.log(self.law[self._sample(index, length, *stream)[1]])

    def _sample(self, index: np.ndarray, length: int, *stream: int) -> tuple[np.ndarray, np.ndarray]:
        steps = np.arange(_BURN_IN + length + 2)
        u = uniform(_STREAM, self.seed, *stream, np.asarray(index, np.int64)[:, None], steps)
        before = (u[:, 0] * self.vocab_size).astype(np.int64)
        last = (u[:, 1] * self.vocab_size).astype(np.int64)
        ranks = np.searchsorted(np.cumsum(self.law), u[:, 2:], side="right")
        ranks = np.minimum(ranks, self.vocab_size - 1).T.copy()  # the sum may end just below 1
        ids = np.empty((len(ranks), len(index)), np.uint16)
        for step, rank in enumerate(ranks):
            token = self._order1[last, rank].astype(np.int64)
            if self.order2:
                slot = self._order2_slot[last]
                token = np.where(slot >= 0, self._order2[slot, before, rank], token)
            before, last = last, token
            ids[step] = token
        return ids[_BURN_IN:].T.copy(), ranks[_BURN_IN:].T

    @cached_property
    def _order1(self) -> np.ndarray:
        """Token of each rank after each last token, (V, V)."""
        return self._permutations(self.vocab_size, 1)

    @cached_property
    def _order2_slot(self) -> np.ndarray:
        """Index into `_order2` of a last token whose successor depends on the one before it too, else -1."""
        gated = uniform(_STRUCTURE, self.seed, 0, np.arange(self.vocab_size)) < self.order2
        return np.where(gated, np.cumsum(gated) - 1, -1)

    @cached_property
    def _order2(self) -> np.ndarray:
        """Token of each rank after each gated last token and each one before it, (n_gated, V, V)."""
        n_gated = int((self._order2_slot >= 0).sum())
        flat = self._permutations(n_gated * self.vocab_size, 2)
        return flat.reshape(n_gated, self.vocab_size, self.vocab_size)

    def _permutations(self, n: int, table: int) -> np.ndarray:
        """n random permutations of the vocabulary, uint16 (n, V).

        Drawn by Plackett-Luce with weights 1/(id + 1), so that low ids tend to be likely everywhere and the
        stream's own frequencies are Zipf-like, as those of text are.
        """
        ids = np.arange(self.vocab_size)
        u = uniform(_STRUCTURE, self.seed, table, np.arange(n)[:, None], ids) + 2.0**-54
        gumbel = -np.log(-np.log(u))
        return np.argsort(np.log(ids + 1.0) - gumbel, axis=1, kind="stable").astype(np.uint16)
