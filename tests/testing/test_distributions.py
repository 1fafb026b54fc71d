"""The statistics themselves, and the covering arrays."""

import itertools

import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from decoding_jax.testing import all_cases, chi_square, pairwise_cases, same_bits
from decoding_jax.testing.certificate import comparisons
from decoding_jax.testing.certificate.enumeration import Distribution

PROB = np.array([0.4, 0.3, 0.2, 0.06, 0.03, 0.009, 0.001, 0.0])


@pytest.mark.parametrize("degrees", [1, 7, 40, 255])
@pytest.mark.parametrize("ratio", [0.5, 1.0, 1.5, 2.5])
def test_tail_is_that_of_scipy(degrees, ratio):
    want = stats.chi2.sf(degrees * ratio, degrees)
    assert comparisons.chi_square_tail(degrees * ratio, degrees) == pytest.approx(want, rel=2e-3)


def test_statistic_is_that_of_scipy_without_pooling():
    counts = np.array([45, 25, 30])
    want = stats.chisquare(counts, 100 * np.array([0.4, 0.3, 0.3]))
    fit = chi_square(counts, np.array([0.4, 0.3, 0.3]))
    assert fit.statistic == pytest.approx(want.statistic)
    assert fit.p_value == pytest.approx(want.pvalue, rel=1e-4)
    assert (fit.degrees, fit.samples) == (2, 100)


def test_level_is_kept_and_a_wrong_distribution_is_found():
    """400 draws of 1,000 samples at level 0.05: 20 rejections are expected; 8 to 34 are 3 sigma."""
    rng = np.random.default_rng(0)
    draws = rng.multinomial(1000, PROB, size=400)
    rejected = sum(chi_square(counts, PROB).p_value < 0.05 for counts in draws)
    assert 8 <= rejected <= 34
    wrong = np.array([0.34, 0.36, 0.2, 0.06, 0.03, 0.009, 0.001, 0.0])
    assert all(
        chi_square(counts, PROB).p_value < 1e-6 for counts in rng.multinomial(8000, wrong, size=5)
    )


def test_impossible_outcomes_and_certain_ones():
    counts = np.array([400, 300, 200, 60, 30, 9, 0, 1])
    assert chi_square(counts, PROB).p_value == 0
    assert chi_square(np.array([50, 0]), np.array([1.0, 0.0])) == (0.0, 0, 1.0, 50)


def test_small_cells_are_pooled():
    fit = chi_square(np.array([40, 30, 20, 6, 3, 1, 0, 0]), PROB)
    assert fit.degrees == 3  # 0.06 with all below it, then 0.2, 0.3 and 0.4


@pytest.mark.parametrize(
    ("counts", "prob"), [([1, 2], [0.5, 0.4]), ([1, 2, 3], [0.5, 0.5]), ([[1]], [[1.0]])]
)
def test_bad_distributions_are_refused(counts, prob):
    with pytest.raises(ValueError, match="prob"):
        chi_square(np.array(counts), np.array(prob))


def test_independence():
    rng = np.random.default_rng(1)
    distribution = np.array([0.5, 0.3, 0.2])
    first, second = rng.choice(3, size=(2, 4000), p=distribution)
    assert comparisons.independent(first, second, distribution).p_value > 1e-3
    copied = np.where(rng.random(4000) < 0.1, first, second)
    assert comparisons.independent(first, copied, distribution).p_value < 1e-6


def test_outcomes_are_told_apart_by_length():
    distribution = Distribution(
        np.array([[0, 0], [0, 0], [1, 0]], np.int32),
        np.array([1, 2, 2]),
        np.array([True, False, False]),
        np.array([0.2, 0.3, 0.5]),
        np.log([0.2, 0.3, 0.5]),
    )
    tokens = np.array([[0, 0], [0, 0], [1, 0], [1, 0], [0, 1]], np.int32)
    index = comparisons.outcome_index(distribution, tokens, np.array([2, 1, 2, 1, 2]))
    assert index.tolist() == [1, 0, 2, -1, -1]
    assert comparisons.count_outcomes(distribution, index[:3]).tolist() == [1, 1, 1]


def test_same_bits():
    assert same_bits({"a": jnp.array([jnp.nan])}, {"a": jnp.array([jnp.nan])})
    assert not same_bits(jnp.array([0.0]), jnp.array([-0.0]))
    assert not same_bits(jnp.array([0]), jnp.array([0.0]))
    assert not same_bits((jnp.zeros(1),), [jnp.zeros(1)])
    assert not same_bits(jnp.zeros(1), jnp.zeros((1, 1)))


FACTORS = {"a": range(5), "b": range(3), "c": range(4), "d": range(2)}


def pairs_of(cases):
    return {pair for case in cases for pair in itertools.combinations(case.items(), 2)}


@pytest.mark.parametrize("allowed", [None, lambda case: case["a"] != case["c"]])
def test_every_pair_is_covered_by_few_cases(allowed):
    cases = pairwise_cases(FACTORS, allowed)
    everything = all_cases(FACTORS, allowed)
    assert pairs_of(cases) == pairs_of(everything)
    assert all(case in everything for case in cases)
    assert len(cases) <= 28  # 5 * 4 = 20 are needed
    assert cases == pairwise_cases(FACTORS, allowed)
