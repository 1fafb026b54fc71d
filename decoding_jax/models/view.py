"""The part of the cache that each new token attends to, and its update in each layer.

In a layer with a sliding window, a token sees only the nearest tokens: the window is a mask by
distance (Beltagy et al. 2020, "Longformer"; Jiang et al. 2023, "Mistral 7B"). A pattern says which
layers have it. It is repeated over the layers, so that the first layers of a network have the
pattern of the network.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from decoding_jax import fields
from decoding_jax.base import Array
from decoding_jax.models import attention, caches, stack

EVERYTHING = 2**30
"""The window of a scanned layer that has none, larger than every distance."""


def check_window(window: int | None, pattern: Sequence[bool]) -> None:
    """Refuses a window that is not None or positive, and a pattern without entries.

    Raises:
      ValueError: for one of these.
    """
    if window is not None and window < 1:
        raise fields.error("window", "None, or 1 and above", window)
    if not pattern:
        raise fields.error("window_pattern", "one entry or more", pattern)


def is_local(pattern: Sequence[bool], index: int | Array) -> bool | Array:
    """Whether the layer of this index has the window.

    Args:
      pattern: whether each layer has it, repeated over the layers.
      index: the index of the layer, an int32 scalar where layers are scanned.

    Returns:
      A bool, or a bool scalar array where the index is an array.

    Example:
      >>> [is_local((True, True, False), i) for i in range(4)]
      [True, True, False, True]
    """
    if isinstance(index, int):
        return bool(pattern[index % len(pattern)])
    return jnp.asarray(pattern)[index % len(pattern)]


def window_of(
    window: int | None, pattern: Sequence[bool], index: int | Array
) -> int | Array | None:
    """The distance from which the layer of this index sees no key, or None.

    Example:
      >>> [window_of(512, (True, False), i) for i in range(3)]
      [512, None, 512]
    """
    if window is None or not any(pattern):
        return None
    if all(pattern):
        return window
    local = is_local(pattern, index)
    if isinstance(local, bool):
        return window if local else None
    return jnp.where(local, window, EVERYTHING)


def real_tokens(length: Array, size: int) -> Array:
    """Which of ``size`` tokens of a row are real, bool ``[B, 1, 1, P]``, for lengths ``[B]``."""
    index = jnp.arange(size, dtype=jnp.int32)
    return (index[None] < length[:, None])[:, None, None]


class View(NamedTuple):
    """The keys that the T new tokens of one ``extend`` attend to, the same in every layer.

    The first S' slots are those that ``visible`` names, or all slots.

    Attributes:
      position: int32, broadcastable to ``[B, W, T]``, the positions of the new tokens.
      prompt_mask: bool ``[B, 1, 1, P]``.
      slot_mask: bool, broadcastable to ``[B, W, T, S']``.
      slot_distance: int32, broadcastable to ``[B, W, T, S']``: query minus key position.
      self_mask: None in a chain, where ``slot_mask`` includes the slot of the token itself. In a
        tree, whose tokens may be written beyond the slots that ``visible`` names, the diagonal
        bool ``[1, 1, T, T]``, a mask over the new tokens.
      used: int32 scalar. No token sees a slot from this one on.
    """

    position: Array
    prompt_mask: Array
    slot_mask: Array
    slot_distance: Array
    self_mask: Array | None
    used: Array


def view_of(
    cache: caches.Cache,
    num_tokens: int,
    start: Array | int,
    visible: Array | None,
    position: Array | None,
) -> tuple[View, caches.Cache]:
    """The view of ``num_tokens`` new tokens, and the cache with their positions.

    Args:
      cache: the cache before the tokens.
      num_tokens: T, the number of new tokens of each lane.
      start: as for ``LanguageModel.extend``.
      visible: as for ``LanguageModel.extend``.
      position: as for ``LanguageModel.extend``.

    Raises:
      ValueError: if ``visible`` names more slots than the cache has.
    """
    batch, lanes, num_slots = cache.position.shape
    start = jnp.asarray(start, jnp.int32)
    index = (
        start.reshape(start.shape or (1, 1))[..., None]
        + jnp.arange(num_tokens, dtype=jnp.int32)[None, None]
    )
    if position is not None:
        position = jnp.asarray(position, jnp.int32)
        position = position.reshape((1,) * (3 - position.ndim) + position.shape)
    elif visible is not None:
        position = cache.length[:, None, None] + visible.sum(-1, dtype=jnp.int32)
    else:
        position = cache.length[:, None, None] + index
    filled = jnp.broadcast_to(position, (batch, lanes, num_tokens))
    cache = cache._replace(
        position=caches.write(cache.position[..., None], filled[..., None], start)[..., 0]
    )

    if visible is None:
        slots = jnp.arange(num_slots, dtype=jnp.int32)[None, None, None]
        slot_mask = slots <= index[..., None]
        # The lane's path is slots 0 .. start - 1, so distances depend on slots alone. Rows of
        # different lengths share them, and with a scalar ``start`` they are one small matrix.
        slot_distance = index[..., None] - slots
        self_mask = None
        used = jnp.max(start) + num_tokens
    else:
        seen = visible.shape[-1]
        if seen > num_slots:
            raise ValueError(f"visible: expected at most the cache's {num_slots} slots, got {seen}")
        slot_mask = visible & (
            jnp.arange(seen, dtype=jnp.int32)[None, None, None] != index[..., None]
        )
        slot_distance = position[..., None] - cache.position[:, :, None, :seen]
        new = jnp.arange(num_tokens, dtype=jnp.int32)
        self_mask = (new[:, None] == new[None])[None, None]
        # One maximum, not one for each slot, so that where rows are sharded one number travels.
        slot = jnp.arange(1, seen + 1, dtype=jnp.int32)[None, None, None]
        used = jnp.max(jnp.where(slot_mask, slot, 0), initial=0)
    view = View(
        position=position,
        prompt_mask=real_tokens(cache.length, caches.num_keys(cache.prompt)),
        slot_mask=slot_mask,
        slot_distance=slot_distance,
        self_mask=self_mask,
        used=used,
    )
    return view, cache


class Biases(NamedTuple):
    """Position biases of the parts of a view.

    Attributes:
      prompt: None, or a ``Bias``, ``[B, W, H, G, T, P]``-broadcastable.
      slots: None, or ``[B, W, H, G, T, S']``-broadcastable.
      itself: None, or ``[B, W, H, G, T, T]``-broadcastable, for the tokens of a tree.
    """

    prompt: attention.Bias | None = None
    slots: Array | None = None
    itself: Array | None = None


Window = int | Array | None
"""A number of tokens that are seen on one side, or None for all."""

LayerCache = Callable[[caches.KeyValue], tuple[list[attention.Part], caches.KeyValue]]
"""The cache of one layer, as a function of the keys and values of the new tokens. It returns the
parts that the new tokens attend to, themselves included, and the layer's updated cache."""


def prompt_layer_cache(
    length: Array,
    size: int,
    bias: attention.Bias | None = None,
    *,
    window: Window = None,
    ahead: Window = 0,
) -> LayerCache:
    """The cache of each layer in a prefill, which is empty before it.

    Args:
      length: int32 ``[B]``, the lengths of the prompts.
      size: P, the padded length of the prompts.
      bias: None, or a ``Bias``, ``[B, 1, H, G, P, P]``-broadcastable.
      window: None, or the distance from which a token sees no earlier tokens.
      ahead: the number of later tokens that a token sees, or None for all. Padding is never seen.
    """
    # An array of NumPy, so that what computes the attention knows it when a program is traced.
    position: Any = np.arange(size, dtype=np.int32)[None, None]

    def layer_cache(new: caches.KeyValue) -> tuple[list[attention.Part], caches.KeyValue]:
        prompt = caches.prompt_part(new)
        return [_seen(prompt, length, position, bias, window, ahead)], prompt

    return layer_cache


def chunk_layer_cache(
    held: caches.KeyValue,
    length: Array,
    position: Array,
    bias: attention.Bias | None = None,
    layer: Array | None = None,
    *,
    window: Window = None,
) -> LayerCache:
    """The cache of one layer in a prefill of C tokens at a time, causal.

    Args:
      held: ``[B, H, P, d]``, with the keys and values of all earlier tokens; or of a stack of
        layers, ``[B, N, H, P, d]``.
      length: int32 ``[B]``, the lengths of the prompts.
      position: int32 ``[1, 1, C]``, the positions of the tokens, one after another.
      bias: None, or a ``Bias``, ``[B, 1, H, G, C, P]``-broadcastable.
      layer: None, or the layer of the stack.
      window: as for ``prompt_layer_cache``.
    """

    def layer_cache(new: caches.KeyValue) -> tuple[list[attention.Part], caches.KeyValue]:
        key, value = caches.prompt_part(new)
        first = position[0, 0, 0]
        stored = caches.KeyValue(
            caches.write(held.key, key, first, layer), caches.write(held.value, value, first, layer)
        )
        seen = _seen(stored, length, position, bias, window)
        return [seen._replace(layer=layer)], stored

    return layer_cache


def after_shared_prefix(
    layer_cache: LayerCache,
    prefix: caches.Layers,
    index: int | Array,
    position: Array,
    bias: attention.Bias | None = None,
    *,
    window: Window = None,
) -> LayerCache:
    """The cache of one layer whose tokens also see all of a prefix that all rows share.

    Args:
      layer_cache: the cache of the tokens after the prefix.
      prefix: each layer's keys and values ``[1, H, F, d]``; stacked, ``[1, N, H, F, d]``.
      index: the index of the layer, an int32 scalar where layers are scanned.
      position: int32, broadcastable to ``[B, W, T]``, the positions of the new tokens, counted from
        the first token of the prefix.
      bias: None, or a ``Bias``, ``[B, W, H, G, T, F]``-broadcastable.
      window: as for ``prompt_layer_cache``.
    """
    shared: Any = prefix[index] if isinstance(index, int) else prefix
    part = prefix_part(shared, position, bias, stack.stack_index(index), window=window)

    def with_prefix(new: caches.KeyValue) -> tuple[list[attention.Part], caches.KeyValue]:
        parts, stored = layer_cache(new)
        return [part, *parts], stored

    return with_prefix


def prefix_part(
    prefix: caches.KeyValue,
    position: Array,
    bias: attention.Bias | None = None,
    layer: Array | None = None,
    *,
    window: Window = None,
) -> attention.Part:
    """What tokens see of one layer of a prefix that all rows share.

    Args:
      prefix: the layer's keys and values ``[1, H, F, d]``; or of a stack of layers,
        ``[1, N, H, F, d]``.
      position: as for ``after_shared_prefix``.
      bias: as for ``after_shared_prefix``.
      layer: None, or the layer of the stack.
      window: as for ``prompt_layer_cache``.
    """
    key, value = (x[0] for x in prefix)
    mask = jnp.ones((1, 1, 1, key.shape[-2]), bool)
    part = attention.Part(key, value, mask, bias, layer=layer)
    if window is None and bias is None:
        return part
    return part._replace(position=position, least_distance=0, window=window)


def _seen(
    prompt: caches.KeyValue,
    length: Array,
    position: Array,
    bias: attention.Bias | None,
    window: Window,
    ahead: Window = 0,
) -> attention.Part:
    """The real tokens of a prompt, for tokens of the same prompt at ``position [1, 1, T]``."""
    real = real_tokens(length, prompt.key.shape[-2])
    least = None if ahead is None else -ahead
    part = attention.Part(prompt.key, prompt.value, real, bias, position=position)
    return part._replace(least_distance=least, window=window)


def slot_layer_cache(
    prompt: caches.KeyValue,
    slots: caches.KeyValue,
    view: View,
    start: Array | int,
    bias: Biases | None = None,
    layer: Array | None = None,
    *,
    window: Window = None,
) -> LayerCache:
    """The cache of one layer in an ``extend``, which writes the new tokens from slot ``start``.

    Args:
      prompt: the layer's keys and values ``[B, H, P, d]`` of the prompts.
      slots: the layer's ``[B, W, H, S, d]``; or of a stack of layers, ``[B, W, N, H, S, d]``.
      view: from ``view_of``.
      start: as for ``LanguageModel.extend``.
      bias: the layer's position biases, or None.
      layer: None, or the layer of the stack.
      window: as for ``prompt_layer_cache``.
    """
    bias = Biases() if bias is None else bias

    def layer_cache(new: caches.KeyValue) -> tuple[list[attention.Part], caches.KeyValue]:
        stored = caches.KeyValue(
            caches.write(slots.key, new.key, start, layer),
            caches.write(slots.value, new.value, start, layer),
        )
        parts = cached_parts(prompt, stored, view, bias, layer, window=window)
        if view.self_mask is not None:
            parts.append(attention.Part(new.key, new.value, view.self_mask, bias.itself))
        return parts, stored

    return layer_cache


def cached_parts(
    prompt: caches.KeyValue,
    slots: caches.KeyValue,
    view: View,
    bias: Biases | None = None,
    layer: Array | None = None,
    *,
    window: Window = None,
) -> list[attention.Part]:
    """What the tokens of a view see of the cache of one layer: its prompts and its slots.

    The arguments are those of ``slot_layer_cache``, after the new tokens are written.
    """
    bias = Biases() if bias is None else bias
    seen = view.slot_mask if window is None else view.slot_mask & (view.slot_distance < window)
    return [
        attention.Part(
            *prompt, view.prompt_mask, bias.prompt, position=view.position, window=window
        ),
        attention.Part(*slots, seen, bias.slots, view.used, layer=layer),
    ]
