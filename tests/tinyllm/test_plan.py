"""Configs, rules and plans against closed forms and the numbers of the design."""

from __future__ import annotations

import dataclasses
import math
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tinyllm import rules
from tinyllm.config import CorpusFacts, DataConfig, ModelConfig, OptimConfig, TrainConfig, changed, differences
from tinyllm.horizon import Horizon, parse_quantity
from tinyllm.plan import plan, resolution_warnings, resolve

CORPUS = CorpusFacts(
    name="text", digest="00ff", vocab_size=1024, seq_len=256, train_tokens=4_000_000, val_tokens=200_000
)
TINY = ModelConfig(depth=2, aspect_ratio=16, target_head_dim=16)


def tiny(*tokens: float, **optim: object) -> TrainConfig:
    settings = {"lr": 0.02, "total_batch_size": 2048, "warmup_tokens": 20480, **optim}
    return TrainConfig(
        model=TINY,
        optim=OptimConfig(**settings),  # type: ignore[arg-type]
        horizons=tuple(Horizon(value=t) for t in tokens),
    )


def resolved(config: TrainConfig) -> TrainConfig:
    return resolve(config, CORPUS, "fp32")


def test_counts_of_gpt2_small_shape() -> None:
    # GPT-2 small without biases, positions and norms: 12 x 12 d^2 + 2 V d, by hand.
    counts = ModelConfig(depth=12, vocab_size=50257, seq_len=1024).counts
    assert counts.attention + counts.mlp == 12 * 12 * 768**2
    assert counts.embedding == counts.head == 50257 * 768
    assert counts.total == 12 * 12 * 768**2 + 2 * 50257 * 768 + 24


def test_flops_per_token_of_windows_by_hand() -> None:
    model = ModelConfig(
        depth=4, aspect_ratio=32, target_head_dim=32, vocab_size=1000, seq_len=64, window_pattern="SL", n_kv_heads=2
    )
    d, kv = 128, 2 * 32
    matmuls = 4 * (d * d * 2 + 2 * d * kv + 8 * d * d) + 1000 * d
    assert model.windows == (32, 64, 32, 64)
    # forward: 2 FLOPs a multiply-add, scores and values each d x window; backward twice the forward
    assert model.flops_per_token == 3 * (2 * matmuls + sum(2 * 2 * d * w for w in (32, 64, 32, 64)))


def test_last_layer_sees_everything_and_head_dim_is_a_divisor() -> None:
    model = ModelConfig(depth=3, aspect_ratio=20, target_head_dim=16, vocab_size=64, seq_len=32, window_pattern="S")
    assert model.windows == (16, 16, 32)
    assert model.width == 60
    assert model.head_dim == 12  # the even divisors of 60 near 16 are 12 and 20; the smaller of two equally near
    assert model.n_heads == 5


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"depth": 0}, "depth 0"),
        ({"aspect_ratio": 7, "depth": 3}, "take an even --aspect-ratio"),
        ({"window_pattern": "SXL"}, "write it with S and L"),
        ({"n_kv_heads": 5}, r"take one of \[1, 2, 3, 6\]"),
        ({"vocab_size": 1}, "vocab_size 1"),
    ],
)
def test_impossible_models_are_refused_with_the_remedy(change: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ModelConfig(**{"depth": 12, **change})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "value"), [("200k", 2e5), ("1.5M", 1.5e6), ("2B", 2e9), ("3e17", 3e17), ("1_000", 1000.0), ("7", 7.0)]
)
def test_quantities(text: str, value: float) -> None:
    assert parse_quantity(text) == value


@pytest.mark.parametrize("text", ["", "k", "2x", "-5", "0", "nan", "inf", "1e999"])
def test_quantities_that_are_none(text: str) -> None:
    with pytest.raises(ValueError, match=r"quantity|positive"):
        parse_quantity(text)


def test_horizons_of_every_unit_agree() -> None:
    model = resolved(tiny(1e5)).model
    tokens = 1_024_000.0
    for horizon in (
        Horizon(value=tokens),
        Horizon(value=tokens / model.counts.with_head, unit="tokens_per_param"),
        Horizon(value=tokens * model.flops_per_token, unit="flops"),
        Horizon(value=tokens / 2048, unit="steps"),
    ):
        assert horizon.tokens(model, 2048) == pytest.approx(tokens, rel=1e-12)


@pytest.mark.parametrize(("n_budgets", "share"), [(2, 0.733), (3, 0.657), (4, 0.627), (5, 0.613), (8, 0.602)])
def test_a_trunk_costs_the_published_share_of_separate_runs(n_budgets: int, share: float) -> None:
    config = tiny(*(2048 * 1000 * 2.0**k for k in range(n_budgets)))
    config = dataclasses.replace(config, data=DataConfig(max_epochs=1e9))
    p = plan(resolved(config))
    assert p.trained_tokens / p.separate_tokens == pytest.approx(share, abs=1e-3)


def test_budgets_are_whole_steps_that_fit() -> None:
    p = plan(resolved(tiny(200e3, 400e3)))
    assert [b.steps for b in p.budgets] == [97, 195]  # 200,000 / 2048 = 97.66, 400,000 / 2048 = 195.3
    assert [b.tokens for b in p.budgets] == [97 * 2048, 195 * 2048]
    assert [b.decay_steps for b in p.budgets] == [19, 39]  # a fifth, rounded
    assert p.trunk_steps == 195 - 39


@given(st.integers(2, 10**7), st.sampled_from([2048, 2304, 9216]))
def test_a_horizon_of_whole_steps_keeps_every_step(steps: int, batch: int) -> None:
    config = tiny(float(steps * batch), total_batch_size=batch, warmup_tokens=0)
    config = dataclasses.replace(config, data=DataConfig(max_epochs=1e9))
    (budget,) = plan(resolved(config)).budgets
    assert budget.steps == steps


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (tiny(1000), r"1000 tokens is 0 steps of 2,048 .* take --total-batch-size 256 or a horizon of 4,096 tokens"),
        (tiny(200e3, 200.5e3), "round to the same 97 steps"),
        (tiny(200e3, 400e3, schedule="cosine"), "one horizon, not 2"),
        (tiny(22e3), "--warmup-tokens"),
        (tiny(17e6), "more than 4: take one of 16,000,000 tokens or less"),
        (tiny(200e3, total_batch_size=2000), "take 2048"),
    ],
)
def test_impossible_plans_are_refused_with_the_remedy(config: TrainConfig, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        plan(resolved(config))


def test_remedies_work() -> None:
    plan(resolved(tiny(22e3, warmup_tokens=2 * 2048)))  # what the warmup's message proposes: a quarter of the fork
    plan(resolved(tiny(1000, total_batch_size=256, warmup_tokens=0)))


def test_vocabulary_and_context_come_from_the_corpus_or_are_refused() -> None:
    assert resolved(tiny(200e3)).model.vocab_size == 1024
    with pytest.raises(ValueError, match="tinyllm prepare --seq-len 128"):
        resolved(changed(tiny(200e3), "model.seq_len", 128))
    with pytest.raises(ValueError, match="tinyllm prepare --vocab-size 50"):
        resolved(changed(tiny(200e3), "model.vocab_size", 50))


def test_default_horizon_is_20_tokens_a_parameter_clipped_to_the_epochs_with_a_warning() -> None:
    small = TrainConfig(model=ModelConfig(depth=1, aspect_ratio=16, target_head_dim=16))
    n = resolved(small).model.counts.with_head
    assert plan(resolved(small)).budgets[-1].tokens == pytest.approx(20 * n, rel=0.01)
    assert not any("clipped" in w for w in resolution_warnings(small, CORPUS))
    large = TrainConfig(model=ModelConfig(depth=12))
    assert plan(resolved(large)).budgets[-1].tokens == pytest.approx(4 * 4_000_000, rel=0.01)
    assert any("clipped to 4 epochs" in w for w in resolution_warnings(large, CORPUS))


def test_json_round_trip_and_unknown_keys() -> None:
    config = resolved(tiny(200e3, 400e3))
    assert TrainConfig.from_json(config.to_json()) == config
    with pytest.raises(ValueError, match="mystery"):
        TrainConfig.from_json(config.to_json().replace('"depth":', '"mystery":1,"depth":'))


def test_run_id_names_what_changes_weights_and_nothing_else() -> None:
    config = tiny(200e3, 400e3)
    run_id = resolved(config).run_id
    assert run_id.startswith("d2-")
    same = [
        dataclasses.replace(config, horizons=(Horizon(value=800e3),)),
        changed(config, "data.data", "/elsewhere"),
        changed(config, "data.max_epochs", 9.0),
        # what a rule would choose, said aloud
        changed(config, "optim.beta2", rules.beta2(2048)),
        changed(config, "model.n_kv_heads", 2),
    ]
    assert {resolved(c).run_id for c in same} == {run_id}
    other = [
        changed(config, "seed", 1),
        changed(config, "optim.lr", 0.021),
        changed(config, "optim.decay_share", 0.1),
        changed(config, "model.depth", 3),
        changed(config, "data.eval_tokens", 1024),
        changed(config, "precision", "bf16"),
    ]
    ids = {resolved(c).run_id for c in other} | {
        resolve(config, dataclasses.replace(CORPUS, digest="01"), "fp32").run_id
    }
    assert len(ids - {run_id}) == len(other) + 1
    cosine = [dataclasses.replace(tiny(t, schedule="cosine")) for t in (200e3, 400e3)]
    assert len({resolved(c).run_id for c in cosine}) == 2  # there the horizon shapes every step


def test_one_training_has_one_run_id_however_it_is_written() -> None:
    cosine = tiny(100 * 2048, schedule="cosine")
    one = [
        cosine,
        dataclasses.replace(cosine, horizons=(Horizon(value=100 * 2048 + 5),)),  # the same whole steps
        dataclasses.replace(cosine, horizons=(Horizon(value=100, unit="steps"),)),
        changed(cosine, "optim.grad_clip", 1),
        changed(cosine, "optim.decay_share", 0.5),  # of wsd alone
    ]
    assert len({resolved(c).run_id for c in one}) == 1
    assert not any(differences(resolved(cosine), resolved(c)) for c in one)
    adamw = tiny(200e3, optimizer="adamw")
    other = changed(changed(adamw, "optim.momentum", 0.5), "optim.cautious", False)
    assert resolved(adamw).run_id == resolved(other).run_id
    assert not resolved(adamw).optim.cautious
    assert resolved(changed(tiny(200e3), "optim.cautious", False)).run_id != resolved(tiny(200e3)).run_id
    renamed = resolve(adamw, dataclasses.replace(CORPUS, name="copy"), "fp32")
    assert not differences(resolved(adamw), renamed)
    assert differences(resolved(adamw), resolved(changed(adamw, "optim.lr", 0.5)))


def test_a_group_is_everything_but_the_lr() -> None:
    config = tiny(200e3)
    groups = {resolved(changed(config, "optim.lr", lr)).group for lr in (0.01, 0.02, 0.04)}
    assert len(groups) == 1
    assert resolved(changed(config, "seed", 1)).group not in groups


def test_a_given_lr_is_the_lr_applied_and_moves_the_others_by_ratio() -> None:
    low, high = (plan(resolved(tiny(200e3, lr=lr))).peak_lrs for lr in (0.01, 0.02))
    assert (low.hidden, high.hidden) == (0.01, 0.02)
    assert high.embedding / low.embedding == pytest.approx(2)
    # embeddings: 15 x, scaled by the root of 768 / width
    assert low.embedding == pytest.approx(0.01 * 15 * math.sqrt(768 / 32))
    given = plan(resolved(tiny(200e3, embedding_lr=0.5))).peak_lrs
    assert given.embedding == 0.5


def test_rules_at_their_reference_point() -> None:
    reference = rules.REFERENCE_MODEL
    tokens = 20.0 * reference.counts.with_head
    assert rules.batch_tokens(reference, tokens) == 2**19
    assert rules.hidden_lr("muon", 2**19) == rules.Derived(value=0.02)
    assert rules.hidden_lr("muon", 2**17).value == pytest.approx(0.01)
    assert rules.adamw_width_scale(768) == rules.Derived(value=1)
    assert rules.weight_decay("muon", 12, 2**19) == rules.Derived(value=0.2)
    assert rules.beta2(2**19) == pytest.approx(0.95, abs=2e-4)
    # half as large a batch forgets half as fast a step: the same half-life in tokens
    assert rules.beta2(2**18) ** 2 == pytest.approx(rules.beta2(2**19))


def test_weight_decay_times_lr_stays_small_at_every_depth() -> None:
    for depth in range(2, 49):
        corpus = dataclasses.replace(CORPUS, vocab_size=32768, seq_len=2048, train_tokens=None)
        p = plan(resolve(TrainConfig(model=ModelConfig(depth=depth)), corpus, "bf16"))
        assert p.peak_lrs.hidden * p.weight_decay <= 0.01, depth
    clamped = resolution_warnings(TrainConfig(model=ModelConfig(depth=2)), CORPUS)
    assert any("would be 7.2" in w and "clamped to 0.8" in w for w in clamped)


@given(st.floats(1e5, 1e13))
def test_the_batch_rule_has_no_step_wider_than_a_sixteenth(tokens: float) -> None:
    model = rules.REFERENCE_MODEL
    exact = 2**19 * (tokens / (20 * model.counts.with_head)) ** 0.383
    got = rules.batch_tokens(model, tokens)
    assert got % 2048 == 0
    if exact > 8 * 2048:
        assert abs(got / exact - 1) <= 1 / 16
    else:
        assert abs(got - exact) <= 2048


def test_rules_far_from_their_reference_warn_unless_their_value_is_given() -> None:
    def warned(width: int, **optim: float) -> list[str]:
        model = ModelConfig(depth=12, aspect_ratio=width // 12, target_head_dim=12)
        asked = TrainConfig(model=model, optim=OptimConfig(weight_decay=0.1, **optim), horizons=(Horizon(value=1e6),))  # type: ignore[arg-type]
        return [w for w in resolution_warnings(asked, CORPUS) if "is a guess" in w]

    assert warned(768, total_batch_size=2**15) == warned(768, total_batch_size=2**23) == []  # 16 x off, no more
    (low,) = warned(768, total_batch_size=2048)
    assert "the LR 0.00125 is a guess" in low and "2,048 tokens a batch, 256 x below the 524,288" in low
    assert "give --lr; `python -m sweeps.lr_grid`" in low
    (high,) = warned(768, total_batch_size=2**24)
    assert "32 x above" in high
    assert warned(768, total_batch_size=2048, lr=0.02) == []
    assert warned(48, total_batch_size=2**19) == []
    (narrow,) = warned(24, total_batch_size=2**19)
    assert "24 width, 32 x below the 768" in narrow and "--embedding-lr and --head-lr" in narrow
    assert warned(24, total_batch_size=2**19, embedding_lr=0.1) == [narrow]  # the head's LR still hangs on the rule
    assert warned(24, total_batch_size=2**19, embedding_lr=0.1, head_lr=0.1) == []


def test_wide_budgets_and_coarse_decays_warn() -> None:
    assert any("--separate-trunks" in w for w in plan(resolved(tiny(100e3, 1.8e6))).warnings)
    assert not any("--separate-trunks" in w for w in plan(resolved(tiny(200e3, 3.1e6))).warnings)
    assert any("decays over 9 steps" in w for w in plan(resolved(tiny(45 * 2048.0))).warnings)


def test_light_modules_load_neither_torch_nor_ray() -> None:
    code = (
        "import sys, tinyllm.config, tinyllm.plan, tinyllm.rules, tinyllm.record;"
        "assert not {'torch', 'ray'} & set(sys.modules), 'loaded'"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
