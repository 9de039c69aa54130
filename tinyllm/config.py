"""What is trained: `TrainConfig`, which names a trial. How it is run stands in `tinyllm.options`.

Frozen, keyword-only dataclasses, changed only by copy. Loads neither torch nor Ray. `None` in a field means
"derived": `tinyllm.plan.resolve` fills every one of them by a named rule of `tinyllm.rules`.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property
from typing import Any, Literal

from tinyllm.flags import Absent
from tinyllm.horizon import Horizon

# Part of every run_id: raised when the meaning of a schedule, of the order of data or of the
# initialisation changes, so that old results are never taken for new ones.
TRAINING_VERSION = 1

Optimizer = Literal["muon", "adamw"]
Schedule = Literal["wsd", "cosine"]
DecayShape = Literal["linear", "1-sqrt", "cosine"]
Precision = Literal["auto", "fp32", "bf16"]

MLP_RATIO = 4
BUILT_IN_TEXT = "sotu"  # State of the Union addresses


@dataclass(frozen=True, kw_only=True)
class ParamCounts:
    """Parameters of a model by group, and the sums that the literature calls N."""

    embedding: int
    head: int
    attention: int
    mlp: int
    value_embedding: int
    scalars: int

    @property
    def total(self) -> int:
        """Every parameter."""
        return self.with_head + self.embedding + self.value_embedding

    @property
    def non_embedding(self) -> int:
        """Kaplan's N: neither embeddings nor the output head."""
        return self.attention + self.mlp + self.scalars

    @property
    def with_head(self) -> int:
        """What multiplies activations: `non_embedding` plus the output head. N of `tokens_per_param`."""
        return self.non_embedding + self.head


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """A GPT whose one dial is `depth`: width, heads, parameter counts and FLOPs follow from it."""

    depth: int = 12
    """Number of transformer layers: the one dial of size."""
    aspect_ratio: int = 64
    """Width of the residual stream per layer: width = depth x aspect_ratio."""
    target_head_dim: int = 128
    """Wanted width of a head; the nearest even divisor of the width is taken."""
    n_kv_heads: Absent[int] = None
    """Key/value heads (grouped-query attention). Default: as many as query heads."""
    vocab_size: Absent[int] = None
    """Vocabulary. Default: the corpus'."""
    seq_len: Absent[int] = None
    """Tokens a row. Default: the corpus'."""
    window_pattern: str = "L"
    """Attention window per layer, tiled: L = whole context, S = half of it. The last layer is always L."""
    logit_softcap: float = 15.0
    """Logits are squashed to +-this by a tanh; 0 = off."""
    value_embeddings: bool = False
    """A second embedding table, added to the values of every other layer."""

    def __post_init__(self) -> None:
        if self.depth < 1 or self.aspect_ratio < 1 or self.target_head_dim < 2:
            raise ValueError(
                f"depth {self.depth}, aspect_ratio {self.aspect_ratio}, target_head_dim {self.target_head_dim}: "
                "depth and aspect_ratio must be 1 or more, target_head_dim 2 or more"
            )
        if self.width % 2:
            raise ValueError(
                f"width {self.width} (= depth {self.depth} x aspect_ratio {self.aspect_ratio}) is odd, "
                "and rotary embedding turns pairs: take an even --aspect-ratio"
            )
        if not self.window_pattern or set(self.window_pattern) - {"S", "L"}:
            raise ValueError(f"window_pattern {self.window_pattern!r}: write it with S and L alone, e.g. SSSL")
        if self.n_kv_heads is not None and (self.n_kv_heads < 1 or self.n_heads % self.n_kv_heads):
            raise ValueError(
                f"n_kv_heads {self.n_kv_heads} does not divide the {self.n_heads} heads of width {self.width}: "
                f"take one of {[k for k in range(1, self.n_heads + 1) if self.n_heads % k == 0]}"
            )
        for name in ("vocab_size", "seq_len"):
            value = getattr(self, name)
            if value is not None and value < 2:
                raise ValueError(f"{name} {value} must be 2 or more")
        if not 0 <= self.logit_softcap < float("inf"):
            raise ValueError(f"logit_softcap {self.logit_softcap} must be 0 (off) or more, and finite")

    @property
    def width(self) -> int:
        return self.depth * self.aspect_ratio

    @property
    def head_dim(self) -> int:
        """The even divisor of the width nearest to `target_head_dim`; of two equally near ones the smaller."""
        even_divisors = [k for k in range(2, self.width + 1, 2) if self.width % k == 0]
        return min(even_divisors, key=lambda k: (abs(k - self.target_head_dim), k))

    @property
    def n_heads(self) -> int:
        return self.width // self.head_dim

    @property
    def kv_heads(self) -> int:
        return self.n_kv_heads or self.n_heads

    @property
    def vocab(self) -> int:
        return self._known("vocab_size")

    @property
    def context(self) -> int:
        return self._known("seq_len")

    def _known(self, name: str) -> int:
        value = getattr(self, name)
        if value is None:
            raise ValueError(f"{name} is not set: it comes from the corpus (tinyllm.plan.resolve), or pass {name}=")
        return value

    @property
    def windows(self) -> tuple[int, ...]:
        """Tokens each layer's queries may look back on, themselves included; shape (depth,)."""
        short = max(1, self.context // 2)
        tiled = [self.window_pattern[i % len(self.window_pattern)] for i in range(self.depth)]
        tiled[-1] = "L"
        return tuple(short if letter == "S" else self.context for letter in tiled)

    def has_value_embedding(self, layer: int) -> bool:
        """Every other layer, counted so that the last one has it."""
        return self.value_embeddings and (self.depth - 1 - layer) % 2 == 0

    @property
    def counts(self) -> ParamCounts:
        kv_width = self.kv_heads * self.head_dim
        n_value_tables = sum(self.has_value_embedding(i) for i in range(self.depth))
        return ParamCounts(
            embedding=self.vocab * self.width,
            head=self.vocab * self.width,
            attention=self.depth * (2 * self.width**2 + 2 * self.width * kv_width),
            mlp=self.depth * 2 * MLP_RATIO * self.width**2,
            value_embedding=n_value_tables * self.vocab * kv_width,
            scalars=2 * self.depth,  # one gain of the residual, one of the re-fed input, a layer
        )

    @property
    def flops_per_token(self) -> float:
        """FLOPs of forward and backward per trained token: every matmul, 2 per multiply-add, backward twice forward.

        Counts attention scores and their product with the values by window, min(window, seq_len) keys a query
        without halving for causality, as PaLM (Chowdhery et al. 2022, appendix B) and nanochat do, so that MFU
        compares with theirs. The embedding look-up is no matmul and is not counted.
        """
        c = self.counts
        matmul_params = c.attention + c.mlp + c.head
        attention = sum(12 * self.width * min(window, self.context) for window in self.windows)
        return float(6 * matmul_params + attention)


@dataclass(frozen=True, kw_only=True)
class OptimConfig:
    """Optimizer and schedule. An LR that is given is the LR applied; rules choose only what is absent."""

    optimizer: Optimizer = "muon"
    """muon = Muon for the hidden matrices and AdamW for the rest; adamw = AdamW alone."""
    lr: Absent[float] = None
    """Peak LR of the hidden matrices, after all scaling. Default: by rule from the batch size."""
    embedding_lr: Absent[float] = None
    """Peak LR of the embeddings. Default: a fixed ratio to --lr, scaled by width."""
    head_lr: Absent[float] = None
    """Peak LR of the output head. Default: a fixed ratio to --lr, scaled by width."""
    scalar_lr: Absent[float] = None
    """Peak LR of the per-layer scalars. Default: a fixed ratio to --lr."""
    total_batch_size: Absent[int] = None
    """Tokens a step, over all ranks. Default: by rule from model and corpus."""
    momentum: float = 0.95
    """Muon's momentum after its warmup (from 0.85)."""
    beta1: float = 0.8
    """AdamW beta1."""
    beta2: Absent[float] = None
    """AdamW beta2. Default: a fixed half-life in tokens."""
    eps: float = 1e-10
    """AdamW epsilon."""
    weight_decay: Absent[float] = None
    """Decoupled weight decay of the hidden matrices (of every 2-D weight under adamw). Default: by rule from depth."""
    cautious: bool = True
    """Decay a weight only where the update already moves it towards zero."""
    grad_clip: float = 1.0
    """Largest global gradient norm; 0 = no clipping."""
    schedule: Schedule = "wsd"
    """wsd = constant LR, then a decay for each horizon; cosine = one horizon, decaying from the end of warmup."""
    warmup_tokens: Absent[int] = None
    """Tokens of linear LR warmup. Default: by rule from the batch size."""
    decay_share: float = 0.2
    """Share of each horizon spent decaying the LR (wsd)."""
    decay_shape: DecayShape = "linear"
    """Shape of the wsd decay."""
    final_lr_fraction: float = 0.0
    """LR at the very end, as a fraction of the peak."""

    def __post_init__(self) -> None:
        positive = ("lr", "embedding_lr", "head_lr", "scalar_lr", "total_batch_size")
        for name in positive:
            value = getattr(self, name)
            if value is not None and not 0 < value < float("inf"):
                raise ValueError(f"{name} {value} must be positive and finite")
        for name in ("momentum", "beta1", "beta2", "final_lr_fraction"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < 1:
                raise ValueError(f"{name} {value} must be in [0, 1)")
        for name in ("weight_decay", "grad_clip", "warmup_tokens"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < float("inf"):
                raise ValueError(f"{name} {value} must be 0 or more")
        if not 0 < self.eps < 1:
            raise ValueError(f"eps {self.eps} must be in (0, 1)")
        if not 0 < self.decay_share < 1:
            raise ValueError(f"decay_share {self.decay_share} must be in (0, 1): the LR decays over that share")


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """Which tokens are trained on. The digest names them; the path does not matter to a run's identity."""

    data: Absent[str] = None
    """Prepared corpus: a directory, a URI, or a built-in name (sotu, zipf). Default: $TINYLLM_DATA, else sotu."""
    max_epochs: float = 4.0
    """More passes over the corpus than this are refused."""
    eval_tokens: int = 65_536
    """Validation tokens of an evaluation, always the same windows from the start of the validation split."""

    def __post_init__(self) -> None:
        if not self.max_epochs > 0:
            raise ValueError(f"max_epochs {self.max_epochs} must be positive")
        if self.eval_tokens < 1:
            raise ValueError(f"eval_tokens {self.eval_tokens} must be 1 or more")

    @property
    def source(self) -> str:
        """`data`, else $TINYLLM_DATA, else the built-in text."""
        return self.data or os.environ.get("TINYLLM_DATA") or BUILT_IN_TEXT


@dataclass(frozen=True, kw_only=True)
class CorpusFacts:
    """What a resolved config knows of its corpus."""

    name: str
    digest: str
    vocab_size: int
    seq_len: int
    train_tokens: int | None
    """Tokens of one epoch; None where rows are generated without end."""
    val_tokens: int


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """One trial: what is trained, on what, how fast, how long."""

    model: ModelConfig = field(default_factory=ModelConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
    data: DataConfig = field(default_factory=DataConfig)
    horizons: tuple[Horizon, ...] = ()
    """Token budgets of one trunk. Empty: the default horizon, 20 tokens per parameter."""
    seed: int = 0
    """Seeds the weights and the order of the data."""
    precision: Precision = "auto"
    """auto = bf16 where the chip computes it, else fp32."""
    corpus: CorpusFacts | None = None
    """Filled by tinyllm.plan.resolve."""

    def __post_init__(self) -> None:
        check_seed(self.seed)

    @cached_property
    def run_id(self) -> str:
        """Name of the trunk: depth and a hash of everything that changes its weights.

        Horizons are not in it, since a trunk serves any number of them; except under `cosine`, where the
        horizon shapes the LR from the first step. Raises ValueError on a config that is not resolved.
        """
        if self.corpus is None:
            raise ValueError("a run_id needs a resolved config: call tinyllm.plan.resolve first")
        return f"d{self.model.depth}-{_hash(self._identity())}"

    @cached_property
    def group(self) -> str:
        """Everything but the LRs: trials of one group differ in LR alone and may be compared at a budget."""
        lrs = {f"optim.{name}" for name in ("lr", "embedding_lr", "head_lr", "scalar_lr")}
        return f"d{self.model.depth}-{_hash({k: v for k, v in self._identity().items() if k not in lrs})}"

    def _identity(self) -> dict[str, Any]:
        """What decides the weights, by dotted path."""
        assert self.corpus is not None
        inert = _inert(self)
        found = {k: v for k, v in _flat(asdict(self)).items() if k not in inert and not k.startswith("corpus.")}
        if "horizons" in found:
            assert self.optim.total_batch_size is not None
            found["horizons"] = [h.steps(self.model, self.optim.total_batch_size) for h in self.horizons]
        return {**found, "corpus": self.corpus.digest, "training_version": TRAINING_VERSION}

    def to_json(self) -> str:
        """Canonical JSON: sorted keys, no spaces, floats at full precision."""
        return canonical_json(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> TrainConfig:
        """Inverse of `to_json`. Raises ValueError naming a key this version does not know."""
        return _build(cls, json.loads(text))


def check_seed(seed: int) -> None:
    """Raises ValueError for what no generator here takes as a seed."""
    if not 0 <= seed < 2**63:
        raise ValueError(f"seed {seed}: give a whole number from 0 to 2^63 - 1")


def canonical_json(value: Any) -> str:
    """JSON with sorted keys and no spaces. Raises ValueError on NaN and infinities."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def _hash(values: dict[str, Any]) -> str:
    # 1 and 1.0 are one value, whatever somebody wrote.
    plain = {k: int(v) if isinstance(v, float) and v.is_integer() else v for k, v in values.items()}
    return hashlib.blake2b(canonical_json(plain).encode(), digest_size=6).hexdigest()


def _inert(config: TrainConfig) -> set[str]:
    """Dotted paths of what does not change the weights of this run."""
    found = {"data.data", "data.max_epochs"}
    if config.optim.optimizer == "adamw":
        found |= {"optim.momentum", "optim.cautious"}
    return found | ({"optim.decay_share", "optim.decay_shape"} if config.optim.schedule == "cosine" else {"horizons"})


_NESTED = {"model": ModelConfig, "optim": OptimConfig, "data": DataConfig, "corpus": CorpusFacts}


def _build(cls: type, values: dict[str, Any]) -> Any:
    unknown = set(values) - {f.name for f in fields(cls)}
    if unknown:
        raise ValueError(f"{cls.__name__} has no field {sorted(unknown)}: written by another version of tinyllm?")
    built = dict(values)
    for name, nested in _NESTED.items():
        if isinstance(built.get(name), dict):
            built[name] = _build(nested, built[name])
    if "horizons" in built:
        built["horizons"] = tuple(Horizon(**h) for h in built["horizons"])
    return cls(**built)


def differences(before: TrainConfig, now: TrainConfig) -> list[str]:
    """Where two configs name different runs, as "optim.lr 0.01 -> 0.02"; empty when they are one run.

    A trunk may be given other horizons, and its corpus may lie elsewhere and have another name.
    """
    if before.corpus and now.corpus and before.run_id == now.run_id:
        return []
    free = _inert(now) if before.optim.schedule == now.optim.schedule else set()
    old, new = _flat(asdict(before)), _flat(asdict(now))
    return [
        f"{name} {old.get(name)!r} -> {new.get(name)!r}"
        for name in sorted(old.keys() | new.keys())
        if name not in free and old.get(name) != new.get(name)
    ]


def _flat(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in values.items():
        found |= _flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {prefix + name: value}
    return found


def changed(config: Any, path: str, value: Any) -> Any:
    """A copy with the field at a dotted path replaced, e.g. changed(config, "optim.lr", 0.02).

    Raises ValueError naming the fields there are when the path leads nowhere.
    """
    head, _, rest = path.partition(".")
    known = [f.name for f in fields(config)]
    if head not in known:
        raise ValueError(f"{type(config).__name__} has no field {head!r}: it has {', '.join(known)}")
    return replace(config, **{head: changed(getattr(config, head), rest, value) if rest else value})
