"""Gathers along one axis, each row by its own indices, and choices lane by lane."""

from __future__ import annotations

from typing import TypeVar

import jax
import jax.numpy as jnp

from decoding_jax.base import Array

T = TypeVar("T")


def where_lanes(condition: Array, chosen: T, other: T) -> T:
    """Arrays ``[B, W, ...]`` of ``chosen`` where ``condition [B, W]`` holds, else of ``other``.

    Args:
      condition: bool ``[B, W]``.
      chosen: a pytree of arrays ``[B, W, ...]``.
      other: a pytree of the same structure and shapes.

    Example:
      >>> where_lanes(jnp.array([[True, False]]), jnp.array([[1, 2]]), jnp.array([[3, 4]])).tolist()
      [[1, 4]]
    """

    def pick(x: Array, y: Array) -> Array:
        return jnp.where(condition.reshape(condition.shape + (1,) * (x.ndim - 2)), x, y)

    return jax.tree.map(pick, chosen, other)


def gather_items(values: Array, index: Array) -> Array:
    """Items of each row: ``values [B, n, ...]`` at ``index [B, m]`` are ``[B, m, ...]``.

    Args:
      values: an array of any dtype.
      index: int32, from 0 to n - 1; an index out of this range gives an undefined item.

    Example:
      >>> gather_items(jnp.array([[5, 6, 7], [8, 9, 0]]), jnp.array([[2, 0], [1, 1]])).tolist()
      [[7, 5], [9, 9]]
    """
    index = index.reshape(*index.shape, *(1,) * (values.ndim - 2))
    return jnp.take_along_axis(values, index, axis=1)


def gather_position(values: Array, index: Array) -> Array:
    """One position of each sequence: ``values [B, W, T, ...]`` at ``index [B, W]``.

    Args:
      values: an array of any dtype.
      index: int32; it is clipped to the range from 0 to T - 1.

    Returns:
      ``[B, W, ...]``, of the dtype of ``values``.

    Example:
      >>> gather_position(jnp.array([[[5, 6, 7], [8, 9, 0]]]), jnp.array([[0, 9]])).tolist()
      [[5, 0]]
    """
    index = jnp.clip(index, 0, values.shape[2] - 1)
    index = index.reshape(index.shape + (1,) * (values.ndim - 2))
    return jnp.take_along_axis(values, index, axis=2)[:, :, 0]


def gather_last(values: Array, index: Array) -> Array:
    """One entry of the last axis: ``values [..., n]`` at ``index [...]`` are ``[...]``.

    Args:
      values: an array of any dtype.
      index: int32, from 0 to n - 1; an index out of this range gives an undefined entry.

    Example:
      >>> gather_last(jnp.array([[0.2, 0.8], [0.7, 0.3]]), jnp.array([1, 0])).tolist()
      [0.800000011920929, 0.699999988079071]
    """
    return jnp.take_along_axis(values, index[..., None], axis=-1)[..., 0]
