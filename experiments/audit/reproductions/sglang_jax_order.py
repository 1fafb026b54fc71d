"""sglang-jax at cddbf6f: the two paths of top-p disagree unless the temperature is 1."""

import jax
import jax.numpy as jnp
from sgl_jax.srt.layers.sampler import top_k_top_p_min_p_sampling_from_probs_jax

rows, temperature = 10_000, 2.0
logits = jnp.tile(jnp.array([1.2, 0.3, -0.5, 2.0, 0.0, -1.5]), (rows, 1))


def each(x: float, dtype: type = jnp.float32) -> jax.Array:
    return jnp.full(rows, x, dtype)


arguments = (
    logits,
    jax.nn.softmax(logits / temperature),
    each(1 << 30, jnp.int32),  # top_ks
    each(0.75),  # top_ps
    each(0.0),  # min_ps
    each(0, jnp.int32),  # positions
    each(temperature)[:, None],
    None,  # sampling_seeds
    False,  # need_min_p_sampling
    jax.random.PRNGKey(0),
)
for use_sort in (True, False):
    tokens = top_k_top_p_min_p_sampling_from_probs_jax(arguments, use_sort)
    print(use_sort, jnp.bincount(tokens, length=6) / rows)
# Four tokens are kept with use_sort, which truncates after the temperature, as section 6.12.1 of
# docs/architecture/06-layers-and-attention.md says. Two are kept without it, which is the default.
