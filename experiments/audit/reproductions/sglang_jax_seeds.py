"""sglang-jax at cddbf6f: multinomial_with_seed does not draw from the distribution it is given."""

import jax
import jax.numpy as jnp
from sgl_jax.srt.layers.sampler import multinomial_with_seed

rows = 40_000
probabilities = jax.nn.softmax(jnp.array([1.2, 0.3, -0.5, 2.0, 0.0, -1.5]))
seeds = jax.random.randint(jax.random.PRNGKey(0), (rows,), 0, jnp.iinfo(jnp.int32).max)
inputs = jnp.tile(probabilities, (rows, 1))
tokens = multinomial_with_seed((inputs, seeds, jnp.full(rows, 7), None, True))
print("given", probabilities)
print("drawn", jnp.bincount(tokens.ravel(), length=6) / rows)
# The noise of two tokens is one hash xor two constants, so it is not independent.
