"""The cache that the networks here share: a prompt part for each row, a slot part for each lane.

A prompt's keys and values are stored once and read by all lanes of the row. Slots hold new tokens
only, so lanes in lock step write at one scalar cursor, in place. Nothing is ever rolled back: a
smaller ``start`` rewinds, and what lies beyond it is stale, unseen, and overwritten later.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from decoding_jax.base import Array


class KeyValue(NamedTuple):
    """Keys and values of one layer: prompt ``[B, H, P, d]`` or slots ``[B, W, H, S, d]``."""

    key: Array
    value: Array


class Cache(NamedTuple):
    """Everything ``extend`` needs of the past.

    Attributes:
      prompt: a ``KeyValue`` ``[B, H, P, d]`` a layer.
      slots: a ``KeyValue`` ``[B, W, H, S, d]`` a layer.
      length: int32 ``[B]``, real prompt tokens.
      position: int32 ``[B, W, S]``, the position of the token in every slot.
      source: what else the row owns (an encoder-decoder's cross-attention ``KeyValue`` a layer
        and its input length), or None.
    """

    prompt: tuple[KeyValue, ...]
    slots: tuple[KeyValue, ...]
    length: Array
    position: Array
    source: Any = None

    @property
    def num_slots(self) -> int:
        return self.position.shape[-1]


def prompt_part(block: KeyValue) -> KeyValue:
    """A prefill's block ``[B, 1, H, P, d]`` as the row's shared part ``[B, H, P, d]``."""
    return KeyValue(block.key[:, 0], block.value[:, 0])


def empty_slots(
    prompt: tuple[KeyValue, ...], length: Array, *, lanes: int, slots: int, source: Any = None
) -> Cache:
    """A cache after its prompt. Slots start as zeros: 0 x NaN would poison a masked sum."""

    def zeros(part: Array) -> Array:
        batch, heads, _, depth = part.shape
        return jnp.zeros((batch, lanes, heads, slots, depth), part.dtype)

    return Cache(
        prompt=prompt,
        slots=tuple(KeyValue(zeros(kv.key), zeros(kv.value)) for kv in prompt),
        length=length,
        position=jnp.zeros((length.shape[0], lanes, slots), jnp.int32),
        source=source,
    )


def write(slots: Array, block: Array, start: Array | int) -> Array:
    """Writes ``block [B, W, ..., T, d]`` into ``slots [B, W, ..., S, d]`` from slot ``start``.

    A scalar ``start`` is an update in place; the caller guarantees that the block fits. With
    ``[B, W]``, what falls outside ``[0, S)`` is dropped.
    """
    start = jnp.asarray(start, jnp.int32)
    block = block.astype(slots.dtype)
    if start.ndim:
        return _scatter(slots, block, start)
    # XLA's CPU compiler fuses an update of a slice into each of its readers wherever an axis has
    # size 1, and then has to copy the whole cache at every step. A scatter it leaves alone; but
    # one of bfloat16 it does in float32, the whole cache converted there and back.
    if slots.dtype == jnp.bfloat16:
        return _update(slots, block, start)
    return lax.platform_dependent(slots, block, start, cpu=_scatter_heads, default=_update)


def _update(slots: Array, block: Array, start: Array) -> Array:
    origin: list[Any] = [*[jnp.int32(0)] * (slots.ndim - 2), start, jnp.int32(0)]
    return lax.dynamic_update_slice(slots, block, origin)


def _scatter_heads(slots: Array, block: Array, start: Array) -> Array:
    return _scatter(slots, block, jnp.broadcast_to(start, slots.shape[:-2]))


def _scatter(slots: Array, block: Array, start: Array) -> Array:
    """``write`` from a slot of its own for each index of the first axes, those of ``start``."""
    if start.size * block.shape[-2] == 1:
        # A scatter of one update becomes, on the CPU, the update of a slice that `write` avoids:
        # the one update is written twice.
        block = jnp.concatenate([block, block], axis=-2)
        return _scatter_to(slots, block, start, jnp.zeros(2, jnp.int32))
    return _scatter_to(slots, block, start, jnp.arange(block.shape[-2], dtype=jnp.int32))


def _scatter_to(slots: Array, block: Array, start: Array, offset: Array) -> Array:
    """``block`` written to ``start + offset``, of ``offset [T]``."""
    size = slots.shape[-2]

    def one(part: Array, new: Array, at: Array) -> Array:
        index = at + offset
        # A negative index would wrap to the end; S is outside, and dropped.
        index = jnp.where(index < 0, size, index)
        return part.at[..., index, :].set(new, mode="drop")

    # Nested vmap rather than advanced indexing: rows may be sharded, and this needs no gather.
    for _ in start.shape:
        one = jax.vmap(one)
    return one(slots, block, start)


def keep(cache: Cache, source: Array, start: Array | int) -> Cache:
    """Copies slots ``source [B, W, M]`` to ``start + m`` of the same lane, positions included."""
    source = jnp.clip(source, 0, cache.num_slots - 1)
    # Per lane even where all are in step: what does not fit is dropped.
    start = jnp.broadcast_to(jnp.asarray(start, jnp.int32), source.shape[:2])

    def move(slots: Array) -> Array:
        index = jnp.expand_dims(source, (*range(2, slots.ndim - 2), slots.ndim - 1))
        return write(slots, jnp.take_along_axis(slots, index, axis=-2), start)

    return cache._replace(
        slots=jax.tree.map(move, cache.slots),
        position=move(cache.position[..., None])[..., 0],
    )


def select(cache: Cache, lanes: Array) -> Cache:
    """Puts lane ``lanes[b, w]`` of row b in the place of its lane w."""
    lanes = jnp.clip(lanes, 0, cache.position.shape[1] - 1)

    def gather(part: Array) -> Array:
        return jax.vmap(lambda row, index: row[index])(part, lanes)

    return cache._replace(slots=jax.tree.map(gather, cache.slots), position=gather(cache.position))
