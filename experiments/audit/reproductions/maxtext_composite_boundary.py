"""MaxText at e591f30: composite keeps a set whose mass is p, where its docstring has one above p.

PYTHONPATH=src python maxtext_composite_boundary.py
"""

import jax
import jax.numpy as jnp
from maxtext.inference.inference_utils import sampling

logits = jnp.tile(jnp.log(jnp.array([0.5, 0.25, 0.125, 0.125])), (10_000, 1))
tokens = sampling(logits, jax.random.PRNGKey(0), "composite", topk=4, nucleus_topp=0.75)
print(jnp.bincount(tokens, length=4) / 10_000)
# The mass of the first two tokens is 0.75, which does not exceed 0.75; a third is not drawn.
