"""Beam search wide enough for all sequences, against enumeration; of width one, against greedy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiers

import decoding_jax
from decoding_jax import GNMTPenalty, Prompt, Stop, transforms
from decoding_jax.testing import TableLM, same_bits
from decoding_jax.testing.certificate.enumeration import enumerate_distribution

VOCAB, LENGTH = 3, 4
KEY = jax.random.key(1)
MODEL = TableLM.random(jax.random.key(0), VOCAB)
PROMPT = Prompt(
    np.array([[1, 2, 0], [2, 1, 0], [1, 0, 0]], np.int32), np.array([3, 2, 1], np.int32)
)
STOP = Stop(eos_ids=(0,), sequences=((2, 2),), min_new_tokens=(0, 2, 0), max_new_tokens=(4, 4, 3))
EVERYTHING = 3 + 4 + 8 + 16 + 81  # more than there are sequences of up to four tokens


def exhaustive(penalty, row, transform=None, model=MODEL):
    """Every sequence of a row as (score, tokens, finished), best first."""
    distribution = enumerate_distribution(
        model, PROMPT, row, max_new_tokens=LENGTH, transform=transform, stop=STOP
    )
    divisor = np.asarray(penalty(jnp.maximum(jnp.asarray(distribution.length), 1)), np.float64)
    score = distribution.log_prob / divisor
    order = np.argsort(-score, kind="stable")
    return [
        (
            score[i],
            distribution.tokens[i, : distribution.length[i]].tolist(),
            distribution.finished[i],
        )
        for i in order
    ]


@pytest.mark.parametrize(
    "early_stopping",
    tiers.values(exhaustive=[False, "never"], release=[True]),
)
def test_a_width_that_holds_everything_is_exhaustive_search(early_stopping):
    exponents = np.array([0.0, 1.0, -0.5], np.float32)
    for penalties in (exponents, exponents[[1, 2, 0]], np.float32([0.7, 2.0, 0.3])):
        output = decoding_jax.beam_search(
            MODEL,
            PROMPT,
            beam_size=EVERYTHING,
            max_new_tokens=LENGTH,
            length_penalty=penalties,
            early_stopping=early_stopping,
            stop=STOP,
        )
        for row, exponent in enumerate(penalties):
            check_exhaustive(output, row, decoding_jax.PowerPenalty(float(exponent)))


def check_exhaustive(output, row, penalty, transform=None, model=MODEL):
    output, want = jax.device_get(output), exhaustive(penalty, row, transform, model)
    exists = np.asarray(output.score[row]) > -np.inf
    assert exists.sum() == len(want)
    assert not exists[len(want) :].any()
    for n, (score, tokens, finished) in enumerate(want):
        assert output.tokens[row, n, : len(tokens)].tolist() == tokens
        assert output.length[row, n] == len(tokens)
        assert output.finished[row, n] == finished
        np.testing.assert_allclose(output.score[row, n], score, rtol=1e-5)
    for n in range(len(want), output.tokens.shape[1]):
        assert output.length[row, n] == 0
        assert not output.finished[row, n]
        assert output.log_prob[row, n] == -np.inf
        assert not output.tokens[row, n].any()


@pytest.mark.exhaustive
def test_exhaustive_with_the_gnmt_penalty_and_bans():
    penalty = GNMTPenalty(0.6)
    ban = transforms.banned_sequences(((1, 0), (1, 1), (1, 2)))  # a dead end after token 1
    output = decoding_jax.beam_search(
        MODEL,
        PROMPT,
        beam_size=EVERYTHING,
        max_new_tokens=LENGTH,
        length_penalty=penalty,
        transform=ban,
        stop=STOP,
    )
    for row in range(3):
        want = exhaustive(penalty, row, ban)
        check_exhaustive(output, row, penalty, ban)
        assert not all(finished for _, _, finished in want)


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("early_stopping", "penalty"),
    [(True, 1.0), pytest.param(False, 0.0, marks=pytest.mark.exhaustive)],
)
@pytest.mark.parametrize(
    "name", tiers.values("beam_search", "beam_sample", release=["diverse_beam_search"])
)
def test_width_one_is_greedy(name, early_stopping, penalty):
    model = TableLM.random(jax.random.key(3), 7)
    stop = Stop(eos_ids=(0, 1), min_new_tokens=(1, 0, 3))
    greedy = decoding_jax.greedy(model, PROMPT, max_new_tokens=8, stop=stop)
    key = (KEY,) if name == "beam_sample" else ()
    settings = {"num_groups": 1} if name == "diverse_beam_search" else {}
    if name == "beam_sample":  # of which the first candidate is certain
        settings["transform"] = transforms.top_k(1)
    output = getattr(decoding_jax, name)(
        model,
        PROMPT,
        *key,
        beam_size=1,
        max_new_tokens=8,
        stop=stop,
        length_penalty=penalty,
        early_stopping=early_stopping,
        **settings,
    )
    assert same_bits(output.tokens, greedy.tokens)
    assert same_bits(output.length, greedy.length)
    assert same_bits(output.finished, greedy.finished)
    np.testing.assert_allclose(output.log_prob, greedy.log_prob, rtol=2e-6)
