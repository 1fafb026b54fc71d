"""Stochastic beam search and its estimators, against draws without replacement."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special, stats

import decoding_jax
from decoding_jax import Prompt, Stop, transforms
from decoding_jax.estimators.without_replacement import estimate, log_weights
from decoding_jax.ops.top_k import gumbel, top_k_gumbel
from decoding_jax.testing import TableLM
from decoding_jax.testing.certificate.enumeration import enumerate_distribution

ROWS = 20_000
LEVEL = 1e-3
MODEL = TableLM.random(jax.random.key(0), 3)
TRANSFORM = transforms.temperature(1.5)
STOP = Stop(eos_ids=(0,))


def search(rows, beam_size, key=5):
    prompt = Prompt(np.tile(np.int32([1, 2]), (rows, 1)), np.full(rows, 2, np.int32))
    return jax.device_get(
        decoding_jax.stochastic_beam_search(
            MODEL,
            prompt,
            jax.random.key(key),
            beam_size=beam_size,
            max_new_tokens=3,
            transform=TRANSFORM,
            stop=STOP,
        )
    )


estimates = jax.jit(estimate, static_argnames="normalize")


@pytest.fixture(scope="module")
def distribution():
    prompt = Prompt(jnp.array([[1, 2]]), jnp.array([2]))
    return enumerate_distribution(MODEL, prompt, max_new_tokens=3, transform=TRANSFORM, stop=STOP)


@pytest.fixture(scope="module")
def drawn(distribution):
    """The output for many rows, and the index of each sequence in the distribution."""
    output = search(ROWS, 2)
    code = lambda tokens: np.asarray(tokens) @ np.array([1, 3, 9])  # noqa: E731
    order = np.argsort(code(distribution.tokens))
    where = np.searchsorted(code(distribution.tokens)[order], code(output.tokens))
    index = order[where]
    assert (np.asarray(distribution.tokens)[index] == np.asarray(output.tokens)).all()
    assert (distribution.length[index] == np.asarray(output.length)).all()
    return output, index


@pytest.mark.exhaustive
def test_sequences_are_distinct_and_their_log_probs_right(distribution, drawn):
    output, index = drawn
    assert (index[:, 0] != index[:, 1]).all()
    np.testing.assert_allclose(output.log_prob, distribution.log_prob[index], atol=1e-5)
    np.testing.assert_allclose(
        output.info.sampling_log_prob, np.log(distribution.prob[index]), atol=1e-5
    )
    assert (output.finished == distribution.finished[index]).all()
    score = np.asarray(output.score)
    assert (score[:, 0] >= score[:, 1]).all()
    assert (score[:, 1] >= np.asarray(output.info.threshold)).all()


@pytest.mark.exhaustive
def test_pairs_follow_the_ordered_distribution_without_replacement(distribution, drawn):
    """Chi-square over all ordered pairs, 20,000 rows, level 0.001."""
    _, index = drawn
    size = len(distribution.prob)
    seen = np.zeros((size, size))
    np.add.at(seen, (index[:, 0], index[:, 1]), 1)
    p = distribution.prob
    pairs = [(a, b) for a, b in itertools.product(range(size), repeat=2) if a != b]
    want = np.array([ROWS * p[a] * p[b] / (1 - p[a]) for a, b in pairs])
    got = np.array([seen[a, b] for a, b in pairs])
    rare = want < 5
    want = np.append(want[~rare], want[rare].sum())
    got = np.append(got[~rare], got[rare].sum())
    assert stats.chisquare(got, want * got.sum() / want.sum()).pvalue > LEVEL


@pytest.mark.release
def test_estimators(distribution, drawn):
    """Unbiased within 3.3 standard errors (level 0.001).

    The error of the normalised estimator falls as K grows.
    """
    output, index = drawn
    value = np.linspace(-1.0, 2.0, len(distribution.prob)).astype(np.float32)
    true = distribution.prob @ value
    plain = np.asarray(
        estimates(value[index], output.info.sampling_log_prob, output.info.threshold)
    )
    error = plain.std() / np.sqrt(ROWS)
    assert abs(plain.mean() - true) < 3.3 * error

    def rms_error(beam_size, rows=4000):
        output = search(rows, beam_size, key=6)
        size = np.array([1, 3, 9])
        table = {int(t @ size): v for t, v in zip(distribution.tokens, value, strict=True)}
        of = np.vectorize(lambda code: table[int(code)])(np.asarray(output.tokens) @ size)
        got = estimates(
            of.astype(np.float32),
            output.info.sampling_log_prob,
            output.info.threshold,
            normalize=True,
        )
        return float(np.sqrt(np.mean((np.asarray(got) - true) ** 2)))

    assert rms_error(12) < rms_error(6) < rms_error(2)


@pytest.mark.release
def test_the_whole_support_gives_exact_expectations(distribution):
    output = search(3, 40)
    exists = np.asarray(output.score) > -np.inf
    assert (exists.sum(-1) == len(distribution.prob)).all()
    assert (output.info.threshold == -jnp.inf).all()
    np.testing.assert_allclose(np.exp(output.info.sampling_log_prob).sum(-1), 1.0, rtol=1e-5)
    value = np.where(exists, output.length, 99).astype(np.float32)
    want = distribution.prob @ distribution.length
    for normalize in (False, True):
        got = estimates(value, *output.info[1:], normalize=normalize)
        np.testing.assert_allclose(got, want, rtol=1e-5)


def test_weights_far_from_the_threshold():
    distribution = jnp.array([[-1.0, -40.0, -jnp.inf]])
    got = log_weights(distribution, jnp.array([0.0]))[0]
    q = -np.expm1(-np.exp(-1.0))
    np.testing.assert_allclose(got[:2], [-1.0 - np.log(q), 0.0], atol=1e-6)
    assert got[2] == -jnp.inf
    np.testing.assert_allclose(
        log_weights(distribution, jnp.array([-60.0]))[0, :2], distribution[0, :2], atol=1e-6
    )


def test_gumbel_noise_is_gumbel_up_to_its_tails():
    """Kolmogorov-Smirnov, 200,000 draws, level 0.001; no infinities."""
    noise = np.asarray(gumbel(jax.random.key(0), (200_000,)), np.float64)
    assert np.isfinite(noise).all()
    assert stats.kstest(noise, stats.gumbel_r.cdf).pvalue > LEVEL


@pytest.mark.parametrize("size", [pytest.param(10, marks=pytest.mark.exhaustive), 200])
def test_draws_by_blocks_follow_the_ordered_distribution(size):
    """Pairs from 2 groups whose maxima are drawn first; chi-square, 20,000 rows, level 0.001."""
    weights = np.random.default_rng(1).normal(size=(2, size)) * 3
    weights = (weights - special.logsumexp(weights)).astype(np.float32)

    @jax.jit
    def draw(keys):
        mass = jax.nn.logsumexp(weights, axis=-1)
        first, second = jnp.moveaxis(jax.vmap(jax.random.split)(keys), 1, 0)
        maximum = mass[None] + jax.vmap(lambda key: gumbel(key, (2,)))(first)
        totals = jnp.broadcast_to(weights, (ROWS, 2, size))
        return *top_k_gumbel(second, totals, 2, maximum), maximum

    value, index, maximum = map(np.asarray, draw(jax.random.split(jax.random.key(2), ROWS)))
    np.testing.assert_array_equal(value[:, 0], maximum.max(-1))
    p = np.exp(np.asarray(weights, np.float64)).ravel()
    best = np.argsort(-p)[:12]
    place = np.full(p.size, 12)
    place[best] = np.arange(12)
    mass = np.append(p[best], p.sum() - p[best].sum())
    seen = np.zeros((13, 13))
    np.add.at(seen, tuple(place[np.asarray(index)].T), 1)
    # Two different items outside the best 12 may be drawn: their probabilities are summed.
    others = np.delete(p, best)
    want = np.array([[a * b / (1 - a) for b in mass] for a in mass])
    want[np.arange(12), np.arange(12)] = 0.0
    want[12, :12] = [(others / (1 - others)).sum() * b for b in mass[:12]]
    want[12, 12] = (others * (others.sum() - others) / (1 - others)).sum()
    want, seen = want.ravel() * ROWS, seen.ravel()
    keep = want > 5
    got, due = seen[keep], want[keep]
    if want[~keep].sum() > 1:
        got, due = np.append(got, seen[~keep].sum()), np.append(due, want[~keep].sum())
    else:
        assert seen[~keep].sum() <= 10
    assert stats.chisquare(got, due * got.sum() / due.sum()).pvalue > LEVEL
