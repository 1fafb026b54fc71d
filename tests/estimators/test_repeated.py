"""Estimators from dependent samples are unbiased: checked by enumerating shifts and outcomes."""

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import decoding_jax
from decoding_jax import Prompt
from decoding_jax.estimators import choice, confidence, repeated
from decoding_jax.testing import TableLM

GRID = 48  # Shifts; every interval below begins and ends on this grid.
CORRECT = np.zeros(GRID, bool)
CORRECT[[0, 1, 2, 7, 20, 21, 22, 23, 24, 25]] = True
P = CORRECT.mean()

pass_at_k = jax.jit(repeated.pass_at_k, static_argnums=1)
pass_at_k_of_lattice = jax.jit(repeated.pass_at_k_of_lattice, static_argnums=1)


def of_lattice(num_samples):
    """For each shift of a lattice, whether its samples are correct: ``[GRID, N]``."""
    points = np.arange(GRID)[:, None] + np.arange(num_samples) * (GRID // num_samples)
    return CORRECT[points % GRID]


@pytest.mark.parametrize(("num_sets", "k"), [(1, 1), (2, 1), (2, 2), (3, 2), (3, 3)])
def test_pass_at_k_from_lattices_is_unbiased(num_sets, k):
    lattices = of_lattice(4)[: GRID // 4]  # The others are the same points in another order.
    sets = lattices[list(itertools.product(range(len(lattices)), repeat=num_sets))]
    estimates = np.asarray(pass_at_k(sets, k))
    assert estimates.mean() == pytest.approx(1 - (1 - P) ** k, abs=1e-6)


@pytest.mark.parametrize(("count", "k"), [(5, 1), (5, 3), (6, 6)])
def test_pass_at_k_of_independent_samples_is_the_closed_form(count, k):
    outcomes = np.array(list(itertools.product([False, True], repeat=count)))
    got = pass_at_k(outcomes[..., None], k)
    wrong = count - outcomes.sum(1)
    want = [1 - math.comb(int(w), k) / math.comb(count, k) for w in wrong]
    np.testing.assert_allclose(got, want, atol=1e-6)


@pytest.mark.parametrize("k", [1, 2, 3, 6, 12])
def test_pass_at_k_of_a_lattice_is_that_of_a_smaller_one(k):
    estimates = np.asarray(pass_at_k_of_lattice(of_lattice(12), k))
    assert estimates.mean() == pytest.approx(of_lattice(k).any(1).mean(), abs=1e-6)


@pytest.mark.exhaustive
def test_the_samples_of_a_call_are_in_the_order_of_the_lattice():
    """Codes rise by a quarter from sample to sample, so tokens rise, but for one step round."""
    model = TableLM.random(jax.random.key(0), 9, sharpness=0.1)
    prompt = Prompt(jnp.full((8, 1), 3), jnp.ones(8, jnp.int32))
    output = decoding_jax.arithmetic_sample(
        model, prompt, jax.random.key(1), num_samples=4, max_new_tokens=1
    )
    tokens = np.asarray(output.tokens[:, :, 0])
    falls = (np.roll(tokens, -1, 1) < tokens).sum(1)
    assert (falls == 1).all()


def test_the_error_of_a_mean_is_unbiased():
    values = of_lattice(4)[: GRID // 4].astype(np.float32)
    pairs = values[list(itertools.product(range(len(values)), repeat=2))]
    mean, error = jax.device_get(jax.jit(repeated.mean_and_error)(pairs))
    assert mean.mean() == pytest.approx(P, abs=1e-6)
    variance = values.mean(1).var() / 2
    assert np.square(error).mean() == pytest.approx(variance, abs=1e-7)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: repeated.pass_at_k(jnp.ones((3, 2), bool), 4),
            "k: expected 1 to the number of sets, 3, got 4",
        ),
        (lambda: repeated.pass_at_k(jnp.ones(3, bool), 1), "correct: expected [..., R, N]"),
        (
            lambda: repeated.pass_at_k_of_lattice(jnp.ones(4, bool), 3),
            "k: expected a divisor of the number of samples, 4, got 3",
        ),
        (lambda: repeated.mean_and_error(jnp.ones((1, 4))), "values: expected 2 or more"),
        (lambda: choice.minimum_bayes_risk([], None), "texts: expected one or more, got none"),
    ],
)
def test_a_mistake_is_one_line(call, message):
    with pytest.raises(ValueError) as error:
        call()
    assert message in str(error.value)


def test_choices():
    assert choice.majority([None, 3, 4, 4, 3]) == 3
    assert choice.majority([None, None]) is None
    texts = ["x", "a b", "b a", "a b", "c"]
    overlap = lambda text, references: len({*text.split()} & {*references[0].split()})  # noqa: E731
    assert choice.minimum_bayes_risk(texts, overlap) == 1


def test_votes_with_weights():
    assert choice.majority(["a", "b", None, "a"], [1, 3, 9, 1]) == "b"
    assert choice.majority(["a", "b"], [0, 0]) == "a"
    votes = confidence.borda_votes([0.1, np.inf, 0.3, 0.3], power=2)
    assert votes.tolist() == [1, 16, 9, 4]
    for weights, said in (([1], "one for each of 2 answers, got 1"), ([1, np.nan], "got nan")):
        with pytest.raises(ValueError, match=said):
            choice.majority(["a", "b"], weights)
