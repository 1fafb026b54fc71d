"""T5X at cc342d4: with ``temperature`` as an array, all rows and decodes of a step get equal noise.

PYTHONPATH=t5x python t5x_temperature_of_each_row.py
"""

import jax
import jax.numpy as jnp
from t5x import decoding

logits = jnp.zeros((4, 8))  # of 2 rows with 2 decodes each: every token has probability 1/8
for temperature in (1.0, jnp.ones(2)):
    for seed in range(3):
        decodes, _ = decoding.temperature_sample(
            jnp.zeros((2, 1), jnp.int32),
            {},
            lambda state: (logits, state.cache),
            eos_id=99,
            decode_rng=jax.random.PRNGKey(seed),
            num_decodes=2,
            temperature=temperature,
            topk=0,
        )
        print(temperature, decodes.ravel())
# With 1.0, each token is drawn by itself. With an array of ones, all four are equal in every call.
