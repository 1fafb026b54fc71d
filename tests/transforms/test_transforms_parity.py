"""Comparison with the logits processors of transformers (PyTorch), for every one that it has."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import transformers.generation.logits_process as process

from decoding_jax import transforms
from decoding_jax.base import Prefix

ROWS, VOCAB, PROMPT, NEW = 6, 50, 7, 5


@pytest.fixture(scope="module")
def case():
    rng = np.random.default_rng(0)
    # A permutation of distinct numbers: the processors leave ties undefined.
    logits = np.stack([rng.permutation(VOCAB) for _ in range(ROWS)]) * 0.17 - 3.0
    logits = (logits * rng.uniform(0.5, 1.5, (ROWS, 1))).astype(np.float32)
    text = rng.integers(0, 4, (ROWS, PROMPT + NEW))
    return logits, text


def ours(transform, logits, text, prompt=PROMPT):
    """Our logits for a text split after ``prompt`` tokens; both parts are padded on the right."""
    pad = ((0, 0), (0, 2))
    tokens = jnp.asarray(np.pad(text[:, prompt:], pad), jnp.int32)[:, None, None, :]
    prefix = Prefix(
        jnp.asarray(np.pad(text[:, :prompt], pad), jnp.int32),
        jnp.full((len(text),), prompt, jnp.int32),
        tokens,
        jnp.full(tokens.shape[:-1], text.shape[1] - prompt, jnp.int32),
    )
    return np.asarray(jax.jit(transform)(jnp.asarray(logits)[:, None, None, :], prefix))[:, 0, 0]


def theirs(processor, logits, text):
    return processor(torch.tensor(text), torch.tensor(logits)).numpy()


WARPERS = [
    ("temperature", 0.7, lambda: process.TemperatureLogitsWarper(0.7)),
    ("top_k", 7, lambda: process.TopKLogitsWarper(7)),
    ("top_k", 500, lambda: process.TopKLogitsWarper(500)),
    ("top_p", 0.9, lambda: process.TopPLogitsWarper(0.9)),
    ("top_p", 0.05, lambda: process.TopPLogitsWarper(0.05)),
    ("min_p", 0.11, lambda: process.MinPLogitsWarper(0.11)),
    ("typical", 0.9, lambda: process.TypicalLogitsWarper(0.9)),
    ("typical", 0.2, lambda: process.TypicalLogitsWarper(0.2)),
    ("epsilon", 0.03, lambda: process.EpsilonLogitsWarper(0.03)),
    ("epsilon", 0.9, lambda: process.EpsilonLogitsWarper(0.9)),
    ("eta", 0.05, lambda: process.EtaLogitsWarper(0.05)),
    ("eta", 0.5, lambda: process.EtaLogitsWarper(0.5)),
    ("repetition_penalty", 1.3, lambda: process.RepetitionPenaltyLogitsProcessor(1.3)),
    ("repetition_penalty", 0.8, lambda: process.RepetitionPenaltyLogitsProcessor(0.8)),
    ("no_repeat_ngram", 1, lambda: process.NoRepeatNGramLogitsProcessor(1)),
    ("no_repeat_ngram", 2, lambda: process.NoRepeatNGramLogitsProcessor(2)),
    ("no_repeat_ngram", 3, lambda: process.NoRepeatNGramLogitsProcessor(3)),
    (
        "banned_sequences",
        ((0, 1), (1, 2, 3), (9,), (2, 0), (3, 3, 2)),
        lambda: process.NoBadWordsLogitsProcessor([[0, 1], [1, 2, 3], [9], [2, 0], [3, 3, 2]]),
    ),
    (
        "logit_bias",
        {3: 2.5, 17: -4.0},
        lambda: process.SequenceBiasLogitsProcessor({(3,): 2.5, (17,): -4.0}),
    ),
]


@pytest.mark.parametrize(
    ("name", "setting", "processor"), WARPERS, ids=[f"{n}-{s}" for n, s, _ in WARPERS]
)
def test_warpers_and_processors(case, name, setting, processor):
    logits, text = case
    got = ours(getattr(transforms, name)(setting), logits, text)
    want = theirs(processor(), logits, text)
    np.testing.assert_array_equal(got == -np.inf, want == -np.inf)
    np.testing.assert_allclose(got, want, rtol=1e-6)


def test_repetition_penalty_without_the_prompt(case):
    logits, text = case
    transform = transforms.repetition_penalty(1.3, include_prompt=False)
    processor = process.RepetitionPenaltyLogitsProcessor(1.3, prompt_ignore_length=PROMPT)
    np.testing.assert_allclose(
        ours(transform, logits, text), theirs(processor, logits, text), rtol=1e-6
    )


@pytest.mark.parametrize("minimum", [NEW, NEW + 1])
def test_min_length(case, minimum):
    logits, text = case
    processor = process.MinNewTokensLengthLogitsProcessor(PROMPT, minimum, [4, 9])
    got = ours(transforms.min_length(minimum, (4, 9)), logits, text)
    np.testing.assert_array_equal(got, theirs(processor, logits, text))


@pytest.mark.parametrize("length", [1, 2])
def test_forced_first_token(case, length):
    """transformers forces a token after one token of text, the start token of a decoder."""
    logits, text = case
    processor = process.ForcedBOSTokenLogitsProcessor(8)
    got = ours(transforms.forced_first_token(8), logits, text[:, :length], prompt=1)
    np.testing.assert_array_equal(got, theirs(processor, logits, text[:, :length]))


@pytest.mark.parametrize("maximum", [NEW, NEW + 1, NEW + 2])
def test_forced_last_token(case, maximum):
    logits, text = case
    processor = process.ForcedEOSTokenLogitsProcessor(PROMPT + maximum, 8)
    got = ours(transforms.forced_last_token(8, maximum), logits, text)
    np.testing.assert_array_equal(got, theirs(processor, logits, text))


def test_a_chain_of_warpers(case):
    logits, text = case
    processors = [
        process.RepetitionPenaltyLogitsProcessor(1.2),
        process.TemperatureLogitsWarper(0.8),
        process.TopKLogitsWarper(20),
        process.TopPLogitsWarper(0.85),
    ]
    transform = transforms.chain(
        transforms.repetition_penalty(1.2),
        transforms.temperature(0.8),
        transforms.top_k(20),
        transforms.top_p(0.85),
    )
    want = logits
    for processor in processors:
        want = theirs(processor, want, text)
    np.testing.assert_allclose(ours(transform, logits, text), want, rtol=1e-6)
