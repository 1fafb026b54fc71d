"""Metropolis-Hastings: the chains' distribution, by enumeration of all texts and transitions."""

import functools

import jax
import numpy as np
import pytest

import decoding_jax
from decoding_jax import Prompt, Stop, transforms
from decoding_jax.testing import TableLM, chi_square, enumerate_distribution
from decoding_jax.testing.certificate import enumeration
from decoding_jax.testing.certificate.comparisons import count_outcomes, outcome_index

LENGTH, ROWS, LEVEL, ALPHA = 4, 4_000, 1e-3, 2.5
MODEL = TableLM.random(jax.random.key(3), 3, sharpness=1.5)
PROMPT = Prompt(np.array([[1, 2], [2, 0]], np.int32), np.array([2, 1], np.int32))
STOP = Stop(eos_ids=(0,))
WARM = transforms.temperature(1.3)


@functools.cache
def next_probs(row, text):
    """The transformed probabilities of the tokens after a text, in float64."""
    path = (*PROMPT.tokens[row, : PROMPT.length[row]].tolist(), *text)
    return np.exp(enumeration.exact_log_softmax(enumeration.path_logits(MODEL, path) / 1.3))


def proposal(row, text):
    power = next_probs(row, text) ** ALPHA
    return power / power.sum(), power.sum()


def is_whole(text, horizon):
    return len(text) == horizon or text[-1:] == (0,)


def texts(horizon, begun=()):
    """All texts of a block's end, from a beginning on."""
    if is_whole(begun, horizon):
        return [begun]
    return [x for v in range(3) for x in texts(horizon, (*begun, v))]


def drawn(row, begun, text):
    """The probability that a text is drawn from its beginning on."""
    return np.prod([proposal(row, text[:t])[0][text[t]] for t in range(len(begun), len(text))])


def power(row, text):
    return np.prod([next_probs(row, text[:t])[v] for t, v in enumerate(text)]) ** ALPHA


def transition(row, horizon):
    """The matrix of one step: a place, a new end, accepted by the rule of Metropolis-Hastings."""
    space = texts(horizon)
    index = {x: i for i, x in enumerate(space)}
    matrix = np.zeros((len(space), len(space)))
    for x in space:
        for place in range(len(x)):
            for y in texts(horizon, x[:place]):
                there = drawn(row, x[:place], y) / len(x)
                back = drawn(row, x[:place], x) / len(y)
                ratio = power(row, y) * back / (power(row, x) * there)
                matrix[index[x], index[y]] += there * min(1, ratio)
    matrix[np.diag_indices(len(space))] += 1 - matrix.sum(1)
    return space, matrix


@functools.cache
def distribution(row, num_steps, block):
    """The exact distribution of a chain: the texts, and their probabilities after the last step."""
    space, probs = [()], np.ones(1)
    for horizon in range(block, LENGTH + block, block):
        longer, matrix = transition(row, min(horizon, LENGTH))
        grown = np.zeros(len(longer))
        for x, p in zip(space, probs, strict=True):
            for i, y in enumerate(longer):
                if y[: len(x)] == x:
                    grown[i] += p * (drawn(row, x, y) if not x or x[-1] else y == x)
        space, probs = longer, grown @ np.linalg.matrix_power(matrix, num_steps)
    return space, probs


def target(row):
    found = texts(LENGTH)
    mass = np.array([power(row, x) for x in found])
    return mass / mass.sum()


def total_variation(row, num_steps, block):
    return np.abs(distribution(row, num_steps, block)[1] - target(row)).sum() / 2


@pytest.mark.release
def test_chains_follow_their_law_and_more_steps_come_closer_to_the_target():
    """2,000 rows of two chains for each prompt, two steps a block: chi-square at level 0.001.

    The distribution is enumerated, and so is its distance from ``p^alpha / Z``. Both chains of a
    row and ragged prompts are in one program.
    """
    prompt = Prompt(*(np.tile(x, (ROWS // 2, *[1] * (x.ndim - 1))) for x in PROMPT))
    settings = {"max_new_tokens": LENGTH, "stop": STOP, "transform": WARM, "alpha": ALPHA}
    output = decoding_jax.metropolis_sample(
        MODEL, prompt, jax.random.key(5), num_samples=2, num_steps=2, block_size=3, **settings
    )
    output = jax.device_get(output)
    for row in range(2):
        want = enumerate_distribution(
            MODEL, PROMPT, row, max_new_tokens=LENGTH, transform=WARM, stop=STOP
        )
        space, probs = distribution(row, 2, 3)
        padded = [x + (0,) * (LENGTH - len(x)) for x in space]
        place = outcome_index(want, np.array(padded), np.array([len(x) for x in space]))
        expected = np.zeros(len(want.prob))
        expected[place] = probs
        for lane in range(2):
            index = outcome_index(want, output.tokens[row::2, lane], output.length[row::2, lane])
            assert chi_square(count_outcomes(want, index), expected).p_value > LEVEL
        np.testing.assert_allclose(output.log_prob[row::2, 1], want.log_prob[index], atol=1e-5)
        assert (output.info.num_proposals == 4).all()
        errors = [total_variation(row, n, 3) for n in (1, 4, 16, 64)]
        assert errors == sorted(errors, reverse=True) and errors[-1] < 1e-3  # noqa: PT018
