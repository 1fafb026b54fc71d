"""The k largest numbers of each row, found in two levels, without moving sharded rows."""

from __future__ import annotations

import jax.numpy as jnp
from jax import lax

from decoding_jax.base import Array
from decoding_jax.ops.gather import gather_items
from decoding_jax.ops.mesh import map_rows

BLOCK = 64
"""Numbers in a block; the first level takes the maximum of each block."""


def top_k(values: Array, k: int) -> tuple[Array, Array]:
    """The k largest along the last axis, in descending order, equal numbers by lower index first.

    One pass takes the maximum of every block of 64 numbers. Only the k blocks with the largest
    maxima are then searched. That costs little more than a maximum, whereas ``lax.top_k`` walks the
    whole row with a heap. Rows that are sharded over devices are not moved.

    Args:
      values: float32 ``[..., n]``, no NaN.
      k: static, at most n.

    Returns:
      The values ``[..., k]`` and their indices, int32.

    Raises:
      ValueError: for a k below 1 or above n.

    Example:
      >>> top_k(jnp.array([1.0, 5.0, 2.0, 5.0]), 3)[1]
      Array([1, 3, 2], dtype=int32)
    """
    *rows, size = values.shape
    if not 1 <= k <= size:
        raise ValueError(f"k: got {k}; takes 1 to {size}, the size of the last axis")
    values = jnp.where(values == 0, 0.0, values)  # -0.0, which XLA puts below 0.0
    # XLA would gather sharded rows: its top-k takes all rows together.
    return map_rows(lambda x: _top_k(x, k), values) if rows else _top_k(values, k)


def _top_k(values: Array, k: int) -> tuple[Array, Array]:
    *rows, size = values.shape
    flat = values.reshape(-1, size)
    best, index = _two_levels(flat, k) if size > 2 * k * BLOCK else _one_level(flat, k)
    return best.reshape(*rows, k), index.reshape(*rows, k)


def _two_levels(values: Array, k: int) -> tuple[Array, Array]:
    """``top_k`` of ``[R, n]``: a number outside the k best blocks is below k others."""
    rows, size = values.shape
    blocks = -(-size // BLOCK)
    padding = blocks * BLOCK - size
    if padding:
        values = jnp.pad(values, ((0, 0), (0, padding)), constant_values=-jnp.inf)
    values = values.reshape(rows, blocks, BLOCK)
    chosen = _ascending(
        _top_k(values.max(-1), k)[1]
    )  # ascending, so equal numbers keep their order
    held = gather_items(values, chosen).reshape(rows, k * BLOCK)
    best, index = _one_level(held, k)
    block = gather_items(chosen, index // BLOCK)
    # An index is never one of the padding, which comes last, after at least k other numbers.
    return best, block * BLOCK + index % BLOCK


def _ascending(index: Array) -> Array:
    """Sorts distinct numbers ``[R, k]`` by their ranks, which is faster than XLA's sort."""
    rank = (index[:, None] < index[..., None]).sum(-1, dtype=jnp.int32)
    placed = rank[:, None] == jnp.arange(index.shape[-1], dtype=jnp.int32)[None, :, None]
    return jnp.where(placed, index[:, None], 0).sum(-1, dtype=jnp.int32)


def _one_level(values: Array, k: int) -> tuple[Array, Array]:
    # XLA's CPU compiler recognises a top-k by its two slices; if they merge with other slices, it
    # sorts instead. A separate barrier keeps each slice apart, because one barrier around the pair
    # crashes the compiler (jaxlib 0.10.2).
    best, index = lax.top_k(values, k)
    return lax.optimization_barrier(best), lax.optimization_barrier(index)
