"""Softmax attention over several arrays of keys and values at once."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import NamedTuple

import jax.numpy as jnp
from jax import lax

from decoding_jax.base import Array


class Part(NamedTuple):
    """K keys and values that queries ``[B, W, H, G, T, d]`` may attend to.

    Attributes:
      key: ``[B, H, K, d]``, shared by the lanes, or ``[B, W, H, K, d]``.
      value: as ``key``.
      mask: bool, broadcastable to ``[B, W, T, K]``.
      bias: None, or float32 ``[B, W, H, G, T, K]``-broadcastable, added to the logits.
      used: None, or an int32 scalar. The mask is False from this key on, so the keys and values
        from there on need not be read.
    """

    key: Array
    value: Array
    mask: Array
    bias: Array | None = None
    used: Array | None = None


class _Sums(NamedTuple):
    """The sums of an unfinished softmax, both divided by ``exp(peak)``.

    Attributes:
      peak: float32 ``[B, W, H, G, T, 1]``, the largest score so far; finite.
      total: float32 ``[B, W, H, G, T, 1]``, the sum of the weights.
      out: float32 ``[B, W, H, G, T, d]``, the weighted sum of the values.
    """

    peak: Array
    total: Array
    out: Array


CHUNK_SIZE = 2**17
"""The approximate number of elements in the keys of a chunk. At this size the loop over chunks adds
a few per cent to the time."""


def attend(query: Array, parts: Sequence[Part], scale: float) -> Array:
    """Softmax attention of every query over all parts together.

    Args:
      query: ``[B, W, H, G, T, d]``: G query heads share each of the H key-value heads.
      parts: the keys and values. Every query sees at least one key of them.
      scale: the factor of the logits.

    Returns:
      ``[B, W, H, G, T, d]``, in the dtype of the query.
    """
    chunks = [_chunk_of(part) for part in parts]
    whole = [p for p, chunk in zip(parts, chunks, strict=True) if chunk is None]
    sums = _attend_whole(query, whole, scale) if whole else None
    for part, chunk in zip(parts, chunks, strict=True):
        if chunk is not None:
            sums = _attend_chunks(query, part, scale, chunk, sums)
    assert sums is not None
    total = jnp.maximum(sums.total, jnp.finfo(jnp.float32).tiny)
    return (sums.out / total).astype(query.dtype)


def _chunk_of(part: Part) -> int | None:
    """The number of keys of a part that are read at a time, or None for all at once."""
    if part.used is None:
        return None
    size = part.key.shape[-2]
    elements_per_key = part.key.size // size
    chunk = max(128, 1 << (CHUNK_SIZE // elements_per_key - 1).bit_length())
    return chunk if 2 * chunk <= size else None


def _scores(query: Array, part: Part, scale: float) -> Array:
    """The scores, float32 ``[B, W, H, G, T, K]``, -inf where a key is not seen."""
    # A part that the lanes share has no axis of lanes, so it is never tiled.
    keys = "bhkd" if part.key.ndim == 4 else "bwhkd"
    # The keys come first, so that the longer operand is read in the order of its memory.
    score = jnp.einsum(
        f"{keys},bwhgtd->bwhkgt", part.key, query, preferred_element_type=jnp.float32
    )
    score = jnp.moveaxis(score, 3, -1)
    score = score if scale == 1.0 else score * scale
    score = score if part.bias is None else score + part.bias
    return jnp.where(part.mask[:, :, None, None], score, -jnp.inf)


def _weighted(part: Part, weight: Array) -> Array:
    """The weighted sum of the part's values, float32 ``[B, W, H, G, T, d]``."""
    values = "bhkd" if part.value.ndim == 4 else "bwhkd"
    # The product is in the dtype of the cache, because XLA's CPU backend has no batched bfloat16
    # product of this layout with a float32 result.
    out = jnp.einsum(f"bwhgtk,{values}->bwhgtd", weight.astype(part.value.dtype), part.value)
    return out.astype(jnp.float32)


def _attend_whole(query: Array, parts: Sequence[Part], scale: float) -> _Sums:
    """The sums of parts that are read all at once."""
    scores = [_scores(query, part, scale) for part in parts]
    # A query in the padding of a prompt may see no key. Its maximum is clipped, so that its output
    # is zero rather than NaN.
    peak = jnp.stack([s.max(-1) for s in scores]).max(0)
    peak = jnp.maximum(peak, jnp.finfo(jnp.float32).min)[..., None]
    weights = [jnp.exp(s - peak) for s in scores]
    total = sum((w.sum(-1, keepdims=True) for w in weights), jnp.zeros_like(peak))
    out = jnp.zeros(query.shape, jnp.float32)
    for part, weight in zip(parts, weights, strict=True):
        out += _weighted(part, weight)
    return _Sums(peak, total, out)


def _attend_chunks(query: Array, part: Part, scale: float, chunk: int, sums: _Sums | None) -> _Sums:
    """Adds the used keys of a part in chunks, so that the unused ones cost nothing.

    This is the running softmax of Milakov and Gimelshein 2018, "Online normalizer calculation for
    softmax".
    """
    size = part.key.shape[-2]
    assert part.used is not None
    if sums is None:
        lowest = jnp.full((*query.shape[:-1], 1), jnp.finfo(jnp.float32).min)
        sums = _Sums(lowest, jnp.zeros_like(lowest), jnp.zeros(query.shape, jnp.float32))

    def add(index: Array, sums: _Sums) -> _Sums:
        first = jnp.minimum(index * chunk, size - chunk)  # the last chunk overlaps the one before
        cut = functools.partial(lax.dynamic_slice_in_dim, start_index=first, slice_size=chunk)
        fresh = first + jnp.arange(chunk, dtype=jnp.int32) >= index * chunk
        piece = Part(
            cut(part.key, axis=-2),
            cut(part.value, axis=-2),
            cut(part.mask, axis=-1) & fresh[None, None, None],
            None if part.bias is None else cut(part.bias, axis=-1),
        )
        score = _scores(query, piece, scale)
        peak = jnp.maximum(sums.peak, score.max(-1, keepdims=True))
        weight, kept = jnp.exp(score - peak), jnp.exp(sums.peak - peak)
        return _Sums(
            peak,
            sums.total * kept + weight.sum(-1, keepdims=True),
            sums.out * kept + _weighted(piece, weight),
        )

    used = jnp.minimum(part.used, size)
    return lax.fori_loop(0, (used + chunk - 1) // chunk, add, sums)
