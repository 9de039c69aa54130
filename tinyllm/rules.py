"""The rules behind every derived setting, each with its source and the reference point where it was tuned.

A rule reads the model and the corpus, never a horizon: a trunk serves every horizon, so what it shares cannot depend on
one. All rules are smooth in what they read: a step in a rule leaves a kink in the losses and a wrong exponent.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tinyllm.config import CorpusFacts, ModelConfig

# nanochat tunes at depth 12 (width 768, vocabulary 32768, context 2048) with 2^19 tokens a step.
REFERENCE_DEPTH = 12
REFERENCE_WIDTH = 768
REFERENCE_BATCH_TOKENS = 2**19
REFERENCE_MODEL = ModelConfig(depth=REFERENCE_DEPTH, vocab_size=32768, seq_len=2048)

# A rule applied further than this factor from its reference is a guess, and said to be one.
FAR_FROM_REFERENCE = 16.0

# Hoffmann et al. 2022: about 20 tokens a parameter are compute-optimal.
DEFAULT_TOKENS_PER_PARAM = 20.0

# Bergsma et al. 2025 ("Power Lines"): the best batch grows as tokens^0.383.
BATCH_EXPONENT = 0.383

# nanochat's peak LRs at the reference point: Muon 0.02, embeddings 0.3, head 0.004, scalars 0.5 (its
# residual gains take a hundredth of that, which is what the gains here are).
REFERENCE_LR = {"muon": 0.02, "adamw": 0.003}
EMBEDDING_LR_RATIO = {"muon": 15.0, "adamw": 1.0}
HEAD_LR_RATIO = {"muon": 0.2, "adamw": 1.0}
SCALAR_LR_RATIO = {"muon": 0.25, "adamw": 1.0}

REFERENCE_WEIGHT_DECAY = {"muon": 0.2, "adamw": 0.1}
WEIGHT_DECAY_CLAMP = (0.25, 4.0)
LARGEST_SHRINKING = 0.01  # LR x weight decay of a step

# AdamW's beta2 forgets half of its past in this many tokens: 0.95 at 2^19 tokens a step.
BETA2_HALF_LIFE_TOKENS = 7.1e6
BETA2_RANGE = (0.9, 0.9995)

HOW_TO_FIND_AN_LR = "`python -m sweeps.lr_grid` finds the best"

WARMUP_STEPS = 40
WARMUP_LARGEST_SHARE = 0.1


@dataclass(frozen=True, kw_only=True)
class Derived:
    """A value chosen by a rule."""

    value: float
    warning: str | None = None
    """Where the rule was clamped, or applied far from its reference."""


def reference_tokens(model: ModelConfig, corpus: CorpusFacts, max_epochs: float) -> float:
    """Tokens this model would be trained on if nobody said: 20 a parameter, at most `max_epochs` of the corpus."""
    wanted = DEFAULT_TOKENS_PER_PARAM * model.counts.with_head
    if corpus.train_tokens is None:
        return wanted
    return min(wanted, max_epochs * corpus.train_tokens)


def batch_tokens(model: ModelConfig, tokens: float) -> int:
    """Tokens a step: 2^19 at the reference model, growing as tokens^0.383 (Bergsma et al. 2025).

    Rows are rounded to a multiple of the largest power of two below an eighth of them: within 1/16 of the rule, and
    divisible among ranks.
    """
    reference = DEFAULT_TOKENS_PER_PARAM * REFERENCE_MODEL.counts.with_head
    rows = REFERENCE_BATCH_TOKENS * (tokens / reference) ** BATCH_EXPONENT / model.context
    multiple = 2 ** max(0, int(rows / 8).bit_length() - 1)
    return model.context * multiple * max(1, round(rows / multiple))


def hidden_lr(optimizer: str, batch: int) -> Derived:
    """Peak LR of the hidden matrices: sqrt of the batch (Malladi et al. 2022), reference 2^19 tokens."""
    value = REFERENCE_LR[optimizer] * (batch / REFERENCE_BATCH_TOKENS) ** 0.5
    far = _far(batch, REFERENCE_BATCH_TOKENS, "tokens a batch")
    return Derived(
        value=value,
        warning=far and f"the LR {value:.3g} is a guess: its rule is {far} (give --lr; {HOW_TO_FIND_AN_LR})",
    )


def adamw_width_scale(width: int) -> Derived:
    """Factor on AdamW's LRs: 1/sqrt(width), reference 768 (nanochat)."""
    far = _far(width, REFERENCE_WIDTH, "width")
    return Derived(
        value=(width / REFERENCE_WIDTH) ** -0.5,
        warning=far
        and f"the ratio of embedding and head LR to --lr is a guess: its rule is {far} "
        f"(give --embedding-lr and --head-lr; {HOW_TO_FIND_AN_LR})",
    )


def _far(value: int, reference: int, what: str) -> str | None:
    """How far a rule is from its reference, where it is too far to be trusted."""
    ratio = value / reference
    if 1 / FAR_FROM_REFERENCE <= ratio <= FAR_FROM_REFERENCE:
        return None
    factor, side = (ratio, "above") if ratio > 1 else (1 / ratio, "below")
    return f"applied at {value:,} {what}, {factor:,.3g} x {side} the {reference:,} it was tuned at"


def weight_decay(optimizer: str, depth: int, batch: int) -> Derived:
    """Weight decay falls as 1/depth^2 (nanochat), reference depth 12, clamped to 1/4..4 of the reference.

    Unclamped it would be 7.2 at depth 2, which with an LR of .02 erases a weight in seven steps. Nor may a step at the
    LR of the rule (not a given one: the trials of an LR grid share their decay) shrink a weight by over a hundredth.
    """
    low, high = WEIGHT_DECAY_CLAMP
    reference = REFERENCE_WEIGHT_DECAY[optimizer]
    wanted = reference * (REFERENCE_DEPTH / depth) ** 2
    clamped = min(max(wanted, low * reference), high * reference, LARGEST_SHRINKING / hidden_lr(optimizer, batch).value)
    warning = None
    if clamped != wanted:
        warning = (
            f"weight decay at depth {depth} would be {wanted:.3g} by its rule; "
            f"clamped to {clamped:.3g} (give --weight-decay to choose)"
        )
    return Derived(value=clamped, warning=warning)


def beta2(batch: int) -> float:
    """AdamW's beta2 as a half-life in tokens (Marek et al. 2025): a smaller batch gets a beta2 nearer to 1."""
    low, high = BETA2_RANGE
    return min(max(0.5 ** (batch / BETA2_HALF_LIFE_TOKENS), low), high)


def warmup_tokens(batch: int, tokens: float) -> int:
    """40 steps (nanochat), at most a tenth of the reference tokens."""
    return int(min(WARMUP_STEPS * batch, WARMUP_LARGEST_SHARE * tokens))


def with_corpus(model: ModelConfig, corpus: CorpusFacts) -> ModelConfig:
    """The model with what it takes from its corpus. Raises ValueError where it asks for something else."""
    if model.vocab_size not in (None, corpus.vocab_size):
        raise ValueError(
            f"vocab_size {model.vocab_size} is not that of corpus {corpus.name!r} ({corpus.vocab_size}): leave it out, "
            f"or prepare one with `tinyllm prepare --vocab-size {model.vocab_size} ...` and pass it as --data"
        )
    if model.seq_len not in (None, corpus.seq_len):
        raise ValueError(
            f"seq_len {model.seq_len} is not that of corpus {corpus.name!r} ({corpus.seq_len}): leave it out, "
            f"or prepare one with `tinyllm prepare --seq-len {model.seq_len} ...` and pass it as --data"
        )
    sized = replace(model, vocab_size=corpus.vocab_size, seq_len=corpus.seq_len)
    return replace(sized, n_kv_heads=sized.kv_heads)
