"""Counters of a state: one number for all rows, or one for each row.

While all rows advance together, a counter such as the number of steps is a scalar, and the cache
is written in place at one slot. Where rows are refilled (``loop.refill``), each row has its own
number. The steps of a strategy take both.
"""

from __future__ import annotations

import jax.numpy as jnp

from decoding_jax.base import Array


def over_axes(counter: Array, ndim: int) -> Array:
    """A counter that broadcasts against arrays ``[B, ...]``.

    Args:
      counter: int32, a scalar or ``[B]``.
      ndim: the number of axes of these arrays.

    Returns:
      A scalar, or int32 ``[B, 1, ...]`` with ``ndim`` axes.

    Example:
      >>> over_axes(jnp.int32(3), 2).shape, over_axes(jnp.array([3, 4]), 2).shape
      ((), (2, 1))
    """
    return counter.reshape(counter.shape + (1,) * (ndim - 1)) if counter.ndim else counter


def per_lane(counter: Array, lanes: int) -> Array:
    """A counter as the ``start`` of ``LanguageModel.extend``: a scalar, or int32 ``[B, W]``.

    Example:
      >>> per_lane(jnp.int32(3), 4).shape, per_lane(jnp.array([3, 4]), 4).shape
      ((), (2, 4))
    """
    if counter.ndim == 0:
        return counter
    return jnp.broadcast_to(counter[:, None], (counter.shape[0], lanes))
