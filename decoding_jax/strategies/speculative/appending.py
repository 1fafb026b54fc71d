"""Appending several tokens at once to lanes of different lengths, up to where a sequence ends."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from decoding_jax.base import Array, Stop
from decoding_jax.loop import Sequences, stopping
from decoding_jax.ops import exact
from decoding_jax.strategies.speculative.distributions import Softmax


def place_tokens(tokens: Array, new: Array, start: Array) -> Array:
    """Writes ``new [B, W, T]`` into ``tokens [B, W, L]`` from ``start [B, W]`` on.

    Tokens beyond L are dropped.
    """
    index = jnp.arange(tokens.shape[-1], dtype=jnp.int32)[None, None] - start[..., None]
    inside = (index >= 0) & (index < new.shape[-1])
    source = jnp.clip(index, 0, new.shape[-1] - 1)
    return jnp.where(inside, jnp.take_along_axis(new, source, axis=-1), tokens)


def append(
    sequences: Sequences,
    new: Array,
    count: Array,
    dead: Array,
    distribution: Softmax,
    stop: Stop,
    limit: Array,
) -> tuple[Sequences, Array]:
    """Appends up to ``count`` tokens to every lane that is not done, and ends sequences.

    Args:
      sequences: the sequences decoded so far.
      new: int32 ``[B, W, T]``.
      count: int32 ``[B, W]``, the number of tokens to append unless the sequence ends before.
      dead: bool ``[B, W, T]``: where no token is allowed; the sequence ends before it.
      distribution: the target's untransformed distribution, ``[B, W, T, V]``.
      stop: the stop conditions.
      limit: int32 ``[B]``, the maximum number of new tokens of each row.

    Returns:
      The sequences, and the number of tokens appended to each: int32 ``[B, W]``.
    """
    index = jnp.arange(new.shape[-1], dtype=jnp.int32)[None, None]
    after = sequences.length[..., None] + index + 1
    written = place_tokens(sequences.tokens, new, sequences.length)
    flat = stopping.is_end_token(stop, new.reshape(new.shape[0], -1))
    ends = jax.vmap(
        lambda n: stopping.ends_with_sequence(stop, written, n), in_axes=-1, out_axes=-1
    )(after)
    ended = flat.reshape(new.shape) | (ends & (after >= stopping.minimum(stop)[:, None, None]))
    possible = (index < count[..., None]) & ~dead & (after <= limit[:, None, None])
    possible &= ~sequences.done[..., None]
    # The token that ends a sequence is still part of it.
    ends_so_far = jnp.cumsum(ended, axis=-1, dtype=jnp.int32)
    open_before = ends_so_far - ended.astype(jnp.int32) == 0
    kept = jnp.cumprod((possible & open_before).astype(jnp.int32), axis=-1)
    appended = kept.sum(-1, dtype=jnp.int32)
    length = sequences.length + appended
    finished = sequences.finished | ((kept > 0) & ended).any(-1)
    stuck = (dead & (index == appended[..., None]) & (index < count[..., None])).any(-1)
    real = jnp.arange(written.shape[-1], dtype=jnp.int32)[None, None] < length[..., None]
    gained = jnp.where(kept > 0, distribution.log_prob_of(new), 0.0).sum(-1)
    log_prob, lost = exact.add(sequences.log_prob, sequences.log_prob_lost, gained)
    return Sequences(
        tokens=jnp.where(real, written, 0),
        length=length,
        log_prob=log_prob,
        log_prob_lost=lost,
        finished=finished,
        done=sequences.done | finished | stuck | (length >= limit[:, None]),
    ), appended
