"""A point set of the paper beside those of the library: the lattice without a random shift."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

from decoding_jax.base import Array


def deterministic(key: Array, num_samples: int) -> Array:
    """``i / (N + 1)`` for i from 1 to N, whatever the key (Vilnis et al. 2023, section 3).

    Its points are not uniform, so means over its samples are biased.

    Args:
      key: is not used.
      num_samples: N.

    Returns:
      uint32 ``[N, 2]``, as ``codes.Points``.

    Example:
      >>> deterministic(None, 3)[:, 0].tolist() == [2**30, 2**31, 3 * 2**30]
      True
    """
    points = [(i << 64) // (num_samples + 1) for i in range(1, num_samples + 1)]
    words = [[point >> 32, point & 0xFFFFFFFF] for point in points]
    return jnp.asarray(np.asarray(words, np.uint32))
