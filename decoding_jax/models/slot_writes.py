"""Writes the keys and values of new tokens into the slots of a cache.

Where all lanes write at one slot, that is an update of a slice, in place. Lanes at slots of their
own need a scatter. If attention reads the slots in chunks, a TPU's compiler gives the scatter
another layout, and copies the whole cache to it and back at every write. On a TPU such slots are
therefore selected anew, each from the new tokens or from itself: a layer's slots are read and
written once, where they are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from decoding_jax.base import Array
from decoding_jax.models.attention import chunk_size


def write(slots: Array, new: Array, start: Array | int, layer: Array | None = None) -> Array:
    """Writes entries of new tokens into slots.

    Args:
      slots: ``[B, W, ..., S, d]``, or of a stack of layers ``[B, W, N, H, S, d]``.
      new: ``[B, W, ..., T, d]``, or of one layer ``[B, W, H, T, d]``.
      start: the first slot that is written, int32 ``[]`` or ``[B, W]``. A scalar is an update in
        place, and the caller guarantees that ``start + T`` is at most S. With ``[B, W]``, the
        entries outside ``[0, S)`` are dropped.
      layer: None, or an int32 scalar, the layer of the stack that is written.
    """
    start = jnp.asarray(start, jnp.int32)
    new = new.astype(slots.dtype)
    if layer is not None:
        return _write_layer(slots, new, start, layer)
    if start.ndim:
        return _by_platform(_scatter, slots, new, start)
    # XLA's CPU compiler fuses an update of a slice into each of its readers if an axis has size 1,
    # and then copies the whole cache at every step. It does not fuse a scatter. But it converts the
    # whole cache to float32 and back for a scatter of bfloat16.
    if slots.dtype == jnp.bfloat16:
        return _update(slots, new, start)
    return lax.platform_dependent(slots, new, start, cpu=_scatter_heads, default=_update)


def _by_platform(scatter: Callable[..., Array], slots: Array, new: Array, *at: Array) -> Array:
    if chunk_size((*new.shape[:-2], *slots.shape[-2:])) is None:
        return scatter(slots, new, *at)
    return lax.platform_dependent(slots, new, *at, tpu=select_slots, default=scatter)


def _write_layer(slots: Array, new: Array, start: Array, layer: Array) -> Array:
    """``write`` to one layer of ``[..., N, H, S, d]``."""
    if start.ndim == 0:
        zero = jnp.int32(0)
        origin = [*[zero] * (slots.ndim - 4), layer, zero, start, zero]
        return lax.dynamic_update_slice(slots, jnp.expand_dims(new, -4), origin)
    return _by_platform(_scatter_layer, slots, new, start, layer)


def _scatter_layer(slots: Array, new: Array, start: Array, layer: Array) -> Array:
    size = slots.shape[-2]

    def scatter(slots: Array, new: Array, start: Array) -> Array:
        index = _slot_index(start, jnp.arange(new.shape[-2], dtype=jnp.int32), size)
        return slots.at[layer, :, index].set(jnp.moveaxis(new, -2, 0), mode="drop")

    for _ in start.shape:
        scatter = jax.vmap(scatter)
    return scatter(slots, new, start)


def _slot_index(start: Array, offset: Array, size: int) -> Array:
    index = start + offset
    # A negative index would wrap around, so it is replaced by S, which is dropped.
    return jnp.where(index < 0, size, index)


def _update(slots: Array, new: Array, start: Array) -> Array:
    origin: list[Any] = [*[jnp.int32(0)] * (slots.ndim - 2), start, jnp.int32(0)]
    return lax.dynamic_update_slice(slots, new, origin)


def _scatter_heads(slots: Array, new: Array, start: Array) -> Array:
    return _scatter(slots, new, jnp.broadcast_to(start, slots.shape[:-2]))


def _scatter(slots: Array, new: Array, start: Array) -> Array:
    """``write`` with one ``start`` for each index of the first axes."""
    if start.size * new.shape[-2] == 1:
        # The CPU compiler turns a scatter of one update into the update of a slice that `write`
        # avoids, so the one update is written twice.
        new = jnp.concatenate([new, new], axis=-2)
        return _scatter_to(slots, new, start, jnp.zeros(2, jnp.int32))
    return _scatter_to(slots, new, start, jnp.arange(new.shape[-2], dtype=jnp.int32))


def _scatter_to(slots: Array, new: Array, start: Array, offset: Array) -> Array:
    """Writes ``new [..., T, d]`` to the slots ``start + offset``, with ``offset [T]``."""
    size = slots.shape[-2]

    def scatter(slots: Array, new: Array, start: Array) -> Array:
        return slots.at[..., _slot_index(start, offset, size), :].set(new, mode="drop")

    # Rows may be sharded. Nested vmap needs no gather across them, unlike advanced indexing.
    for _ in start.shape:
        scatter = jax.vmap(scatter)
    return scatter(slots, new, start)


def select_slots(slots: Array, new: Array, start: Array, layer: Array | None = None) -> Array:
    """``write`` with one ``start`` for each lane, by a choice for each slot of the layer.

    Args:
      slots: as for ``write``.
      new: as for ``write``.
      start: int32 ``[B, W]``.
      layer: as for ``write``.
    """
    num_slots, count = slots.shape[-2], new.shape[-2]
    start = start.reshape(start.shape + (1,) * (new.ndim - start.ndim))
    held = slots if layer is None else lax.dynamic_index_in_dim(slots, layer, -4, keepdims=False)
    slot = jnp.arange(num_slots, dtype=jnp.int32).reshape((1,) * (new.ndim - 2) + (-1, 1))
    for token in range(count):
        held = jnp.where(slot == start + token, new[..., token : token + 1, :], held)
    if layer is None:
        return held
    return lax.dynamic_update_index_in_dim(slots, held, layer, slots.ndim - 4)
