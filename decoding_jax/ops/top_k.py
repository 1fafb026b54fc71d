"""The k largest numbers of each row, found in two levels, without moving sharded rows."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental.custom_partitioning import custom_partitioning
from jax.sharding import NamedSharding, PartitionSpec

from decoding_jax.base import Array
from decoding_jax.ops.gather import gather_items

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
    flat = values.reshape(-1, size)
    best, index = _two_levels(flat, k) if size > 2 * k * BLOCK else _rows_top_k(k)(flat)
    return best.reshape(*rows, k), index.reshape(*rows, k)


def _two_levels(values: Array, k: int) -> tuple[Array, Array]:
    """``top_k`` of ``[R, n]``: a number outside the k best blocks is below k others."""
    rows, size = values.shape
    blocks = -(-size // BLOCK)
    padding = blocks * BLOCK - size
    if padding:
        values = jnp.pad(values, ((0, 0), (0, padding)), constant_values=-jnp.inf)
    values = values.reshape(rows, blocks, BLOCK)
    chosen = _ascending(top_k(values.max(-1), k)[1])  # ascending, so equal numbers keep their order
    held = gather_items(values, chosen).reshape(rows, k * BLOCK)
    best, index = _rows_top_k(k)(held)
    block = gather_items(chosen, index // BLOCK)
    # An index is never one of the padding, which comes last, after at least k other numbers.
    return best, block * BLOCK + index % BLOCK


def _ascending(index: Array) -> Array:
    """Sorts distinct numbers ``[R, k]`` by their ranks, which is faster than XLA's sort."""
    rank = (index[:, None] < index[..., None]).sum(-1, dtype=jnp.int32)
    placed = rank[:, None] == jnp.arange(index.shape[-1], dtype=jnp.int32)[None, :, None]
    return jnp.where(placed, index[:, None], 0).sum(-1, dtype=jnp.int32)


def _plain(values: Array, k: int) -> tuple[Array, Array]:
    # XLA's CPU compiler recognises a top-k by its two slices; if they merge with other slices, it
    # sorts instead. A separate barrier keeps each slice apart, because one barrier around the pair
    # crashes the compiler (jaxlib 0.10.2).
    best, index = lax.top_k(values, k)
    return lax.optimization_barrier(best), lax.optimization_barrier(index)


def _by_rows(mesh: Any, arguments: Any) -> NamedSharding:
    rows = tuple(arguments[0].sharding.spec)[:1] or (None,)
    return NamedSharding(mesh, PartitionSpec(*rows, None))


def _infer(k: int, mesh: Any, arguments: Any, results: Any) -> tuple[NamedSharding, ...]:
    return (_by_rows(mesh, arguments),) * 2


def _partition(k: int, mesh: Any, arguments: Any, results: Any) -> tuple[Any, ...]:
    rows = _by_rows(mesh, arguments)
    return mesh, functools.partial(_plain, k=k), (rows, rows), (rows,)


# XLA gathers all rows before a top-k. This partitioning rule declares the rows independent.
_partitioned = custom_partitioning(_plain, static_argnums=(1,))
_partitioned.def_partition(
    partition=_partition, infer_sharding_from_operands=_infer, sharding_rule="b n -> b k, b k"
)


@functools.cache
def _rows_top_k(k: int) -> Callable[[Array], tuple[Array, Array]]:
    """``lax.top_k`` of ``[R, n]``, which can be sharded over R and used under ``vmap``."""

    @jax.custom_batching.custom_vmap
    def rows_top_k(values: Array) -> tuple[Array, Array]:
        return _partitioned(values, k)

    @rows_top_k.def_vmap
    def over_batch(size: int, batched: Any, values: Array) -> Any:
        best, index = rows_top_k(values.reshape(-1, values.shape[-1]))
        shape = (*values.shape[:2], k)
        return (best.reshape(shape), index.reshape(shape)), (True, True)

    return rows_top_k
