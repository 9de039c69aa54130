"""From a config to numbers: pure arithmetic, the same for every world size, without torch or Ray."""

from __future__ import annotations

import itertools
import math
from dataclasses import asdict, dataclass, replace

from tinyllm import rules
from tinyllm.config import CorpusFacts, ParamCounts, Precision, TrainConfig, canonical_json
from tinyllm.horizon import Horizon

# Fewer steps than this give a decay too coarse to reach the loss it stands for.
FEW_DECAY_STEPS = 10
WIDE_BUDGET_RATIO = 16.0


@dataclass(frozen=True, kw_only=True)
class Budget:
    """One horizon of a trunk, in whole steps."""

    tokens: int
    """Planned tokens: steps x batch. With the run_id, the key of a record."""
    steps: int
    fork_step: int
    """Trunk steps before the LR decays; the branch runs from here to `steps`."""
    flops: float
    """tokens x the model's exact FLOPs per token."""
    flops_6nd: float
    """6 x n_params (with head) x tokens."""
    epochs: float | None
    """Passes over the corpus; None where rows are generated without end."""

    @property
    def decay_steps(self) -> int:
        return self.steps - self.fork_step


@dataclass(frozen=True, kw_only=True)
class PeakLRs:
    """Peak LR of each parameter group."""

    hidden: float
    embedding: float
    head: float
    scalar: float


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a resolved config amounts to."""

    counts: ParamCounts
    flops_per_token: float
    batch_rows: int
    batch_tokens: int
    warmup_steps: int
    peak_lrs: PeakLRs
    weight_decay: float
    beta2: float
    budgets: tuple[Budget, ...]
    """By increasing tokens."""
    warnings: tuple[str, ...]

    @property
    def trunk_steps(self) -> int:
        """Steps of the trunk: up to the last fork."""
        return self.budgets[-1].fork_step

    @property
    def trained_tokens(self) -> int:
        """Tokens of the trunk and of every branch."""
        return self.batch_tokens * (self.trunk_steps + sum(b.decay_steps for b in self.budgets))

    @property
    def trained_flops(self) -> float:
        return self.trained_tokens * self.flops_per_token

    @property
    def separate_tokens(self) -> int:
        """What one run a budget would train on instead."""
        return sum(b.tokens for b in self.budgets)

    def budget(self, tokens: int) -> Budget:
        """The budget of that many planned tokens. Raises ValueError when there is none."""
        for budget in self.budgets:
            if budget.tokens == tokens:
                return budget
        raise ValueError(f"no budget of {tokens} tokens in this plan: it has {[b.tokens for b in self.budgets]}")

    def to_json(self) -> str:
        return canonical_json(asdict(self))


def resolve(config: TrainConfig, corpus: CorpusFacts, precision: Precision) -> TrainConfig:
    """The config with every `None` filled by rule: what is hashed, recorded and trained.

    `precision` is what the hardware computes ("fp32" or "bf16"), taken where the config says "auto".
    Raises ValueError when the model asks for another vocabulary or context than the corpus has.
    """
    if precision == "auto":
        raise ValueError("resolve needs the precision the hardware computes: 'fp32' or 'bf16', not 'auto'")
    model = rules.with_corpus(config.model, corpus)
    optim = config.optim
    tokens = rules.reference_tokens(model, corpus, config.data.max_epochs)
    batch = _batch(config, corpus)
    if batch % model.context:
        near = max(1, round(batch / model.context)) * model.context
        raise ValueError(
            f"--total-batch-size {batch} is no multiple of the {model.context} tokens of a row: take {near}"
        )
    lr = float(optim.lr if optim.lr is not None else rules.hidden_lr(optim.optimizer, batch).value)
    width_scale = rules.adamw_width_scale(model.width).value

    def by_ratio(given: float | None, ratio: dict[str, float], scale: float) -> float:
        return float(given if given is not None else lr * ratio[optim.optimizer] * scale)

    decay = optim.weight_decay
    return replace(
        config,
        model=model,
        optim=replace(
            optim,
            lr=lr,
            cautious=optim.cautious and optim.optimizer == "muon",  # torch's AdamW knows no such decay
            embedding_lr=by_ratio(optim.embedding_lr, rules.EMBEDDING_LR_RATIO, width_scale),
            head_lr=by_ratio(optim.head_lr, rules.HEAD_LR_RATIO, width_scale),
            scalar_lr=by_ratio(optim.scalar_lr, rules.SCALAR_LR_RATIO, 1.0),
            total_batch_size=batch,
            beta2=float(optim.beta2 if optim.beta2 is not None else rules.beta2(batch)),
            weight_decay=float(
                decay if decay is not None else rules.weight_decay(optim.optimizer, model.depth, batch).value
            ),
            warmup_tokens=int(
                optim.warmup_tokens if optim.warmup_tokens is not None else rules.warmup_tokens(batch, tokens)
            ),
        ),
        horizons=config.horizons or (_default_horizon(config, corpus),),
        precision=precision if config.precision == "auto" else config.precision,
        corpus=corpus,
    )


def _batch(config: TrainConfig, corpus: CorpusFacts) -> int:
    """Tokens a step: as given, else by rule."""
    if config.optim.total_batch_size is not None:
        return int(config.optim.total_batch_size)
    model = rules.with_corpus(config.model, corpus)
    return rules.batch_tokens(model, rules.reference_tokens(model, corpus, config.data.max_epochs))


def _default_horizon(config: TrainConfig, corpus: CorpusFacts) -> Horizon:
    """20 tokens a parameter, clipped to the epochs allowed."""
    model = rules.with_corpus(config.model, corpus)
    wanted = rules.DEFAULT_TOKENS_PER_PARAM * model.counts.with_head
    tokens = rules.reference_tokens(model, corpus, config.data.max_epochs)
    if tokens < wanted:
        return Horizon(value=tokens, unit="tokens")
    return Horizon(value=rules.DEFAULT_TOKENS_PER_PARAM, unit="tokens_per_param")


def resolution_warnings(asked: TrainConfig, corpus: CorpusFacts) -> tuple[str, ...]:
    """Where `resolve` had to bend a rule for this config, or applied one far from the point where it was tuned."""
    optim, batch = asked.optim, _batch(asked, corpus)
    derived = []
    if optim.lr is None:
        derived.append(rules.hidden_lr(optim.optimizer, batch))
    if optim.embedding_lr is None or optim.head_lr is None:
        derived.append(rules.adamw_width_scale(asked.model.width))
    if optim.weight_decay is None:
        derived.append(rules.weight_decay(optim.optimizer, asked.model.depth, batch))
    found = [d.warning for d in derived if d.warning]
    if not asked.horizons:
        default = _default_horizon(asked, corpus)
        if default.unit == "tokens":
            found.append(
                f"the default horizon of {rules.DEFAULT_TOKENS_PER_PARAM:g} tokens a parameter was clipped to "
                f"{asked.data.max_epochs:g} epochs of {corpus.name!r}, {default.value:,.0f} tokens"
            )
    return tuple(found)


def plan(config: TrainConfig, *, on_paper: bool = False) -> Plan:
    """Counts, steps, LRs and FLOPs of a resolved config.

    Raises ValueError, with the remedy, for budgets smaller than a step, equal after rounding, with no decay step, with
    a warmup not over before the first fork, or beyond the epochs allowed. `on_paper`: nothing will be trained, so that
    too small a corpus is only warned of.
    """
    corpus, optim = config.corpus, config.optim
    if corpus is None:
        raise ValueError("plan needs a resolved config: call tinyllm.plan.resolve first")
    assert optim.total_batch_size and optim.lr and optim.embedding_lr and optim.head_lr and optim.scalar_lr
    assert optim.warmup_tokens is not None and optim.weight_decay is not None and optim.beta2 is not None
    batch = optim.total_batch_size
    budgets = tuple(sorted((_budget(config, h) for h in config.horizons), key=lambda b: b.tokens))
    repeated = _too_many_epochs(config, budgets)
    if repeated is not None and not on_paper:
        raise ValueError(repeated)
    for small, large in itertools.pairwise(budgets):
        if small.steps == large.steps:
            raise ValueError(
                f"two budgets round to the same {small.steps} steps of {batch} tokens: space them further apart, "
                "or take a smaller --total-batch-size"
            )
    if optim.schedule == "cosine" and len(budgets) > 1:
        raise ValueError(
            f"cosine decays over the whole run, so it takes one horizon, not {len(budgets)}: "
            "run one trial each, or use --schedule wsd"
        )
    # A warmup shorter than a step is one step of full LR: at least one, so that no run starts at LR 0.
    warmup_steps = -(-optim.warmup_tokens // batch)
    first = budgets[0]
    warmup_room = first.fork_step if optim.schedule == "wsd" else first.steps - 1
    if warmup_steps > warmup_room:
        raise ValueError(
            f"the warmup ({warmup_steps} steps) must be over before the LR decays at step {warmup_room} of the "
            f"smallest budget ({first.tokens:,} tokens): take {_shorter_warmup(config, first, warmup_room)}, or "
            f"a budget of {math.ceil((warmup_steps + 1) / (1 - optim.decay_share)) * batch:,} tokens or more"
        )
    warnings = [f"it can't be trained as it stands: {repeated}"] if repeated is not None else []
    if first.decay_steps < FEW_DECAY_STEPS and optim.schedule == "wsd":
        warnings.append(
            f"the smallest budget decays over {first.decay_steps} steps only (fewer than {FEW_DECAY_STEPS}): "
            "its loss is above what it stands for; a smaller --total-batch-size or a larger budget helps"
        )
    if budgets[-1].tokens > WIDE_BUDGET_RATIO * first.tokens:
        warnings.append(
            f"largest / smallest budget is {budgets[-1].tokens / first.tokens:.3g}, over {WIDE_BUDGET_RATIO:g}: one "
            "batch and LR serve both, which favours some budgets; check with --separate-trunks"
        )
    if corpus.val_tokens < config.data.eval_tokens:
        warnings.append(
            f"--eval-tokens {config.data.eval_tokens:,} are asked for, corpus {corpus.name!r} holds "
            f"{corpus.val_tokens:,} for validation: the losses of all runs share its error of sampling; prepare it "
            "with a larger --val-fraction or more text"
        )
    return Plan(
        counts=config.model.counts,
        flops_per_token=config.model.flops_per_token,
        batch_rows=batch // config.model.context,
        batch_tokens=batch,
        warmup_steps=warmup_steps,
        peak_lrs=PeakLRs(hidden=optim.lr, embedding=optim.embedding_lr, head=optim.head_lr, scalar=optim.scalar_lr),
        weight_decay=optim.weight_decay,
        beta2=optim.beta2,
        budgets=budgets,
        warnings=tuple(warnings),
    )


def _budget(config: TrainConfig, horizon: Horizon) -> Budget:
    assert config.corpus is not None and config.optim.total_batch_size
    batch, corpus, optim = config.optim.total_batch_size, config.corpus, config.optim
    steps = horizon.steps(config.model, batch)
    if steps < 2:
        wanted = horizon.tokens(config.model, batch)
        raise ValueError(
            f"a horizon of {horizon} is {steps} steps of {batch:,} tokens, at least 2 are needed: "
            f"take {_smaller_batch(config, wanted)}a horizon of {2 * batch:,} tokens or more"
        )
    decay_steps = max(1, round(optim.decay_share * steps))
    tokens = steps * batch
    epochs = tokens / corpus.train_tokens if corpus.train_tokens else None
    return Budget(
        tokens=tokens,
        steps=steps,
        fork_step=steps - decay_steps if optim.schedule == "wsd" else steps,
        flops=tokens * config.model.flops_per_token,
        flops_6nd=6.0 * config.model.counts.with_head * tokens,
        epochs=epochs,
    )


def _shorter_warmup(config: TrainConfig, first: Budget, room: int) -> str:
    """The flags that make the warmup end in time: a quarter of the steps before the decay, where those are enough."""
    assert config.optim.total_batch_size
    batch = config.optim.total_batch_size
    smaller = _enough_steps(config, first.tokens)
    if room >= 4 or smaller >= batch:
        return f"--warmup-tokens {max(0, room // 4) * batch}"
    return f"--total-batch-size {smaller} --warmup-tokens {first.tokens // smaller // 5 * smaller}"


def _smaller_batch(config: TrainConfig, tokens: float) -> str:
    smaller = _enough_steps(config, tokens)
    return f"--total-batch-size {smaller} or " if 2 * smaller <= tokens else ""


def _enough_steps(config: TrainConfig, tokens: float) -> int:
    """The largest batch, in tokens, that still gives 5 x FEW_DECAY_STEPS steps; at least a row."""
    context = config.model.context
    return max(1, int(tokens / (5 * FEW_DECAY_STEPS) / context)) * context


def _too_many_epochs(config: TrainConfig, budgets: tuple[Budget, ...]) -> str | None:
    """Why the corpus does not suffice for the largest budget; None where it does."""
    assert config.corpus is not None and config.optim.total_batch_size
    largest, corpus, allowed = budgets[-1], config.corpus, config.data.max_epochs
    # A batch more than the allowed epochs is the rounding of a default horizon, not a wish for more.
    if corpus.train_tokens is None or largest.tokens - config.optim.total_batch_size <= allowed * corpus.train_tokens:
        return None
    return (
        f"a horizon of {largest.tokens:,} tokens passes {largest.epochs:.3g} times over the {corpus.train_tokens:,} "
        f"tokens of corpus {corpus.name!r}, more than {allowed:g}: take one of {allowed * corpus.train_tokens:,.0f} "
        "tokens or less, more text, or a larger --max-epochs"
    )
