"""Forced tokens: those of T5X's ``inputs``, and those that a callback puts ahead of the search.

A forced token is fed and returned, but no choice: the logits before it leave no other, so that it
adds no score, draws no lot and consumes no code.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp

from decoding_jax.base import Array


class AdapterCache(NamedTuple):
    """The network's cache, and what stands in each sequence.

    Attributes:
      network: the cache of all lanes.
      forced: int32 ``[B, W, L + 2]``: tokens that are not to be chosen, 0 elsewhere.
      sequences: int32 ``[B, W, L + 2]``, what was fed; column 0 is the start token.
      base: int32, a scalar or ``[B]``: where the last token of the prompt stands. Slot s is
        position ``base + 1 + s``.
      loop: what callbacks are told of the search beyond this, or None.
    """

    network: Any
    forced: Array
    sequences: Array
    base: Array
    loop: Any = None


def open_cache(network: Any, inputs: Array, lanes: int, base: Array) -> AdapterCache:
    """The cache before the first token.

    Args:
      network: the network's.
      inputs: int32 ``[B, L]``, T5X's.
      lanes: W.
      base: where the last token of each prompt stands.
    """
    inputs = _wide(inputs).at[:, 0].set(0)
    forced = jnp.broadcast_to(inputs[:, None], (inputs.shape[0], lanes, inputs.shape[1]))
    return AdapterCache(network, forced, forced, base)


def enter(
    cache: AdapterCache, token: Array, slot: Array
) -> tuple[AdapterCache, Array, Array, Array]:
    """Puts the next token of every lane into its sequence.

    Args:
      cache: before it.
      token: int32 ``[B, W]``, chosen.
      slot: int32, a scalar or ``[B, W]``. The prompt's last token stands at slot -1.

    Returns:
      The cache with the token in its sequences; the token to feed, which is the forced one where
      there is one; its position, a scalar or ``[B, W]``; and what is known of each sequence by
      then, int32 ``[B, W, L + 2]``.
    """
    width = cache.sequences.shape[-1]
    base = cache.base if cache.base.ndim == 0 else cache.base[:, None]
    index = base + 1 + slot
    if slot.ndim:
        # Nowhere: behind the last position, where a network writes nothing.
        index = jnp.where(slot < 0, width, index)
    if index.ndim:
        index = jnp.broadcast_to(index, token.shape)
    place = jnp.arange(width, dtype=jnp.int32)[None, None]
    at = place == jnp.broadcast_to(index, token.shape)[..., None]
    given = jnp.where(at, cache.forced, 0).sum(-1)
    token = jnp.where(given != 0, given, token)
    sequences = jnp.where(at, token[..., None], cache.sequences)
    known = jnp.where(place <= per_lane(index), sequences, 0)
    known = jnp.where(cache.forced != 0, cache.forced, known)
    return cache._replace(sequences=sequences), token, index, known


def leave_forced(
    logits: Array,
    forced: Array,
    inputs: Array,
    index: Array,
    eos_id: Array,
    show_prompt: bool = True,
) -> Array:
    """Leaves one token where the next is forced.

    An end token of ``inputs``, or one outside the vocabulary, is token 0 (or 1, where 0 ends) to
    the strategy, since it ends nothing. An end token that a callback forces does end.

    Args:
      logits: float32 ``[B, W, V]``.
      forced: int32 ``[B, W, L + 2]``.
      inputs: int32 ``[B, L]``, T5X's.
      index: int32, a scalar or ``[B, W]``, the position of the token before.
      eos_id: int32, a scalar or ``[E]``.
      show_prompt: whether other tokens of ``inputs`` are themselves to the strategy, or 0 too.
    """
    place = jnp.arange(forced.shape[-1], dtype=jnp.int32)[None, None] == per_lane(index) + 1
    given = jnp.where(place, forced, 0).sum(-1)
    in_prompt = jnp.where(place, _wide(inputs)[:, None], 0).sum(-1) != 0
    ends = jnp.reshape(eos_id, (1, 1, -1))
    stand_in = jnp.where((ends == 0).any(), 1, 0)
    hidden = in_prompt & ((given[..., None] == ends).any(-1) | (not show_prompt))
    only = jnp.where(hidden | (given >= logits.shape[-1]), stand_in, given)
    one = jnp.where(
        jnp.arange(logits.shape[-1], dtype=jnp.int32)[None, None] == only[..., None], 0.0, -jnp.inf
    )
    return jnp.where((given != 0)[..., None], one, logits)


def per_lane(index: Array) -> Array:
    """A position, a scalar or ``[B, W]``, as ``[1, 1, 1]`` or ``[B, W, 1]``."""
    return index[..., None] if index.ndim else index.reshape(1, 1, 1)


def _wide(inputs: Array) -> Array:
    return jnp.pad(inputs, ((0, 0), (0, 2)))
