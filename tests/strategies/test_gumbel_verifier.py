"""The Gumbel verifier's draws: their resolution, and their distribution at any offset of logits."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from decoding_jax.ops import random
from decoding_jax.strategies.speculative import distributions
from decoding_jax.strategies.speculative.verifiers.coupled import GumbelVerifier, exponentials

KEYS = random.lane_keys(random.row_keys(jax.random.key(0), 1), 1)
DRAWS, LEVEL = 4096, 1e-4


@jax.jit
def drawn(distribution):
    draw = jax.vmap(
        lambda t: GumbelVerifier().draw(KEYS, (), distribution, t[None, None], t)[0][0, 0]
    )
    return draw(jnp.arange(DRAWS))


@pytest.mark.parametrize("offset", [0.0, 1e6, -1e7, 1e8])
def test_a_constant_added_to_all_logits_changes_no_draw(offset):
    """Two equal logits are a fair coin, in 4,096 draws; float32 holds all sums exactly."""
    logits = jnp.array([0.0, 0.0, -64.0])
    tokens = drawn(distributions.softmax((logits + offset)[None, None]))
    np.testing.assert_array_equal(tokens, drawn(distributions.softmax(logits[None, None])))
    heads = int((tokens == 0).sum())
    assert stats.binomtest(heads, DRAWS).pvalue > LEVEL


def test_the_smallest_variables_of_a_wide_vocabulary_have_the_precision_of_floats():
    """Of 2**18 exponentials, about 64 are below 2**-12, and no two of those are equal.

    Variables made of 32 bits would be almost whole multiples of 2**-32; these are not.
    """
    noise = np.asarray(jax.jit(exponentials, static_argnums=2)(KEYS, jnp.int32([[[3]]]), 2**18))
    noise = noise.ravel().astype(np.float64)
    assert stats.kstest(noise[::16], stats.expon.cdf).pvalue > LEVEL
    smallest = noise[noise < 2.0**-12]
    assert len(np.unique(smallest)) == len(smallest) > 32
    assert len(np.unique(smallest * 2.0**32 % 1.0)) > len(smallest) // 2
