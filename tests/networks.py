"""Networks whose parameters NumPy draws, since ``init`` compiles a program for each of them."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def drawn(kind: Any, config: Any, seed: int = 0, spread: float = 0.5) -> Any:
    """A network of normal parameters, also where ``init`` has constants: its logits vary much."""
    shapes = jax.eval_shape(lambda: kind.init(config, jax.random.key(0)))
    normal = np.random.default_rng(seed).normal
    return jax.tree.map(lambda x: jnp.asarray(normal(0, spread, x.shape), x.dtype), shapes)
