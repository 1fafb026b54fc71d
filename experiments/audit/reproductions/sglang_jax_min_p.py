"""sglang-jax at cddbf6f: min-p of the default path takes logits for probabilities."""

import jax
import jax.numpy as jnp
from sgl_jax.srt.layers.sampler import top_k_top_p_min_p_sampling_from_probs_jax

rows = 10_000
logits = jnp.tile(jnp.array([1.2, 0.3, -0.5, 2.0, 0.0, -1.5]), (rows, 1))


def each(x: float, dtype: type = jnp.float32) -> jax.Array:
    return jnp.full(rows, x, dtype)


arguments = (
    logits,
    jax.nn.softmax(logits),
    each(1 << 30, jnp.int32),  # top_ks
    each(1.0),  # top_ps
    each(0.3),  # min_ps
    each(0, jnp.int32),  # positions
    each(1.0)[:, None],  # temperatures
    None,  # sampling_seeds
    True,  # need_min_p_sampling
    jax.random.PRNGKey(0),
)
for use_sort in (True, False):
    tokens = top_k_top_p_min_p_sampling_from_probs_jax(arguments, use_sort)
    print(use_sort, jnp.bincount(tokens, length=6) / rows)
# Tokens 0 and 3 alone have 0.3 of the greatest probability, and use_sort keeps these. Without it,
# which is the default, logits below 0.3 times the greatest logit become 0, and all tokens occur.
