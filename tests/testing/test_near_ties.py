"""Differences that rounding explains are distinguished from those that it does not."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import decoding_jax
from decoding_jax import Prompt
from decoding_jax.testing import TableLM
from decoding_jax.testing.near_ties import code_differences, greedy_differences

MODEL = TableLM.random(jax.random.key(0), 5, sharpness=0.3)
ROWS, LANES, LENGTH = 256, 4, 4
PROMPT = Prompt(jax.random.randint(jax.random.key(1), (ROWS, 3), 0, 5), jnp.full(ROWS, 3))
KEY = jax.random.key(2)


def off_by(error):
    """The model with every logit off by up to ``error``."""
    noise = jax.random.uniform(jax.random.key(3), MODEL.table.shape, minval=-1.0, maxval=1.0)
    return dataclasses.replace(MODEL, table=MODEL.table + error * noise)


def greedy(model):
    return decoding_jax.greedy(model, PROMPT, max_new_tokens=LENGTH)


def by_code(model, key=KEY):
    settings = {"num_samples": LANES, "max_new_tokens": LENGTH}
    return decoding_jax.arithmetic_sample(model, PROMPT, key, **settings)


@pytest.mark.release
@pytest.mark.parametrize("error", [0.0, 0.01, 0.1])
def test_margins_are_within_what_the_error_explains(error):
    best = greedy_differences(MODEL, PROMPT, greedy(off_by(error)), greedy(MODEL))
    coded = code_differences(MODEL, PROMPT, KEY, by_code(off_by(error)), by_code(MODEL))
    for differences, bound in ((best, 2 * error), (coded, LENGTH * (error / 2 + 1e-6))):
        assert (len(differences) > 0) == (error > 0)
        assert all(0 <= d.margin <= bound for d in differences)


@pytest.mark.release
def test_what_rounding_cannot_explain_has_a_margin():
    """Another key, another model: a tenth of the margins at most is below 0.01."""
    other = TableLM.random(jax.random.key(4), 5)
    best = greedy_differences(MODEL, PROMPT, greedy(other), greedy(MODEL))
    coded = code_differences(MODEL, PROMPT, KEY, by_code(MODEL, jax.random.key(5)), by_code(MODEL))
    for differences in (best, coded):
        assert len(differences) > ROWS / 2
        assert np.quantile([d.margin for d in differences], 0.1) > 0.01


def test_the_first_token_that_differs_is_named():
    want = greedy(MODEL)
    tokens = want.tokens.at[3, 0, 2].add(1).at[3, 0, 3].add(1) % 5
    (found,) = greedy_differences(MODEL, PROMPT, want._replace(tokens=tokens), want)
    assert found[:4] == (3, 0, 2, (int(tokens[3, 0, 2]), int(want.tokens[3, 0, 2])))
    shorter = want._replace(length=want.length.at[7, 0].set(1))
    (found,) = greedy_differences(MODEL, PROMPT, shorter, want)
    assert found == (7, 0, 1, (-1, int(want.tokens[7, 0, 1])), np.inf)
