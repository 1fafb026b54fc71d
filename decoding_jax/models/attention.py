"""Softmax attention over several arrays of keys and values at once."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from decoding_jax.base import Array
from decoding_jax.ops import precision

Bias = Array | Callable[[Array, Array], Array]
"""Position biases, float32 ``[B, W, H, G, T, K]``-broadcastable, or the function that computes them
from distances, query minus key position, and from the positions of keys. Both are int32 and
``[B, W, T, K]``-broadcastable."""


class Part(NamedTuple):
    """K keys and values that queries ``[B, W, H, G, T, d]`` may attend to.

    What would take T x K numbers, a causal mask or biases, can be given as a rule on positions
    instead, so that it is never held whole.

    Attributes:
      key: ``[H, K, d]``, shared by all rows; ``[B, H, K, d]``, shared by the lanes of a row; or
        ``[B, W, H, K, d]``. A stack of layers has an axis N before H. An array may have more than K
        keys; those from K on are not read.
      value: as ``key``.
      mask: bool, broadcastable to ``[B, W, T, K]``, with a last axis of K.
      bias: None, or a ``Bias`` that is added to the logits; a function needs ``position``.
      used: None, or an int32 scalar. The mask is False from this key on, so the keys and values
        from there on need not be read.
      position: None, or int32, broadcastable to ``[B, W, T]``, the positions of the queries. Key k
        is at position k.
      least_distance: None, or the least distance at which a query sees a key, 0 in a causal
        prompt; needs ``position``.
      window: None, or the distance from which a query sees no key; needs ``position``.
      layer: None, or an int32 scalar, the layer of the stack whose keys these are. Chunks are read
        from the stack, which saves a copy of the layer.
    """

    key: Array
    value: Array
    mask: Array
    bias: Bias | None = None
    used: Array | None = None
    position: Array | None = None
    least_distance: Array | int | None = None
    window: Array | int | None = None
    layer: Array | None = None

    @property
    def num_keys(self) -> int:
        """K."""
        return self.mask.shape[-1]


class Scale(NamedTuple):
    """The scaling of the products of queries and keys before the softmax.

    Attributes:
      factor: the factor of the products.
      soft_cap: None, or the bound c of ``c tanh(x / c)``, which scaled products become (Bello et
        al. 2016, "Neural Combinatorial Optimization with Reinforcement Learning"; Gemma 2).
    """

    factor: float
    soft_cap: float | None = None


def soft_capped(x: Array, cap: float | None) -> Array:
    """``cap * tanh(x / cap)``, or ``x`` if there is no cap."""
    return x if cap is None else cap * jnp.tanh(x / cap)


def read_part(part: Part, first: Array | int = 0, size: int | None = None) -> Part:
    """The part with the arrays of its own layer's keys alone, ``size`` of them from ``first``."""
    size = part.num_keys if size is None else size

    def read(x: Array) -> Array:
        if part.layer is not None:
            zero = jnp.int32(0)
            origin = [*[zero] * (x.ndim - 4), part.layer, zero, jnp.asarray(first, jnp.int32), zero]
            sizes = [*x.shape[:-4], 1, x.shape[-3], size, x.shape[-1]]
            return lax.dynamic_slice(x, origin, sizes).squeeze(-4)
        if isinstance(first, int):
            return x[..., first : first + size, :]
        return lax.dynamic_slice_in_dim(x, first, size, -2)

    return part._replace(key=read(part.key), value=read(part.value), layer=None)


_AXES = {3: "hkd", 4: "bhkd", 5: "bwhkd"}  # of keys and values, by their number


def scores(query: Array, part: Part, scale: Scale, first: Array | int = 0) -> Array:
    """The scores, float32 ``[B, W, H, G, T, K]``, -inf where a key is not seen.

    Args:
      query: as for ``attention_choice.attend``.
      part: as for ``attention_choice.attend``.
      scale: the factor and the bound of the scores.
      first: the position of the part's first key.
    """
    # A part that rows or lanes share has no axis of them, so it is never tiled.
    keys = _AXES[part.key.ndim]
    # The keys come first, so that the longer operand is read in the order of its memory.
    score = jnp.einsum(
        f"{keys},bwhgtd->bwhkgt",
        part.key,
        query,
        precision=precision.of(part.key, query),
        preferred_element_type=jnp.float32,
    )
    score = jnp.moveaxis(score, 3, -1)
    score = score if scale.factor == 1.0 else score * scale.factor
    score = soft_capped(score, scale.soft_cap)
    mask, bias = part.mask, part.bias
    if part.position is not None:
        key = first + jnp.arange(part.key.shape[-2], dtype=jnp.int32)
        distance = part.position[..., None] - key[None, None, None]
        if part.least_distance is not None:
            mask = mask & (distance >= part.least_distance)
        if part.window is not None:
            mask = mask & (distance < part.window)
        bias = bias(distance, key[None, None, None]) if callable(bias) else bias
    assert not callable(bias), "biases by distance need positions"
    score = score if bias is None else score + bias
    return jnp.where(mask[:, :, None, None], score, -jnp.inf)


def weighted(part: Part, weight: Array) -> Array:
    """The weighted sum of the part's values, float32 ``[B, W, H, G, T, d]``."""
    values = _AXES[part.value.ndim]
    # The product is in the dtype of the cache, because XLA's CPU backend has no batched bfloat16
    # product of this layout with a float32 result.
    out = jnp.einsum(
        f"bwhgtk,{values}->bwhgtd",
        weight.astype(part.value.dtype),
        part.value,
        precision=precision.of(part.value),
    )
    return out.astype(jnp.float32)


class Sums(NamedTuple):
    """The sums of an unfinished softmax, both divided by ``exp(peak)``.

    Attributes:
      peak: float32 ``[B, W, H, G, T, 1]``, the largest score so far; finite.
      total: float32 ``[B, W, H, G, T, 1]``, the sum of the weights.
      out: float32 ``[B, W, H, G, T, d]``, the weighted sum of the values.
    """

    peak: Array
    total: Array
    out: Array

    def result(self, dtype: Any) -> Array:
        """The attention; that of a query that sees no key is 0.

        Its gradient is finite then: nothing is divided by 0.
        """
        return (self.out / jnp.where(self.total > 0, self.total, 1.0)).astype(dtype)


CHUNK_SIZE = 2**17
"""The approximate number of elements in the keys of a chunk. At this size the loop over chunks adds
a few per cent to the time."""

SCORE_LIMIT = 2**24
"""The number of scores that are held whole. A part with more is read in blocks."""

BLOCK_SCORES = 2**22
"""The number of scores of a block. Smaller blocks are faster on a CPU, and larger ones make fewer
steps on an accelerator."""

LEAST_BLOCK = 128
"""No block has fewer queries or keys, however many rows, lanes and heads share its scores."""


BLOCK = 32
"""The keys of a block of ``attend_in_fixed_blocks``."""

IMPLEMENTATIONS = ("auto", "xla", "pallas", "fixed")
"""The values of ``NetworkConfig.attention``."""


def attend_in_blocks(query: Array, parts: Sequence[Part], scale: Scale) -> Array:
    """The definition of ``attention_choice.attend``, as XLA compiles it for every device.

    Scores are held whole where they are few. Beyond ``SCORE_LIMIT``, blocks of queries read blocks
    of keys with a running softmax, so that memory is linear in the numbers of queries and of keys
    (Milakov & Gimelshein 2018; Rabe & Staats 2021, "Self-attention does not need O(n^2) memory").

    Args:
      query: as for ``attention_choice.attend``.
      parts: as for ``attention_choice.attend``.
      scale: the scaling of the scores.
    """
    num_queries = query.shape[-2]
    rows = math.prod(query.shape[:4])
    most_keys = max((p.num_keys for p in parts if _chunk_of(p) is None), default=0)
    block = max(LEAST_BLOCK, _power_of_two(math.isqrt(BLOCK_SCORES // max(rows, 1))))
    if rows * num_queries * most_keys <= SCORE_LIMIT or num_queries <= block:
        return _attend_block(query, parts, scale, SCORE_LIMIT)

    # The backward pass computes a block again instead of holding its scores.
    @jax.checkpoint
    def attend_from(first: Array) -> Array:
        cut = functools.partial(_cut, first=first, size=block)
        pieces = [
            part._replace(
                mask=cut(part.mask, -2),
                bias=cut(part.bias, -2),
                position=cut(part.position, -1),
            )
            for part in parts
        ]
        some = lax.dynamic_slice_in_dim(query, first, block, -2)
        return _attend_block(some, pieces, scale, BLOCK_SCORES)

    def add(index: Array, out: Array) -> Array:
        first = jnp.minimum(index * block, num_queries - block)  # the last block overlaps
        return lax.dynamic_update_slice_in_dim(out, attend_from(first), first, -2)

    return lax.fori_loop(0, -(-num_queries // block), add, jnp.zeros_like(query))


def attend_in_fixed_blocks(query: Array, parts: Sequence[Part], scale: Scale) -> Array:
    """Attention by a running softmax over blocks of ``BLOCK`` keys, whatever the number of keys.

    A block that a query does not see leaves its sums as they are, to the bit. So the result of a
    query depends neither on the number of keys after the last one that it sees, nor on other rows.

    Args:
      query: as for ``attention_choice.attend``.
      parts: as for ``attention_choice.attend``. A part that is not a number of blocks is one block.
      scale: the scaling of the scores.
    """
    sums = None
    for part in parts:
        block = part.num_keys if part.num_keys % BLOCK else BLOCK
        if part.used is None:
            key = jnp.arange(1, part.num_keys + 1, dtype=jnp.int32)[None, None, None]
            part = part._replace(used=jnp.max(jnp.where(part.mask, key, 0)))
        sums = _attend_chunks(query, part, scale, block, sums)
    assert sums is not None
    return sums.result(query.dtype)


def _power_of_two(number: int) -> int:
    """The largest power of two up to a number, or 1."""
    return 1 << max(number.bit_length() - 1, 0)


def _cut(array: Any, axis: int, first: Array, size: int) -> Any:
    """A slice of an axis of an array. None, rules and broadcast axes are left alone."""
    if array is None or callable(array) or array.shape[axis] == 1:
        return array
    return lax.dynamic_slice_in_dim(array, first, size, axis)


def _attend_block(query: Array, parts: Sequence[Part], scale: Scale, limit: int) -> Array:
    """Attention of all queries at a time. A part of up to ``limit`` scores is held whole."""
    chunks = [_keys_at_a_time(query, part, limit) for part in parts]
    whole = [read_part(p) for p, chunk in zip(parts, chunks, strict=True) if chunk is None]
    sums = _attend_whole(query, whole, scale) if whole else None
    for part, chunk in zip(parts, chunks, strict=True):
        if chunk is not None:
            sums = _attend_chunks(query, part, scale, chunk, sums)
    assert sums is not None
    return sums.result(query.dtype)


def _chunk_of(part: Part) -> int | None:
    """The number of keys that are read at a time up to the last one in use, or None for all."""
    if part.used is None:
        return None
    *rows, _, depth = part.key.shape
    if part.layer is not None:
        del rows[-2]
    return chunk_size((*rows, part.num_keys, depth))


def chunk_size(shape: Sequence[int]) -> int | None:
    """The number of slots ``[..., S, d]`` that are read at a time, or None for all at once."""
    *rows, size, depth = shape
    chunk = max(128, 1 << (CHUNK_SIZE // (math.prod(rows) * depth) - 1).bit_length())
    return chunk if 2 * chunk <= size else None


def _keys_at_a_time(query: Array, part: Part, limit: int) -> int | None:
    """The number of keys of a part that are read at a time, or None for all at once."""
    chunk = _chunk_of(part)
    if chunk is not None:
        return chunk
    size, rows = part.num_keys, math.prod(query.shape[:5])
    block = max(LEAST_BLOCK, _power_of_two(BLOCK_SCORES // max(rows, 1)))
    return block if rows * size > limit and block < size else None


def _attend_whole(query: Array, parts: Sequence[Part], scale: Scale) -> Sums:
    """The sums of parts that are read all at once."""
    found = [scores(query, part, scale) for part in parts]
    # A query in the padding of a prompt may see no key. Its maximum is clipped, so that its output
    # is zero rather than NaN.
    peak = jnp.stack([s.max(-1) for s in found]).max(0)
    peak = jnp.maximum(peak, jnp.finfo(jnp.float32).min)[..., None]
    weights = [jnp.exp(s - peak) for s in found]
    total = sum((w.sum(-1, keepdims=True) for w in weights), jnp.zeros_like(peak))
    out = jnp.zeros(query.shape, jnp.float32)
    for part, weight in zip(parts, weights, strict=True):
        out += weighted(part, weight)
    return Sums(peak, total, out)


def _attend_chunks(query: Array, part: Part, scale: Scale, chunk: int, sums: Sums | None) -> Sums:
    """Adds a part in chunks of keys, so that the keys that no query sees cost nothing.

    This is the running softmax of Milakov and Gimelshein 2018, "Online normalizer calculation for
    softmax".
    """
    size = part.num_keys
    if sums is None:
        lowest = jnp.full((*query.shape[:-1], 1), jnp.finfo(jnp.float32).min)
        sums = Sums(lowest, jnp.zeros_like(lowest), jnp.zeros(query.shape, jnp.float32))

    def add(index: Array, sums: Sums) -> Sums:
        first = jnp.minimum(index * chunk, size - chunk)  # the last chunk overlaps the one before
        cut = functools.partial(_cut, first=first, size=chunk)
        fresh = first + jnp.arange(chunk, dtype=jnp.int32) >= index * chunk
        piece = read_part(part, first, chunk)._replace(
            mask=cut(part.mask, -1) & fresh[None, None, None],
            bias=cut(part.bias, -1),
        )
        score = scores(query, piece, scale, first)
        # The result does not depend on the peak, so neither does its gradient.
        peak = lax.stop_gradient(jnp.maximum(sums.peak, score.max(-1, keepdims=True)))
        weight, kept = jnp.exp(score - peak), jnp.exp(sums.peak - peak)
        return Sums(
            peak,
            sums.total * kept + weight.sum(-1, keepdims=True),
            sums.out * kept + weighted(piece, weight),
        )

    if part.used is not None:
        used = jnp.minimum(part.used, size)
        return lax.fori_loop(0, (used + chunk - 1) // chunk, add, sums)
    # This loop can be differentiated, because its length is not traced.
    add_again = jax.checkpoint(add)
    if part.position is None or part.least_distance is None:
        return lax.fori_loop(0, -(-size // chunk), add_again, sums)
    last = part.position.max() - part.least_distance
    before = -1 if part.window is None else part.position.min() - part.window

    def add_seen(index: Array, sums: Sums) -> Sums:
        seen = (index * chunk <= last) & ((index + 1) * chunk - 1 > before)
        return lax.cond(seen, add_again, lambda _, sums: sums, index, sums)

    return lax.fori_loop(0, -(-size // chunk), add_seen, sums)
