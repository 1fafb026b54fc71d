"""The samplers of QuasiMoTTo: each sample is exact, and sets are even."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from decoding_jax import Prompt
from decoding_jax.adapters import from_logits
from experiments import rollouts
from experiments.papers import fewer_samples_truth as truth
from experiments.papers import samplers


def test_pass_of_codes_that_are_carried_and_of_strata():
    """By hand, with N = 2: the second point of the lattice is in 10 for a shift from 0.1 to 0.3."""
    prob, correct = np.array([[0.3, 0.3], [0.2, 0.2]]), np.zeros((2, 2), bool)
    correct[1, 0] = True
    assert truth.pass_of_lattice(prob, correct, 2, carried=True) == pytest.approx(2 * 0.2)
    # In 01, from 0.3 to 0.6, are 0.2 of the first half and 0.1 of the second.
    assert truth.pass_of_strata(prob, np.roll(correct, -1), 2) == pytest.approx(1 - 0.6 * 0.8)


@pytest.mark.exhaustive
def test_the_peers_samples_are_exact_and_even():
    """2,048 calls for two samples of three tokens: chi-square of the texts at a level of 0.001."""
    logits = np.random.default_rng(2).normal(size=(3, 3))
    _, prob, _ = rollouts.texts_of(logits, 3)
    shape, rng = (3, 3, 3), np.random.default_rng(0)
    model = from_logits(rollouts.every_logit, 3, parameters=jnp.asarray(logits, jnp.float32))
    prompt = Prompt(jnp.ones((2048, 1), jnp.int32), jnp.ones(2048, jnp.int32))
    right = np.arange(27).reshape(shape) % 4 == 1
    known = {
        samplers.PEER: truth.pass_of_lattice(prob.reshape(shape), right, 2, carried=True),
        "QuasiMoTTo, strata": truth.pass_of_strata(prob.reshape(shape), right, 2),
        "QuasiMoTTo, Sobol": None,
    }
    for name, chance in known.items():
        output = samplers.SAMPLERS[name](
            model, prompt, jax.random.key(1), num_samples=2, max_new_tokens=3
        )
        tokens = np.asarray(output.tokens)
        # One of each set, since those of a set depend on each other; the strata's are in order.
        one = tokens[np.arange(2048), rng.integers(2, size=2048)]
        found = np.bincount(np.ravel_multi_index(tuple(one.T), shape), minlength=27)
        assert stats.chisquare(found, 2048 * prob).pvalue > 0.001
        if chance is not None:
            passed = right[tuple(np.moveaxis(tokens, -1, 0))].any(1).mean()
            assert abs(passed - chance) < 3.5 * np.sqrt(chance * (1 - chance) / 2048)


def test_a_bootstrap_of_quasimotto_is_that_of_smaller_sets():
    correct = np.random.default_rng(0).random((3, 8)) < 0.3
    picks = [correct[:, list(x)] for x in itertools.product(*np.arange(8).reshape(2, 4))]
    expected = {
        samplers.PEER: correct.reshape(3, 2, 4).any(1).mean(),
        "QuasiMoTTo, strata": np.mean([x.any(1).mean() for x in picks]),
        "QuasiMoTTo, Sobol": correct.reshape(3, 4, 2).any(2).mean(),
    }
    for name, value in expected.items():
        assert samplers.dyadic(name, correct, 2) == pytest.approx(value)


def test_votes_are_those_of_smaller_sets():
    """By hand: of lattices every second sample, of independent ones neighbours."""
    answers, right = np.array([[0, 1, 0, 1, 2, 1, 2, 1]]), np.array([True, False, False])
    assert samplers.votes(samplers.PEER, answers, right, 4) == pytest.approx((0.5 + 0) / 2)
    assert samplers.votes("independent", answers, right, 4) == pytest.approx((0.5 + 0) / 2)
    assert samplers.votes("independent", answers, right, 3) == pytest.approx((1 + 0) / 2)


@pytest.mark.exhaustive
def test_an_order_of_tokens_is_another_vocabulary():
    """Samples in an order of tokens are the lattice's of a model whose ids are in that order."""
    logits = np.random.default_rng(3).normal(size=(8, 8)).astype(np.float32)
    ids = samplers.by_embedding(np.random.default_rng(4).normal(size=(8, 3)))
    assert sorted(ids.tolist()) == list(range(8))
    given = {"num_samples": 16, "max_new_tokens": 4, "key": jax.random.key(0)}

    def model(table):
        return from_logits(rollouts.every_logit, 8, parameters=jnp.asarray(table))

    def prompt(token):
        return Prompt(jnp.full((2, 1), token, jnp.int32), jnp.ones(2, jnp.int32))

    found = samplers.ordered(model(logits), prompt(int(ids[5])), ids=jnp.asarray(ids), **given)
    want = samplers.SAMPLERS["lattice"](model(logits[np.ix_(ids, ids)]), prompt(5), **given)
    np.testing.assert_array_equal(found.tokens, ids[np.asarray(want.tokens)])
