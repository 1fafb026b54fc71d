"""Models with a shared prefix decode what they decode from whole prompts."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiers

import decoding_jax
from decoding_jax import Prompt, sharding, transforms
from decoding_jax.models import (
    GPT2,
    T5,
    Gemma,
    GemmaConfig,
    GPT2Config,
    Llama,
    LlamaConfig,
    T5Config,
    T5Decoder,
    T5DecoderConfig,
    with_shared_prefix,
)
from decoding_jax.models.stack import with_scanned_layers

VOCAB, SHARED, LENGTH = 64, 11, 6
SIZES: dict[str, Any] = {
    "vocab_size": VOCAB,
    "emb_dim": 32,
    "num_heads": 4,
    "mlp_dim": 48,
    "num_layers": 2,
}
ROTARY: dict[str, Any] = {**SIZES, "num_kv_heads": 2, "head_dim": 8, "max_positions": 64}
MODELS: dict[str, tuple[Any, Any]] = {
    "llama": (Llama, LlamaConfig(**ROTARY)),
    "gpt2": (GPT2, GPT2Config(**SIZES, max_positions=64)),
    # The windows end inside the prefix, inside the prompt and among the new tokens.
    "gemma": (
        Gemma,
        GemmaConfig(
            **ROTARY,
            window=8,
            window_pattern=(True, False),
            local_rope_theta=1_000.0,
            attention_soft_cap=20.0,
            logit_soft_cap=30.0,
        ),
    ),
    # The biases of keys are of their positions in the whole text.
    "falcon": (
        Llama,
        LlamaConfig(**ROTARY, linear_biases=True, rounded_biases=True, rotary_pattern=(False,)),
    ),
    "narrow": (Llama, LlamaConfig(**ROTARY, window=3)),
    "gpt_neox": (
        Llama,
        LlamaConfig(**ROTARY, norm="layer", parallel="two_norms", gated=False, rotary_dim=4),
    ),
    "t5_decoder": (T5Decoder, T5DecoderConfig(**SIZES, head_dim=8, num_buckets=8, max_distance=9)),
}
draw = np.random.default_rng(0)
PREFIX = draw.integers(1, VOCAB, SHARED, np.int32)
LENGTHS = np.array([7, 1, 4], np.int32)  # of what follows the prefix
REST = draw.integers(1, VOCAB, (3, 7), np.int32)
WHOLE = Prompt(
    jnp.asarray(np.concatenate([np.tile(PREFIX, (3, 1)), REST], 1)),
    jnp.asarray(SHARED + LENGTHS),
)


def network(name: str, **settings: Any) -> Any:
    """A random network whose logits are far from uniform."""
    kind, config = MODELS[name]
    config = dataclasses.replace(config, **settings)
    shapes = jax.eval_shape(lambda: kind.init(config, jax.random.key(0)).params)

    def spread(path: Any, leaf: jax.Array) -> jax.Array:
        label = jax.tree_util.keystr(path)
        noise = np.random.default_rng(len(label) + leaf.size).normal(0, 0.25, leaf.shape)
        is_scale = label.endswith("['scale']") and kind is not Gemma
        return jnp.asarray(noise + is_scale, "float32")

    return kind(jax.tree_util.tree_map_with_path(spread, shapes), config)


def shared(model: Any) -> Any:
    return with_shared_prefix(model, PREFIX)


def same(ours: Any, theirs: Any) -> None:
    ours, theirs = jax.device_get((ours, theirs))
    np.testing.assert_array_equal(ours.tokens, theirs.tokens)
    np.testing.assert_array_equal(ours.length, theirs.length)
    np.testing.assert_allclose(ours.log_prob, theirs.log_prob, atol=1e-4)


TRANSFORM = transforms.chain(
    transforms.temperature(0.9), transforms.repetition_penalty(1.3), transforms.top_k(20)
)


def run(strategy: str, model: Any, draft: Any = None) -> Any:
    key = jax.random.key(3)
    if strategy == "greedy":
        return decoding_jax.greedy(model, WHOLE, max_new_tokens=LENGTH)
    if strategy == "sample":
        return decoding_jax.sample(
            model, WHOLE, key, num_samples=2, max_new_tokens=LENGTH, transform=TRANSFORM
        )
    if strategy == "beam_search":
        return decoding_jax.beam_search(model, WHOLE, beam_size=3, max_new_tokens=LENGTH)
    if strategy == "best_k_search":
        return decoding_jax.best_k_search(model, WHOLE, k=2, budget=12, max_new_tokens=LENGTH)
    if strategy == "contrastive_search":
        return decoding_jax.contrastive_search(
            model, WHOLE, max_new_tokens=LENGTH, top_k=3, penalty_alpha=0.5
        )
    return decoding_jax.speculative_sample(
        model, draft, WHOLE, key, num_draft_tokens=2, max_new_tokens=LENGTH
    )


CASES = [
    *(
        pytest.param(name, strategy, settings, marks=pytest.mark.exhaustive)
        for name, strategy, settings in [
            ("llama", "beam_search", {}),
            ("llama", "sample", {"prefill_chunk": 3}),
            ("llama", "contrastive_search", {"prefill_chunk": 3}),
            ("gemma", "beam_search", {"scan_layers": True, "prefill_chunk": 3}),
            ("gpt2", "greedy", {}),
            ("falcon", "best_k_search", {"prefill_chunk": 3}),
            ("t5_decoder", "beam_search", {"prefill_chunk": 3}),
        ]
    ),
    *(
        pytest.param(name, strategy, settings, marks=pytest.mark.release)
        for name, strategy, settings in [
            ("llama", "sample", {}),
            ("narrow", "beam_search", {}),
            ("llama", "greedy", {}),
            ("llama", "best_k_search", {}),
            ("gpt_neox", "sample", {}),
            ("llama", "sample", {"scan_layers": True}),
            ("gpt2", "beam_search", {}),
            ("gemma", "sample", {}),
            ("gemma", "beam_search", {}),
        ]
    ),
]


@pytest.mark.release
@pytest.mark.parametrize(("name", "strategy", "settings"), CASES)
def test_strategies_decode_the_same_after_a_shared_prefix(
    name: str, strategy: str, settings: dict[str, Any]
) -> None:
    scanned = settings.pop("scan_layers", False)
    model = network(name, **settings)
    model = with_scanned_layers(model) if scanned else model
    same(run(strategy, shared(model)), run(strategy, model))


@pytest.mark.release
@pytest.mark.parametrize("name", tiers.values(exhaustive=["llama"], release=["gemma"]))
def test_drafts_with_and_without_the_prefix(name: str) -> None:
    model = network(name)
    plain = run("speculative_sample", model, model.early_exit(1))
    same(run("speculative_sample", shared(model), model.early_exit(1)), plain)
    same(run("speculative_sample", shared(model), shared(model).early_exit(1)), plain)


def test_prefill_returns_what_whole_prompts_do() -> None:
    model = network("llama")
    whole = jax.jit(lambda m: m.prefill(*WHOLE, lanes=2, slots=3, with_hidden=True))
    (ours, cache), (theirs, plain) = whole(shared(model)), whole(model)
    np.testing.assert_allclose(ours.logits, theirs.logits, atol=1e-4)
    for row, length in enumerate(WHOLE.length):
        np.testing.assert_allclose(
            ours.hidden[row, 0, :length], theirs.hidden[row, 0, :length], atol=1e-4
        )
    assert cache.prompt[0].key.shape[-2] == plain.prompt[0].key.shape[-2] - SHARED


@pytest.mark.exhaustive
def test_a_row_may_end_with_the_prefix_and_has_to_begin_with_it() -> None:
    model = network("llama")
    bound = shared(model)
    prompts = np.tile(PREFIX, (3, 1))
    prompts[2, 4] += 1

    @jax.jit
    def decode(model: Any, length: Any) -> Any:
        output, cache = model.prefill(jnp.asarray(prompts), length, lanes=1, slots=2)
        return output.logits, model.extend(cache, jnp.ones((3, 1, 1), jnp.int32), 0)[0].logits

    length = jnp.array([SHARED, SHARED - 1, SHARED])
    ours, theirs = decode(bound, length), decode(model, length)
    for after_prompt, expected in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(after_prompt[0], expected[0], atol=1e-4)
    assert np.isnan(ours[0][1:]).all()


@pytest.mark.release
@pytest.mark.parametrize("strategy", ["sample", "beam_search", "speculative_sample"])
def test_nothing_is_decoded_where_the_prefix_is_another(strategy: str) -> None:
    bound = with_shared_prefix(network("llama"), [*PREFIX[:-1], (PREFIX[-1] + 1) % VOCAB])
    assert not np.any(run(strategy, bound, bound.model.early_exit(1)).length)


@pytest.mark.release
@pytest.mark.parametrize("name", ["llama", "gemma"])
def test_bfloat16_runs(name: str) -> None:
    output = run("beam_search", shared(network(name, dtype="bfloat16")))
    assert np.isfinite(output.log_prob).all()


REFUSED: dict[str, tuple[Any, Any]] = {
    "model: expected a decoder-only model of decoding_jax.models with a shared prefix": (
        lambda: T5({}, T5Config(9, 8, 2, 4, 8, 1, 1)),
        [1],
    ),
    "model: expected one whose tokens do not see later ones with a shared prefix": (
        lambda: T5Decoder({}, T5DecoderConfig(**SIZES, head_dim=8, bidirectional_prompt=True)),
        [1],
    ),
    "tokens: expected a sequence of one token id or more, got float64[0]": (
        lambda: network("gpt2"),
        [],
    ),
    "tokens: expected ids from 0 to 63, got the id 64": (lambda: network("gpt2"), [1, 64]),
    "tokens: expected fewer than the 64 positions of the model, got 64": (
        lambda: network("gpt2"),
        [1] * 64,
    ),
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_cannot_be_shared_is_refused(message: str) -> None:
    make, tokens = REFUSED[message]
    with pytest.raises(ValueError) as error:
        with_shared_prefix(make(), tokens)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_a_prompt_without_room_is_refused() -> None:
    with pytest.raises(
        ValueError, match=r"prompt: expected at least the .* tokens of the shared prefix, got 4"
    ):
        shared(network("gpt2")).prefill(WHOLE.tokens[:, :4], WHOLE.length, lanes=1, slots=1)


@pytest.mark.release
@pytest.mark.parametrize("shape", tiers.values(exhaustive=[(2, 4)], release=[(8, 1), (1, 8)]))
def test_on_a_mesh(shape: tuple[int, int]) -> None:
    mesh = jax.make_mesh(shape, ("data", "model"))
    model = network("llama", num_heads=8)
    plain = run("greedy", model)
    same(run("greedy", shared(sharding.shard(model, mesh))), plain)
    same(run("greedy", sharding.shard(shared(model), mesh)), plain)
