"""Speculative decoding with different conditions in every row, including the hardest combinations.

Every sequence is checked against its model: each token is allowed, and the sequence ends exactly at
a stop condition, a dead end or the row's limit.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiers

import decoding_jax
from decoding_jax import Prompt, Stop, loop, strategies, transforms
from decoding_jax.base import Prefix
from decoding_jax.loop import stopping
from decoding_jax.models import GPT2, GPT2Config
from decoding_jax.ops.logits import clean, log_prob_of
from decoding_jax.pytrees import pytree
from decoding_jax.strategies.speculative import Bigram, Heuristic, NextToken
from decoding_jax.testing import TableLM, same_bits
from decoding_jax.testing.certificate.problems import DeadEnds
from decoding_jax.testing.near_ties import greedy_differences

ROWS, LANES, LENGTH, VOCAB, WIDTH = 32, 3, 11, 5, 4
SEEDS = 12
DRAFT = TableLM.random(jax.random.key(77), VOCAB, sharpness=2.0)
SPARSE = TableLM.random(jax.random.key(78), VOCAB, sharpness=2.0, zeros=0.4)


def problem(seed):
    """A random model, and for every row a prompt, stop conditions, dead ends and penalties."""
    draw = np.random.default_rng(seed)
    key = jax.random.key(seed)
    model = TableLM.random(key, VOCAB, sharpness=float(draw.choice([0.5, 3.0])), zeros=0.2)
    if seed % 4 == 1:
        model = TableLM.random(key, VOCAB, ties=True)
    if seed % 4 == 2:
        model = dataclasses.replace(model, table=jnp.zeros_like(model.table))
    tokens = draw.integers(0, VOCAB, (ROWS, WIDTH), dtype=np.int32)
    prompt = Prompt(jnp.asarray(tokens), jnp.asarray(draw.integers(1, WIDTH + 1, ROWS)))
    sequences = draw.integers(0, VOCAB, (ROWS, 2, 3), dtype=np.int32)
    cut = np.arange(3) < draw.integers(0, 4, (ROWS, 2))[..., None]
    stop = Stop(
        eos_ids=draw.choice([-1, -1, 0, 1, 2, 3, 4], (ROWS, 2)).astype(np.int32),
        sequences=np.where(cut, -1, sequences),
        min_new_tokens=draw.integers(0, 6, ROWS, dtype=np.int32),
        max_new_tokens=draw.choice([0, 1, 2, 5, 8, 10, 11, 11, 20], ROWS).astype(np.int32),
    )
    transform = transforms.chain(
        DeadEnds(draw.choice([-1] + [9] * 12 + [0, 1, 2, 3, 4], ROWS).astype(np.int32)),
        transforms.repetition_penalty(draw.choice([1.0, 1.3, 0.5], ROWS).astype(np.float32)),
        transforms.min_p(draw.choice([0.0, 0.0, 0.2, 0.5], ROWS).astype(np.float32)),
    )
    return model, prompt, stop, transform


@jax.jit
def evaluate(model, prompt, tokens, stop, transform):
    """For every position: whether it is a dead end, its token allowed, the end; its log-prob."""
    first, cache = model.prefill(*prompt, lanes=LANES, slots=LENGTH)
    later, _ = model.extend(cache, tokens, 0)
    first = jnp.broadcast_to(first.logits, (ROWS, LANES, 1, VOCAB))
    logits = clean(jnp.concatenate([first, later.logits[:, :, :-1]], axis=2))
    position = jnp.broadcast_to(jnp.arange(LENGTH)[None, None], tokens.shape)
    paths = jnp.broadcast_to(tokens[:, :, None], (*tokens.shape, LENGTH))
    allowed = stopping.ban_end_tokens(stop, logits, position)
    allowed = clean(transform(allowed, Prefix(*prompt, paths, position)))
    is_allowed = jnp.take_along_axis(allowed, tokens[..., None], -1)[..., 0] > -jnp.inf
    ends = jax.vmap(lambda token, n: stopping.ends(stop, token, tokens, n), (2, 2), 2)
    return (
        allowed.max(-1) == -jnp.inf,
        is_allowed,
        ends(tokens, position + 1),
        log_prob_of(logits, tokens),
    )


def check(output, model, prompt, stop, transform):
    dead, is_allowed, ends, log_prob = map(
        np.asarray, evaluate(model, prompt, output.tokens, stop, transform)
    )
    limit = np.minimum(np.asarray(stop.max_new_tokens), LENGTH)[:, None, None]
    position = np.arange(LENGTH)
    none_before = lambda x: np.cumsum(x, -1) - x == 0  # noqa: E731
    real = (position < limit) & (np.cumsum(dead, -1) == 0) & none_before(ends)
    assert (real.sum(-1) == output.length).all()
    assert is_allowed[real].all()
    assert ((real & ends).any(-1) == output.finished).all()
    assert (np.where(real, 0, output.tokens) == 0).all()
    want = np.where(real, log_prob, 0).sum(-1)
    np.testing.assert_allclose(output.log_prob, want, rtol=2e-5, atol=2e-6)
    assert (output.info.emitted == np.maximum(output.length - 1, 0)).all()
    assert (output.info.accepted + output.info.rejected <= output.info.emitted).all()
    assert (output.info.accepted <= output.info.proposed).all()


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("verifier", "drafter", "settings"),
    [
        pytest.param("block", SPARSE, {"num_draft_tokens": 4}, marks=pytest.mark.release),
        ("coded_token", NextToken(np.array([2, 3, -1, 1, 0])), {"num_draft_tokens": 16}),
        pytest.param(
            "code",
            Bigram(SPARSE.table[0, 0]),
            {"num_draft_tokens": Heuristic(max_draft_tokens=6, first=0)},
            marks=pytest.mark.release,
        ),
        pytest.param(
            "token",
            DRAFT,
            {"num_draft_tokens": 12, "num_drafts": 2},
            marks=pytest.mark.exhaustive,
        ),
        pytest.param(
            "block",
            DRAFT,
            {"num_draft_tokens": 12, "num_drafts": 3},
            marks=pytest.mark.exhaustive,
        ),
    ],
    ids=["block", "coded_token", "code", "tree", "tree by block"],
)
def test_every_text_is_allowed_and_ends_where_it_should(verifier, drafter, settings):
    """12 models with 32 rows of 3 lanes; half of the models are flat or have many ties."""
    for seed in range(SEEDS):
        model, prompt, stop, transform = problem(seed)
        common = {"max_new_tokens": LENGTH, "stop": stop, "transform": transform}
        key = jax.random.key(seed)
        output = decoding_jax.speculative_sample(
            model, drafter, prompt, key, num_samples=LANES, verifier=verifier, **settings, **common
        )
        check(output, model, prompt, stop, transform)
        if verifier == "code":
            want = decoding_jax.arithmetic_sample(model, prompt, key, num_samples=LANES, **common)
            assert same_bits(output.tokens, want.tokens)


PROMPT = Prompt(np.array([[1, 2, 3], [4, 0, 0]], np.int32), np.array([3, 1], np.int32))
SHORT = {"num_samples": 4, "max_new_tokens": 6}


def speculate(verifier="token", model=SPARSE, drafter=DRAFT, prompt=PROMPT, **settings):
    settings = {"num_draft_tokens": 3, **SHORT, **settings}
    key = jax.random.key(1)
    return decoding_jax.speculative_sample(
        model, drafter, prompt, key, verifier=verifier, **settings
    )


@pytest.mark.exhaustive
@pytest.mark.parametrize("verifier", ["token", pytest.param("block", marks=pytest.mark.exhaustive)])
def test_a_guess_outside_the_vocabulary_is_ignored(verifier):
    got = speculate(verifier, drafter=NextToken(np.full(VOCAB, VOCAB, np.int32)))
    assert (got.tokens < VOCAB).all()
    assert (got.info.proposed == 0).all()


@pytest.mark.release
def test_a_row_without_a_prompt_harms_no_other():
    """Lengths that are known are refused; traced ones are not looked at."""
    empty = Prompt(PROMPT.tokens, jnp.array([3, 0]))
    with pytest.raises(ValueError, match=r"prompt.length: expected 1 to P, 3, got 0 in row 1"):
        speculate(prompt=empty)
    tokens = jax.jit(lambda prompt: speculate(prompt=prompt).tokens)(empty)
    assert same_bits(tokens[0], speculate().tokens[0])


@pytest.mark.release
@pytest.mark.parametrize("verifier", ["token", "block"])
def test_a_tree_of_drafts_is_streamed(verifier):
    *early, last = loop.stream(
        strategies.speculative_sample,
        SPARSE,
        PROMPT,
        jax.random.key(1),
        drafter=DRAFT,
        num_draft_tokens=3,
        num_drafts=2,
        verifier=verifier,
        **SHORT,
    )
    assert len(early) > 1
    assert same_bits(last, speculate(verifier, num_drafts=2))
    for part in early:
        real = np.arange(SHORT["max_new_tokens"]) < np.asarray(part.length)[..., None]
        assert (np.where(real, part.tokens - last.tokens, 0) == 0).all()


def gpt2(seed, vocab_size=11, **settings):
    config = GPT2Config(vocab_size, 8, num_heads=2, mlp_dim=8, num_layers=1, **settings)
    return GPT2.init(config, jax.random.key(seed))


@pytest.mark.release
@pytest.mark.parametrize("num_drafts", tiers.values(exhaustive=[2], release=[1]))
def test_a_network_with_just_enough_positions_equals_one_with_more(num_drafts):
    """Prompt and new tokens fill the 8 positions; blocks are longer than the remaining ones."""

    def room(model, size):
        table = jnp.pad(model.params["position_embedder"]["embedding"], ((0, size), (0, 0)))
        params = {**model.params, "position_embedder": {"embedding": table}}
        return dataclasses.replace(
            model,
            params=params,
            config=dataclasses.replace(model.config, max_positions=8 + size),
        )

    settings = {"num_drafts": num_drafts, "num_draft_tokens": 5}
    small = [gpt2(seed, max_positions=8) for seed in (0, 1)]
    full = speculate(model=small[0], drafter=small[1], **settings)
    wide = speculate(model=room(small[0], 40), drafter=room(small[1], 40), **settings)
    assert same_bits(full.tokens, wide.tokens)
    assert (full.length == 6).all()


WIDE = 97  # Wide enough for a vectorised maximum, which may lose NaN.


@pytree
@dataclasses.dataclass(frozen=True)
class Spoiled:
    """A model with ``value`` as some logits in every other row, and as all after some tokens."""

    model: TableLM
    value: Any

    vocab_size, ragged, tree, max_positions = WIDE, True, False, None

    def prefill(self, tokens, length, **settings):
        output, cache = self.model.prefill(tokens, length, **settings)
        return self.spoil(output, jnp.zeros((len(tokens), 1, 1), jnp.int32)), cache

    def extend(self, cache, tokens, start, visible=None, position=None):
        output, cache = self.model.extend(cache, tokens, start, visible, position)
        return self.spoil(output, tokens), cache

    def spoil(self, output, tokens):
        row = jnp.arange(len(tokens))[:, None, None, None]
        every_third = (jnp.arange(WIDE) % 3 == 2)[None, None, None]
        bad = every_third & (row % 2 == 0) | (tokens % 8 == 3)[..., None]
        return output._replace(logits=jnp.where(bad, self.value, output.logits), hidden=None)


@pytest.mark.release
@pytest.mark.parametrize(
    "verifier",
    [
        *tiers.values(exhaustive=["token"], release=["gumbel", "code", "greedy", "coded_token"]),
        pytest.param("block", marks=[pytest.mark.optimized, pytest.mark.release]),
    ],
)
def test_logits_that_are_not_numbers_are_cleaned_as_elsewhere(verifier):
    """Plus infinity is the largest float; NaN bans a token of the draft, and ends a sequence.

    Every row is treated independently.
    """
    prompt = Prompt(jnp.array([[1, 2], [4, 0], [0, 0], [3, 1]]), jnp.array([2, 1, 1, 2]))
    wide = TableLM.random(jax.random.key(78), WIDE, sharpness=2.0, zeros=0.4)
    flat = dataclasses.replace(wide, table=wide.table / 2)

    def speculate_with(value, least, of_draft=None):
        return decoding_jax.speculative_sample(
            Spoiled(wide, jnp.float32(value)),
            Spoiled(flat, jnp.float32(value if of_draft is None else of_draft)),
            prompt,
            jax.random.key(3),
            num_samples=8,
            num_draft_tokens=3,
            verifier=verifier,
            max_new_tokens=LENGTH,
            stop=Stop(eos_ids=(1,), min_new_tokens=least),
        )

    largest = jnp.finfo(jnp.float32).max
    for least in (0, 2):
        banned = speculate_with(-jnp.inf, least)
        assert same_bits(banned, speculate_with(-jnp.inf, least, of_draft=jnp.nan))
        assert same_bits(speculate_with(jnp.inf, least), speculate_with(largest, least))
        assert not (np.asarray(banned.tokens)[::2] % 3 == 2).any()
        ended = jax.device_get(speculate_with(jnp.nan, least))
        assert ended.nan_logits[::2].all()
        assert not ended.length[::2].any()
        tokens, length = jax.device_get((banned.tokens, banned.length))
        bans_all = (tokens % 8 == 3) & (np.arange(LENGTH) == length[..., None] - 1)
        want = bans_all.any(-1) & ~np.asarray(banned.finished) & (length < LENGTH)
        np.testing.assert_array_equal(ended.nan_logits[1::2], want[1::2])
        np.testing.assert_array_equal(ended.tokens[1::2], tokens[1::2])


@pytest.mark.release
def test_a_wide_vocabulary_in_bfloat16_with_a_draft_in_float32():
    """256,000 tokens: greedy except for near-ties of bfloat16; most drafts are accepted."""
    draft = gpt2(0, 256_000, max_positions=16)
    config = dataclasses.replace(draft.config, dtype="bfloat16")
    target = dataclasses.replace(draft, config=config)
    got = speculate("greedy", target, draft, num_samples=1)
    want = decoding_jax.greedy(target, PROMPT, max_new_tokens=6)
    spread = np.ptp(target.prefill(*PROMPT, lanes=1, slots=1)[0].logits)
    assert all(d.margin < spread / 128 for d in greedy_differences(target, PROMPT, got, want))
    assert got.info.acceptance_rate > 0.5
    sampled = speculate("block", target, draft, num_samples=2)
    assert (sampled.length == 6).all()
    assert np.isfinite(sampled.log_prob).all()
    assert (np.asarray(sampled.tokens) < 256_000).all()
    assert sampled.info.acceptance_rate > 0.9
