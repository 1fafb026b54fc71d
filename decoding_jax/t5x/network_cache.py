"""The cache of a T5X network: a tree whose leaves are identified by name.

======================== ====================================================================
``cached_key, _value``   ``[(layers,) rows, heads, d, L]``: written by addition
``cache_index``          position of the next token: ``[(layers,)]``, or ``[(layers,) rows]``
``cached_bias``          the relative position biases, shared by all rows
any other leaf           one entry per row, after the layer axis
======================== ====================================================================

The layer axis is present if layers are scanned; ``offset`` is then 1, and otherwise 0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from decoding_jax.base import Array

SHARED = ("cached_bias", "position_embedder_index")
WRITTEN = ("cached_key", "cached_value")
INDEX = "cache_index"


def plain(cache: Any) -> Any:
    """The cache as plain dicts of arrays, whatever mappings it consists of."""
    if isinstance(cache, Mapping):
        return {name: plain(value) for name, value in cache.items()}
    return jax.tree.map(jnp.asarray, cache)


def _map(fn: Callable[[str, Array], Array], cache: Any) -> Any:
    def visit(path: tuple, leaf: Array) -> Array:
        return fn(str(path[-1].key), leaf) if path else leaf

    return jax.tree_util.tree_map_with_path(visit, cache)


def has_vector_index(cache: Any, offset: int) -> bool:
    """Whether every row has its own cache index."""
    leaves = jax.tree_util.tree_flatten_with_path(plain(cache))[0]
    indices = [leaf for path, leaf in leaves if path and str(path[-1].key) == INDEX]
    return bool(indices) and all(leaf.ndim > offset for leaf in indices)


def _per_row(name: str, leaf: Array, offset: int) -> bool:
    return name not in SHARED and leaf.ndim > offset


def expand(cache: Any, lanes: int, offset: int) -> Any:
    """Repeats every row ``lanes`` times; the copies of a row are adjacent."""

    def repeat(name: str, leaf: Array) -> Array:
        return jnp.repeat(leaf, lanes, axis=offset) if _per_row(name, leaf, offset) else leaf

    return cache if lanes == 1 else _map(repeat, cache)


def select(cache: Any, lanes: Array, offset: int) -> Any:
    """Replaces lane w of row b by its lane ``lanes[b, w]`` (int32 ``[B, W]``)."""
    batch, width = lanes.shape
    rows = (
        jnp.arange(batch, dtype=jnp.int32)[:, None] * width + jnp.clip(lanes, 0, width - 1)
    ).reshape(-1)

    def gather(name: str, leaf: Array) -> Array:
        return jnp.take(leaf, rows, axis=offset) if _per_row(name, leaf, offset) else leaf

    return _map(gather, cache)


def point_at(cache: Any, index: Array, offset: int) -> Any:
    """Sets every cache index to ``index`` and clears the slot it points at.

    A network adds to the content of a slot, so a slot has to be zero before it is written again.
    Later slots are masked by the network and may keep their content.

    Args:
      cache: the cache of all rows.
      index: int32, a scalar or ``[rows]``.
      offset: the axis of the rows.
    """

    def update(name: str, leaf: Array) -> Array:
        if name == INDEX:
            return jnp.broadcast_to(index, leaf.shape).astype(leaf.dtype)
        if name not in WRITTEN:
            return leaf
        slots = jnp.arange(leaf.shape[-1], dtype=jnp.int32).reshape((*(1,) * (leaf.ndim - 1), -1))
        ones = (1,) * (leaf.ndim - offset - 1)
        is_next = slots == index.reshape((*(1,) * offset, -1, *ones))
        return jnp.where(is_next, jnp.zeros((), leaf.dtype), leaf)

    return _map(update, cache)
