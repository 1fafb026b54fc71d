"""Networks whose parameters are drawn by NumPy or read, since ``init`` compiles a program."""

from pathlib import Path
from typing import Any

import jax
import numpy as np

from decoding_jax.models import load_model


def drawn(kind: Any, config: Any, seed: int = 0, spread: float = 0.5) -> Any:
    """A network of normal parameters, also where ``init`` has constants: its logits vary much."""
    shapes = jax.eval_shape(lambda: kind.init(config, jax.random.key(0)))
    normal = np.random.default_rng(seed).normal
    # ``jnp.asarray`` would compile a program for each shape.
    return jax.tree.map(
        lambda x: jax.device_put(normal(0, spread, x.shape).astype(x.dtype)), shapes
    )


def fixture(family: str, **settings: Any) -> Any:
    """The network of two layers and 40 tokens of a family; see ``examples.FAMILIES``."""
    return load_model(Path(__file__).parent / "models" / "fixtures" / family, **settings)
