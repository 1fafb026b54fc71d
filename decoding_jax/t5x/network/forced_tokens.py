"""Forced tokens: those of T5X's ``inputs``, and those that a callback writes at later positions.

A forced token is fed to the network and returned, but not chosen. The logits before it allow no
other token, so it adds no score, draws nothing and consumes no arithmetic code.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp

from decoding_jax.base import Array


class AdapterCache(NamedTuple):
    """The cache of the network, and the tokens of each sequence.

    Attributes:
      network: the network's cache for all lanes.
      forced: int32 ``[B, W, L + 2]``, the forced tokens, and 0 where a token is chosen.
      sequences: int32 ``[B, W, L + 2]``, the tokens fed so far; column 0 is the start token.
      base: int32, a scalar or ``[B]``: the position of the last prompt token. Slot s is position
        ``base + 1 + s``.
      loop: the state of the search that callbacks are given, or None.
    """

    network: Any
    forced: Array
    sequences: Array
    base: Array
    loop: Any = None


def open_cache(network: Any, inputs: Array, lanes: int, base: Array) -> AdapterCache:
    """The cache before the first token.

    Args:
      network: the network's cache.
      inputs: int32 ``[B, L]``, the inputs of T5X.
      lanes: W.
      base: int32, a scalar or ``[B]``: the position of the last prompt token.
    """
    inputs = _padded(inputs).at[:, 0].set(0)
    forced = jnp.broadcast_to(inputs[:, None], (inputs.shape[0], lanes, inputs.shape[1]))
    return AdapterCache(network, forced, forced, base)


def enter(
    cache: AdapterCache, token: Array, slot: Array
) -> tuple[AdapterCache, Array, Array, Array]:
    """Appends the next token of every lane to its sequence.

    Args:
      cache: the cache before the token.
      token: int32 ``[B, W]``, the chosen tokens.
      slot: int32, a scalar or ``[B, W]``. The last prompt token has slot -1.

    Returns:
      The cache with the token in its sequences; the token to feed, which is the forced token if
      there is one; its position, int32, a scalar or ``[B, W]``; and the tokens of each sequence up
      to this position and the forced ones after it, int32 ``[B, W, L + 2]``.
    """
    width = cache.sequences.shape[-1]
    base = cache.base if cache.base.ndim == 0 else cache.base[:, None]
    index = base + 1 + slot
    if slot.ndim:
        # A position after the last one, where a network writes nothing.
        index = jnp.where(slot < 0, width, index)
    if index.ndim:
        index = jnp.broadcast_to(index, token.shape)
    position = jnp.arange(width, dtype=jnp.int32)[None, None]
    is_current = position == jnp.broadcast_to(index, token.shape)[..., None]
    forced = jnp.where(is_current, cache.forced, 0).sum(-1)
    token = jnp.where(forced != 0, forced, token)
    sequences = jnp.where(is_current, token[..., None], cache.sequences)
    known = jnp.where(position <= over_positions(index), sequences, 0)
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
    """Bans all tokens but the forced one where the next token is forced.

    The strategy is shown token 0 (or 1, if 0 is an end token) instead of a forced token outside the
    vocabulary, and instead of an end token in ``inputs``, which does not end the sequence. An end
    token that a callback forces does end it.

    Args:
      logits: float32 ``[B, W, V]``.
      forced: int32 ``[B, W, L + 2]``, the forced tokens.
      inputs: int32 ``[B, L]``, the inputs of T5X.
      index: int32, a scalar or ``[B, W]``, the position of the previous token.
      eos_id: int32, a scalar or ``[E]``, the end tokens.
      show_prompt: whether the strategy is shown the other tokens of ``inputs``, or 0 for them too.
    """
    is_next = jnp.arange(forced.shape[-1], dtype=jnp.int32)[None, None] == over_positions(index) + 1
    next_forced = jnp.where(is_next, forced, 0).sum(-1)
    in_prompt = jnp.where(is_next, _padded(inputs)[:, None], 0).sum(-1) != 0
    end_tokens = jnp.reshape(eos_id, (1, 1, -1))
    substitute = jnp.where((end_tokens == 0).any(), 1, 0)
    is_end = (next_forced[..., None] == end_tokens).any(-1)
    hidden = (in_prompt & (is_end | (not show_prompt))) | (next_forced >= logits.shape[-1])
    allowed = jnp.where(hidden, substitute, next_forced)[..., None]
    vocabulary = jnp.arange(logits.shape[-1], dtype=jnp.int32)[None, None]
    forced_logits = jnp.where(vocabulary == allowed, 0.0, -jnp.inf)
    return jnp.where((next_forced != 0)[..., None], forced_logits, logits)


def over_positions(index: Array) -> Array:
    """A position, a scalar or ``[B, W]``, as ``[1, 1, 1]`` or ``[B, W, 1]``."""
    return index[..., None] if index.ndim else index.reshape(1, 1, 1)


def _padded(inputs: Array) -> Array:
    return jnp.pad(inputs, ((0, 0), (0, 2)))
