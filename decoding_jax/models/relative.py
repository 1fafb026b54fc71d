"""Relative position biases (Raffel et al. 2020, section 2.1)."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from decoding_jax.base import Array
from decoding_jax.models.scores import Bias


def relative_buckets(num_buckets: int, max_distance: int, *, bidirectional: bool) -> np.ndarray:
    """The bucket of every distance from ``-max_distance`` to ``max_distance``.

    A distance is the query's position minus the key's. Each small distance has its own bucket, and
    larger ones share buckets whose width grows logarithmically (Raffel et al. 2020, section 2.1).

    Returns:
      int32 ``[2 * max_distance + 1]``.
    """
    distance = np.arange(-max_distance, max_distance + 1)
    offset = np.zeros_like(distance)
    if bidirectional:
        num_buckets //= 2
        offset = np.where(distance < 0, num_buckets, 0)
        far = np.abs(distance)
    else:
        far = np.maximum(distance, 0)
    exact = num_buckets // 2
    ratio = np.log(np.maximum(far, 1) / exact) / math.log(max_distance / exact)
    # The small term keeps ratios that are whole numbers from being rounded down.
    large = exact + np.floor(ratio * (num_buckets - exact) + 1e-6).astype(np.int64)
    bucket = np.where(far < exact, far, np.minimum(large, num_buckets - 1))
    return (bucket + offset).astype(np.int32)


class RelativePositionBiases(nn.Module):
    """Learned biases ``[H, num_buckets]``, one for each head and bucket of distances."""

    num_heads: int
    num_buckets: int
    max_distance: int
    bidirectional: bool

    def setup(self) -> None:
        self.rel_embedding = self.param(
            "rel_embedding",
            nn.initializers.variance_scaling(1.0, "fan_avg", "uniform"),
            (self.num_heads, self.num_buckets),
            jnp.float32,
        )

    def by_distance(self) -> Callable[[Array], Array]:
        """The function that ``__call__`` is, to be called outside the module too."""
        buckets = relative_buckets(
            self.num_buckets, self.max_distance, bidirectional=self.bidirectional
        )
        return functools.partial(_at, self.rel_embedding.astype(jnp.float32)[:, buckets])

    def __call__(self, distance: Array) -> Array:
        """The biases ``[b, w, H, 1, T, K]`` of query-minus-key distances ``[b, w, T, K]``."""
        return self.by_distance()(distance)

    def of_keys(self, position: Array, num_keys: int) -> Bias:
        """The biases of queries at ``position [b, w, T]`` and keys at 0 to ``num_keys - 1``.

        Few are computed at once, for all layers that share them; many, by block.
        """
        if self.num_heads * position.size * num_keys > WHOLE:
            return self.by_distance()
        return self(position[..., None] - jnp.arange(num_keys, dtype=jnp.int32)[None, None, None])


WHOLE = 2**22
"""The largest number of biases that are held whole."""


def _at(biases: Array, distance: Array) -> Array:
    """The biases ``[b, w, H, 1, T, K]`` of ``distance [b, w, T, K]``.

    Args:
      biases: float32 ``[H, 2 * max_distance + 1]``, by distance from ``-max_distance``.
      distance: int32, of any size.
    """
    farthest = biases.shape[1] // 2
    index = jnp.clip(distance, -farthest, farthest) + farthest
    return jnp.moveaxis(biases[:, index], 0, 2)[:, :, :, None]
