"""The cache of all networks: a prompt part for each row, and slots for each lane.

The keys and values of a prompt are stored once and read by all lanes of the row. Slots hold new
tokens only, so lanes of equal length write in place at one scalar ``start``. The cache is never
rolled back. To rewind, pass a smaller ``start``: the slots from there on are not seen, and are
overwritten later.

A row with a prompt of P = 4 of which 3 tokens are real, and two lanes of S = 5 slots, of which the
second has one token less::

    prompt          slots
    p0 p1 p2 --     a0 a1 a2 .. ..      lane 0 writes its next token at start = 3
                    b0 b1 .. .. ..      lane 1 writes its next token at start = 2

``--`` is padding, ``..`` is a slot that is not written yet or was left by a rewind. Masks hide
both. The token of slot s is at position ``length + s``, unless the slots hold a tree; ``position``
therefore records it.

Where all lanes write at one slot, that is an update of a slice, in place. Lanes at slots of their
own need a scatter. If attention reads the slots in chunks, a TPU's compiler gives the scatter
another layout, and copies the whole cache to it and back at every write. On a TPU such slots are
therefore selected anew, each from the new tokens or from itself: a layer's slots are read and
written once, where they are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from decoding_jax.base import Array
from decoding_jax.models import attention
from decoding_jax.sharding import meshes


class KeyValue(NamedTuple):
    """Keys and values of one layer: prompt ``[B, H, P, d]`` or slots ``[B, W, H, S, d]``."""

    key: Array
    value: Array


Layers = tuple[KeyValue, ...] | KeyValue
"""The keys and values of all layers: one entry for each layer, or stacked along an axis of layers
before that of heads, where layers are scanned (see ``models.stack``)."""

LAYER_AXIS = 1
"""The axis of layers of stacked prompts ``[B, N, H, P, d]``."""


class Cache(NamedTuple):
    """The prompts and the new tokens of a batch, as keys and values.

    Attributes:
      prompt: for each layer, a ``KeyValue`` ``[B, H, P, d]``; stacked, ``[B, N, H, P, d]``.
      slots: for each layer, a ``KeyValue`` ``[B, W, H, S, d]``; stacked, ``[B, W, N, H, S, d]``.
      length: int32 ``[B]``, the number of real prompt tokens.
      position: int32 ``[B, W, S]``, the position of the token in every slot.
      source: None, or other data of the row: an encoder-decoder has a pair of the
        cross-attention's ``KeyValue`` for each layer and the length of the inputs.
    """

    prompt: Layers
    slots: Layers
    length: Array
    position: Array
    source: Any = None

    @property
    def num_slots(self) -> int:
        return self.position.shape[-1]


def num_keys(layers: Layers | None) -> int:
    """P, S or F, the number of keys of each layer; 0 of None, where there is no prefix."""
    return 0 if layers is None else jax.tree.leaves(layers)[0].shape[-2]


def prompt_part(prompt: KeyValue) -> KeyValue:
    """The keys and values ``[B, 1, H, P, d]`` of a prefill as the shared ones ``[B, H, P, d]``."""
    return KeyValue(*(meshes.over_rows(x[:, 0], 1) for x in prompt))


def empty_slots(
    prompt: Layers, length: Array, *, lanes: int, slots: int, source: Any = None
) -> Cache:
    """A cache of prompts without new tokens.

    The slots are zeros, because a NaN in a masked slot would make the weighted sum NaN.
    """

    def zeros(part: Array) -> Array:
        # A prompt that is stacked has an axis of layers before that of heads; so have its slots.
        batch, *heads, _, depth = part.shape
        empty = jnp.zeros((batch, lanes, *heads, slots, depth), part.dtype)
        return meshes.over_rows(empty, empty.ndim - 3)

    return Cache(
        prompt=prompt,
        slots=jax.tree.map(zeros, prompt),
        length=length,
        position=jnp.zeros((length.shape[0], lanes, slots), jnp.int32),
        source=source,
    )


def keep(cache: Cache, source: Array, start: Array | int) -> Cache:
    """Copies slots within each lane, positions included; see ``SupportsKeep.keep``.

    Args:
      cache: a cache.
      source: int32 ``[B, W, M]``, the slots to copy.
      start: int32 ``[]`` or ``[B, W]``. Slot ``source[b, w, m]`` is copied to slot ``start + m``.
    """
    # For an index outside the slots `take_along_axis` gives NaN, which no slot may hold.
    source = jnp.clip(source, 0, cache.num_slots - 1)
    # With one ``start`` for each lane, the slots that do not fit are dropped.
    start = jnp.broadcast_to(jnp.asarray(start, jnp.int32), source.shape[:2])

    def move(slots: Array) -> Array:
        index = jnp.expand_dims(source, (*range(2, slots.ndim - 2), slots.ndim - 1))
        return write(slots, jnp.take_along_axis(slots, index, axis=-2), start)

    return cache._replace(
        slots=jax.tree.map(move, cache.slots),
        position=move(cache.position[..., None])[..., 0],
    )


def select(cache: Cache, lanes: Array) -> Cache:
    """Replaces lane w of row b by its lane ``lanes[b, w]``; see ``SupportsSelect.select``."""
    lanes = jnp.clip(lanes, 0, cache.position.shape[1] - 1)

    # Under `vmap` over rows, a gather stays on the device of its row.
    def gather(part: Array) -> Array:
        return jax.vmap(lambda row, index: row[index])(part, lanes)

    return cache._replace(slots=jax.tree.map(gather, cache.slots), position=gather(cache.position))


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
    return lax.platform_dependent(slots, new, start, cpu=_scatter, default=_update)


def _by_platform(scatter: Callable[..., Array], slots: Array, new: Array, *at: Array) -> Array:
    if attention.chunk_size((*new.shape[:-2], *slots.shape[-2:])) is None:
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


def _scatter(slots: Array, new: Array, start: Array) -> Array:
    """``write`` with one ``start`` for all, or one for each index of the first axes."""
    start = start if start.ndim else jnp.broadcast_to(start, slots.shape[:-2])
    offset, size = jnp.arange(new.shape[-2], dtype=jnp.int32), slots.shape[-2]
    if start.size * new.shape[-2] == 1:
        # The CPU compiler turns a scatter of one update into the update of a slice that `write`
        # avoids, so the one update is written twice.
        new, offset = jnp.concatenate([new, new], axis=-2), jnp.zeros(2, jnp.int32)

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
    # One choice a token instead of a gather of tokens by slot: XLA fuses the choices into one pass.
    for token in range(count):
        held = jnp.where(slot == start + token, new[..., token : token + 1, :], held)
    if layer is None:
        return held
    return lax.dynamic_update_index_in_dim(slots, held, layer, slots.ndim - 4)
