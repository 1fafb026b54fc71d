"""The cache of all networks: a prompt part for each row, and slots for each lane.

The keys and values of a prompt are stored once and read by all lanes of the row. Slots hold new
tokens only, so lanes of equal length write in place at one scalar ``start``. The cache is never
rolled back. To rewind, pass a smaller ``start``: the slots from there on are not seen, and are
overwritten later.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from decoding_jax.base import Array
from decoding_jax.models.slot_writes import write
from decoding_jax.ops.mesh import over_rows_and_model


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


def num_keys(layers: Layers) -> int:
    """P or S, the number of keys of each layer."""
    return jax.tree.leaves(layers)[0].shape[-2]


def prompt_part(prompt: KeyValue) -> KeyValue:
    """The keys and values ``[B, 1, H, P, d]`` of a prefill as the shared ones ``[B, H, P, d]``."""
    return KeyValue(*(over_rows_and_model(x[:, 0], 1) for x in prompt))


def empty_slots(
    prompt: Layers, length: Array, *, lanes: int, slots: int, source: Any = None
) -> Cache:
    """A cache of prompts without new tokens.

    The slots are zeros, because a NaN in a masked slot would make the weighted sum NaN.
    """

    def zeros(part: Array) -> Array:
        batch, *heads, _, depth = part.shape
        empty = jnp.zeros((batch, lanes, *heads, slots, depth), part.dtype)
        return over_rows_and_model(empty, empty.ndim - 3)

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

    def gather(part: Array) -> Array:
        return jax.vmap(lambda row, index: row[index])(part, lanes)

    return cache._replace(slots=jax.tree.map(gather, cache.slots), position=gather(cache.position))
