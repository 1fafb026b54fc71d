"""Exact distributions: against brute force over all sequences, and by hand where it can be seen."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from decoding_jax.base import Prompt, Stop
from decoding_jax.testing import (
    TableLM,
    enumerate_distribution,
    greedy_path,
    log_probs,
    top_sequences,
)
from decoding_jax.testing.certificate.enumeration import exact_log_softmax

VOCAB, LENGTH = 3, 3
MODEL = TableLM.random(jax.random.key(3), VOCAB)
PROMPT = Prompt(jnp.array([[1, 2, 0], [2, 0, 0]]), jnp.array([3, 1]))


def distribution_of(row=0, max_new_tokens=LENGTH, **settings):
    return enumerate_distribution(MODEL, PROMPT, row, max_new_tokens=max_new_tokens, **settings)


def as_dict(distribution):
    """{new tokens: (probability, log-probability, finished)}."""
    texts = (
        tuple(t[:n].tolist()) for t, n in zip(distribution.tokens, distribution.length, strict=True)
    )
    return dict(
        zip(
            texts,
            zip(distribution.prob, distribution.log_prob, distribution.finished, strict=True),
            strict=True,
        )
    )


def start_of(row):
    return np.asarray(PROMPT.tokens)[row, : PROMPT.length[row]].tolist()


def score(row, text):
    """A sequence's log-probability, one conditional after another."""
    steps = range(len(text))
    return sum(log_probs(MODEL, [*start_of(row), *text[:i]])[text[i]] for i in steps)


@pytest.mark.parametrize("row", [0, 1])
def test_every_sequence_once_with_its_probability(row):
    outcomes = as_dict(distribution_of(row))
    assert set(outcomes) == set(itertools.product(range(VOCAB), repeat=LENGTH))
    for text, (prob, log_prob, finished) in outcomes.items():
        assert log_prob == pytest.approx(score(row, text), abs=1e-12)
        assert prob == pytest.approx(np.exp(score(row, text)), abs=1e-12)
        assert not finished


@pytest.mark.parametrize(
    "stop",
    [
        Stop(eos_ids=(1,)),
        Stop(eos_ids=(1, 2), min_new_tokens=2),
        Stop(sequences=((0, 2), (1,)), min_new_tokens=2),
        Stop(eos_ids=np.array([[0, -1], [1, 2]]), max_new_tokens=np.array([2, 3])),
        Stop(eos_ids=(0, 1, 2), min_new_tokens=1),
    ],
    ids=str,
)
@pytest.mark.parametrize("row", [0, 1])
def test_probabilities_sum_to_one(row, stop):
    distribution = distribution_of(row, stop=stop)
    assert distribution.prob.sum() == pytest.approx(1, abs=1e-12)
    assert len(as_dict(distribution)) == len(distribution.prob)
    after = np.arange(LENGTH) >= distribution.length[:, None]
    assert not distribution.tokens[after].any()


def test_end_tokens():
    outcomes = as_dict(distribution_of(stop=Stop(eos_ids=(1,))))
    for text, (prob, _, finished) in outcomes.items():
        assert finished == (text[-1] == 1)
        assert 1 not in text[:-1]
        assert len(text) == LENGTH or finished
        assert prob == pytest.approx(np.exp(score(0, text)))


def test_end_tokens_are_banned_before_the_minimum():
    outcomes = as_dict(distribution_of(stop=Stop(eos_ids=(1,), min_new_tokens=2)))
    assert not {(1,), (0, 1), (1, 0)} & set(outcomes)
    assert outcomes[(0, 2, 1)][2]
    first = np.exp(log_probs(MODEL, start_of(0)))
    second = np.exp(log_probs(MODEL, [*start_of(0), 0]))
    third = np.exp(log_probs(MODEL, [*start_of(0), 0, 2]))
    want = first[0] / (1 - first[1]) * second[2] / (1 - second[1]) * third[1]
    assert outcomes[(0, 2, 1)][0] == pytest.approx(want)
    assert outcomes[(0, 2, 1)][1] == pytest.approx(score(0, (0, 2, 1)))  # as if nothing were banned


def test_stop_sequences_lie_in_new_tokens_and_wait_for_the_minimum():
    """Row 1's prompt ends with 2: (2, 0) must not match across the border."""
    outcomes = as_dict(distribution_of(1, stop=Stop(sequences=((2, 0),))))
    assert (0, 0, 0) in outcomes
    assert outcomes[(2, 0)][2]
    assert outcomes[(1, 2, 0)][2]
    late = as_dict(distribution_of(1, stop=Stop(sequences=((2, 0),), min_new_tokens=3)))
    assert (2, 0) not in late
    assert not late[(2, 0, 1)][2]
    assert late[(1, 2, 0)][2]


def test_limits():
    empty = distribution_of(stop=Stop(eos_ids=(1,), max_new_tokens=0))
    assert empty.length.tolist() == [0]
    assert empty.prob.tolist() == [1.0]
    assert empty.log_prob.tolist() == [0.0]
    assert not empty.finished.any()
    one = as_dict(distribution_of(stop=Stop(eos_ids=(1,), max_new_tokens=1)))
    assert {text: end for text, (_, _, end) in one.items()} == {
        (0,): False,
        (1,): True,
        (2,): False,
    }


def no_repeats(logits, prefix):
    """Bans every token among the new tokens of the path."""
    vocab = jnp.arange(logits.shape[-1])[None, None, None, :, None]
    real = jnp.arange(prefix.tokens.shape[-1])[None, None, None] < prefix.length[..., None]
    seen = (prefix.tokens[..., None, :] == vocab) & real[..., None, :]
    return jnp.where(seen.any(-1), -jnp.inf, logits)


def test_transforms_are_given_the_path_and_lanes_can_die():
    outcomes = as_dict(distribution_of(transform=no_repeats))
    assert set(outcomes) == set(itertools.permutations(range(VOCAB)))
    assert sum(prob for prob, _, _ in outcomes.values()) == pytest.approx(1)
    longer = as_dict(distribution_of(max_new_tokens=5, transform=no_repeats))  # dead after three
    assert {text: v[0] for text, v in longer.items()} == pytest.approx(
        {text: v[0] for text, v in outcomes.items()}
    )
    assert not any(finished for _, _, finished in longer.values())


def test_settings_per_row_keep_their_row():
    warmth = jnp.array([1.0, 4.0])[:, None, None, None]
    flat = distribution_of(1, transform=lambda logits, prefix: logits / warmth)
    plain = distribution_of(1)
    assert np.ptp(np.log(flat.prob)) < np.ptp(np.log(plain.prob))
    np.testing.assert_allclose(flat.log_prob, plain.log_prob)
    np.testing.assert_allclose(
        distribution_of(0, transform=lambda logits, prefix: logits / warmth).prob,
        distribution_of(0).prob,
    )


def test_greedy_path_and_top_sequences():
    path = greedy_path(MODEL, PROMPT, 0, max_new_tokens=LENGTH)
    text: list[int] = []
    for _ in range(LENGTH):
        text.append(int(np.argmax(log_probs(MODEL, [*start_of(0), *text]))))
    assert path.tokens[0].tolist() == text
    assert path.log_prob[0] == pytest.approx(score(0, text))
    distribution = distribution_of()
    best = top_sequences(distribution, 4)
    np.testing.assert_array_equal(best.log_prob, np.sort(distribution.log_prob)[::-1][:4])
    assert best.log_prob[0] >= path.log_prob[0]


def test_greedy_takes_the_lowest_of_equals_and_stops():
    tied = TableLM(jnp.zeros_like(MODEL.table), MODEL.features)
    path = greedy_path(tied, PROMPT, 0, max_new_tokens=LENGTH)
    assert path.tokens.tolist() == [[0, 0, 0]]
    ended = greedy_path(
        tied, PROMPT, 0, max_new_tokens=LENGTH, stop=Stop(eos_ids=(0,), min_new_tokens=2)
    )
    assert (ended.tokens.tolist(), ended.finished.tolist()) == ([[1, 1, 0]], [True])
    dead = greedy_path(
        tied, PROMPT, 0, max_new_tokens=LENGTH, transform=lambda logits, prefix: logits - jnp.inf
    )
    assert (dead.length.tolist(), dead.finished.tolist()) == ([0], [False])
    best = top_sequences(enumerate_distribution(tied, PROMPT, 0, max_new_tokens=2), 3)
    assert best.tokens.tolist() == [[0, 0], [0, 1], [0, 2]]


def test_exact_log_softmax_of_banned_rows():
    got = exact_log_softmax(np.array([[0.0, -np.inf], [-np.inf, -np.inf]]))
    np.testing.assert_array_equal(got, [[0.0, -np.inf], [-np.inf, -np.inf]])
