"""Attention over a cache: who sees whom, how far apart they stand, and one joint softmax."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax.numpy as jnp
from jax import lax

from decoding_jax.base import Array
from decoding_jax.models.cache import Cache, KeyValue, prompt_part, write


class Part(NamedTuple):
    """A stretch of keys and values that queries ``[B, W, H, G, T, d]`` may attend to.

    Attributes:
      key: ``[B, H, K, d]``, shared by the lanes, or ``[B, W, H, K, d]``.
      value: as ``key``.
      mask: bool, broadcastable to ``[B, W, T, K]``.
      bias: None, or float32 ``[B, W, H, G, T, K]``-broadcastable, added to the logits.
      used: None, or int32: no query sees a key from this one on, so they need not be read.
    """

    key: Array
    value: Array
    mask: Array
    bias: Array | None = None
    used: Array | None = None


class _Sums(NamedTuple):
    """A softmax under way: the weights' sum and the weighted values, both over exp(peak).

    Attributes:
      peak: float32 ``[B, W, H, G, T, 1]``, the largest score so far; finite.
      total: float32, as ``peak``.
      out: float32 ``[B, W, H, G, T, d]``.
    """

    peak: Array
    total: Array
    out: Array


CHUNK_SIZE = 2**17
"""Numbers that the keys of a chunk hold, about: a few per cent of its time go to the loop."""


def attend(query: Array, parts: Sequence[Part], scale: float) -> Array:
    """Softmax attention of every query over all parts together.

    Args:
      query: ``[B, W, H, G, T, d]``: G query heads share each of the H key-value heads.
      parts: what may be attended to; every query sees at least one key of them.
      scale: factor of the logits.

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
    """How many keys of a part are read at a time; None for all at once."""
    if part.used is None:
        return None
    size = part.key.shape[-2]
    a_slot = part.key.size // size
    chunk = max(128, 1 << (CHUNK_SIZE // a_slot - 1).bit_length())
    return chunk if 2 * chunk <= size else None


def _scores(query: Array, part: Part, scale: float) -> Array:
    """float32 ``[B, W, H, G, T, K]``, -inf where a key is not seen."""
    # The lanes' axis is absent from a shared part, which is therefore never tiled.
    keys = "bhkd" if part.key.ndim == 4 else "bwhkd"
    # Keys come first: the longer operand is read in its own order.
    score = jnp.einsum(
        f"{keys},bwhgtd->bwhkgt", part.key, query, preferred_element_type=jnp.float32
    )
    score = jnp.moveaxis(score, 3, -1)
    score = score if scale == 1.0 else score * scale
    score = score if part.bias is None else score + part.bias
    return jnp.where(part.mask[:, :, None, None], score, -jnp.inf)


def _weighted(part: Part, weight: Array) -> Array:
    """float32 ``[B, W, H, G, T, d]``: the part's values, weighted and summed."""
    values = "bhkd" if part.value.ndim == 4 else "bwhkd"
    # In the cache's own dtype: XLA's CPU backend has no batched bfloat16 product of this layout
    # with a float32 result.
    out = jnp.einsum(f"bwhgtk,{values}->bwhgtd", weight.astype(part.value.dtype), part.value)
    return out.astype(jnp.float32)


def _attend_whole(query: Array, parts: Sequence[Part], scale: float) -> _Sums:
    scores = [_scores(query, part, scale) for part in parts]
    # A query of a padded prompt row may see nothing: its maximum is clipped, so that it averages
    # nothing to zero rather than to NaN.
    peak = jnp.stack([s.max(-1) for s in scores]).max(0)
    peak = jnp.maximum(peak, jnp.finfo(jnp.float32).min)[..., None]
    weights = [jnp.exp(s - peak) for s in scores]
    total = sum((w.sum(-1, keepdims=True) for w in weights), jnp.zeros_like(peak))
    out = jnp.zeros(query.shape, jnp.float32)
    for part, weight in zip(parts, weights, strict=True):
        out += _weighted(part, weight)
    return _Sums(peak, total, out)


def _attend_chunks(query: Array, part: Part, scale: float, chunk: int, sums: _Sums | None) -> _Sums:
    """Adds the used keys of a part, a chunk at a time, so that unused ones cost nothing.

    The running softmax of Milakov and Gimelshein 2018, "Online normalizer calculation for
    softmax".
    """
    size = part.key.shape[-2]
    assert part.used is not None
    if sums is None:
        lowest = jnp.full((*query.shape[:-1], 1), jnp.finfo(jnp.float32).min)
        sums = _Sums(lowest, jnp.zeros_like(lowest), jnp.zeros(query.shape, jnp.float32))

    def add(index: Array, sums: _Sums) -> _Sums:
        first = jnp.minimum(index * chunk, size - chunk)  # the last one overlaps the one before
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


class View(NamedTuple):
    """What the tokens of one ``extend`` see of the cache, the same for every layer.

    Attributes:
      position: int32, broadcastable to ``[B, W, T]``: where the tokens stand.
      prompt_mask: bool ``[B, 1, 1, P]``.
      slot_mask: bool, broadcastable to ``[B, W, T, S']``.
      prompt_distance: int32, broadcastable to ``[B, W, T, P]``: query minus key position.
      slot_distance: int32, broadcastable to ``[B, W, T, S']``.
      self_mask: None in a chain, where a token finds itself among the slots. In a tree, where it
        may be written beyond the slots that ``visible`` names, bool ``[1, 1, T, T]``: the
        diagonal of the block.
      used: int32: no token sees a slot from this one on.
    """

    position: Array
    prompt_mask: Array
    slot_mask: Array
    prompt_distance: Array
    slot_distance: Array
    self_mask: Array | None
    used: Array


def view_of(
    cache: Cache,
    width: int,
    start: Array | int,
    visible: Array | None,
    position: Array | None,
) -> tuple[View, Cache]:
    """The view of ``width`` tokens written at ``start``, and the cache with their positions.

    Raises:
      ValueError: if ``visible`` names more slots than there are.
    """
    batch, lanes, num_slots = cache.position.shape
    start = jnp.asarray(start, jnp.int32)
    index = (
        start.reshape(start.shape or (1, 1))[..., None]
        + jnp.arange(width, dtype=jnp.int32)[None, None]
    )
    if position is not None:
        position = jnp.asarray(position, jnp.int32)
        position = position.reshape((1,) * (3 - position.ndim) + position.shape)
    elif visible is not None:
        position = cache.length[:, None, None] + visible.sum(-1, dtype=jnp.int32)
    else:
        position = cache.length[:, None, None] + index
    filled = jnp.broadcast_to(position, (batch, lanes, width))
    cache = cache._replace(
        position=write(cache.position[..., None], filled[..., None], start)[..., 0]
    )

    if visible is None:
        slots = jnp.arange(num_slots, dtype=jnp.int32)[None, None, None]
        slot_mask = slots <= index[..., None]
        # The lane's path is slots 0 .. start - 1, so distance is a matter of slots alone: rows of
        # several lengths share it, and with a scalar cursor it is one small matrix.
        slot_distance = index[..., None] - slots
        self_mask = None
        used = jnp.max(start) + width
    else:
        seen = visible.shape[-1]
        if seen > num_slots:
            raise ValueError(f"visible: got {seen} slots; takes at most the cache's {num_slots}")
        slot_mask = visible & (
            jnp.arange(seen, dtype=jnp.int32)[None, None, None] != index[..., None]
        )
        slot_distance = position[..., None] - cache.position[:, :, None, :seen]
        own = jnp.arange(width, dtype=jnp.int32)
        self_mask = (own[:, None] == own[None])[None, None]
        named = slot_mask.any((0, 1, 2))
        used = jnp.max(jnp.where(named, jnp.arange(1, seen + 1, dtype=jnp.int32), 0))
    prompt = jnp.arange(cache.prompt[0].key.shape[-2], dtype=jnp.int32)
    view = View(
        position=position,
        prompt_mask=(prompt[None] < cache.length[:, None])[:, None, None],
        slot_mask=slot_mask,
        prompt_distance=position[..., None] - prompt[None, None, None],
        slot_distance=slot_distance,
        self_mask=self_mask,
        used=used,
    )
    return view, cache


class Biases(NamedTuple):
    """Position biases of the parts of a view, ``[B, W, H, G, T, K]``-broadcastable, or None."""

    prompt: Array | None = None
    slots: Array | None = None
    itself: Array | None = None


Past = Callable[[KeyValue], tuple[list[Part], KeyValue]]
"""How one layer meets the past: given the keys and values of a block, what the block attends to
(itself included), and what the cache is to hold of the layer from now on."""


def prompt_past(
    length: Array, size: int, bias: Array | None = None, *, causal: bool = True
) -> Past:
    """Every layer of a prefill of ``size`` tokens: each sees real ones, up to itself if causal."""
    index = jnp.arange(size, dtype=jnp.int32)
    real = index[None] < length[:, None]
    earlier = (index[None, :] <= index[:, None]) | (not causal)
    mask = earlier[None, None] & real[:, None, None]

    def past(block: KeyValue) -> tuple[list[Part], KeyValue]:
        row = prompt_part(block)
        return [Part(row.key, row.value, mask, bias)], row

    return past


def slot_pasts(
    cache: Cache, view: View, start: Array | int, biases: Sequence[Biases] | None = None
) -> list[Past]:
    """The layers of an ``extend``: each writes the block to its slots, then sees the view."""

    def past_of(prompt: KeyValue, slots: KeyValue, bias: Biases) -> Past:
        def past(block: KeyValue) -> tuple[list[Part], KeyValue]:
            stored = KeyValue(
                write(slots.key, block.key, start), write(slots.value, block.value, start)
            )
            seen = view.slot_mask.shape[-1]
            parts = [
                Part(prompt.key, prompt.value, view.prompt_mask, bias.prompt),
                Part(
                    stored.key[..., :seen, :],
                    stored.value[..., :seen, :],
                    view.slot_mask,
                    bias.slots,
                    view.used,
                ),
            ]
            if view.self_mask is not None:
                parts.append(Part(block.key, block.value, view.self_mask, bias.itself))
            return parts, stored

        return past

    if biases is None:
        biases = [Biases()] * len(cache.slots)
    return [past_of(*layer) for layer in zip(cache.prompt, cache.slots, biases, strict=True)]
