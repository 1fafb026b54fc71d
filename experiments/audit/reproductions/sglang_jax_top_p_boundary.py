"""sglang-jax at cddbf6f: with use_sort, top-p keeps a token more where the mass is p exactly."""

import jax
import jax.numpy as jnp
from sgl_jax.srt.layers.sampler import top_k_top_p_min_p_sampling_from_probs_jax

rows = 10_000
probabilities = jnp.tile(jnp.array([0.5, 0.25, 0.125, 0.125]), (rows, 1))


def each(x: float, dtype: type = jnp.float32) -> jax.Array:
    return jnp.full(rows, x, dtype)


arguments = (
    jnp.log(probabilities),
    probabilities,
    each(1 << 30, jnp.int32),  # top_ks
    each(0.75),  # top_ps
    each(0.0),  # min_ps
    each(0, jnp.int32),  # positions
    each(1.0)[:, None],  # temperatures
    None,  # sampling_seeds
    False,  # need_min_p_sampling
    jax.random.PRNGKey(0),
)
for use_sort in (True, False):
    tokens = top_k_top_p_min_p_sampling_from_probs_jax(arguments, use_sort)
    print(use_sort, jnp.bincount(tokens, length=4) / rows)
# The smallest set whose mass reaches 0.75 is of two tokens. With use_sort, a third is drawn, since
# line 388 of sampler.py drops a token only if the mass before it is greater than p.
