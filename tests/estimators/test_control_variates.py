"""Control variates leave means unbiased: checked by enumerating all samples of two inputs."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from decoding_jax import Prompt, Stop
from decoding_jax.estimators.control_variates import controlled_means, surprise
from decoding_jax.testing import TableLM, enumerate_distribution
from decoding_jax.text.token_scores import token_scores

MODEL = TableLM.random(jax.random.key(0), 3)
PROMPTS = Prompt(np.array([[1], [2]], np.int32), np.array([1, 1], np.int32))
END = Stop(eos_ids=(0,))


means_of = jax.jit(controlled_means)


def texts():
    """Of both inputs, the probabilities of all texts, and the texts' surprises: ``[2, n]``."""
    found = [enumerate_distribution(MODEL, PROMPTS, i, max_new_tokens=2, stop=END) for i in (0, 1)]
    tokens = np.stack([d.tokens for d in found])
    length = np.stack([d.length for d in found])
    scores = token_scores(MODEL, PROMPTS, tokens)
    surprises = jax.jit(surprise)(scores.log_prob, scores.entropy, length)
    return np.stack([d.prob for d in found]), np.asarray(surprises)


def test_means_are_unbiased_and_surprises_are_0_on_average():
    prob, found = texts()
    np.testing.assert_allclose((prob * found).sum(-1), 0, atol=1e-6)
    value = np.stack([np.square(found[0]) + found[0], 3 - found[1]])  # One goes along, one against.
    # All pairs of independent samples of both inputs: [pairs, 2 inputs, 2 samples].
    size = prob.shape[1]
    pick = np.array(list(itertools.product(range(size), repeat=4))).reshape(-1, 2, 2)
    inputs = np.arange(2)[None, :, None]
    weight = prob[inputs, pick].prod((1, 2))
    means = np.asarray(means_of(value[inputs, pick], found[inputs, pick]), np.float64)
    np.testing.assert_allclose(weight @ means, (prob * value).sum(-1), rtol=1e-5)


def test_a_score_that_is_the_surprise_has_no_error_left():
    rng = np.random.default_rng(0)
    variate = rng.normal(size=(5, 3, 8)).astype(np.float32)
    mean = np.array([1.0, -2.0, 7.0], np.float32)
    got = means_of(mean[:, None] - 3 * variate, variate)
    np.testing.assert_allclose(got, np.broadcast_to(mean, (5, 3)), atol=1e-5)
    # Where nothing varies, nothing is corrected.
    got = means_of(variate, np.ones_like(variate))
    np.testing.assert_allclose(got, variate.mean(-1), atol=1e-6)


@pytest.mark.parametrize("shapes", [((3,), (3,)), ((1, 4), (1, 4)), ((2, 4), (2, 3))])
def test_other_shapes_are_refused(shapes):
    with pytest.raises(ValueError, match="values: expected"):
        controlled_means(*map(jnp.zeros, shapes))
