"""Appends several tokens at once to sequences of different lengths, up to where each ends."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from decoding_jax.base import Array, Stop
from decoding_jax.loop import Sequences, stopping
from decoding_jax.ops import exact
from decoding_jax.strategies.speculative.distributions import Softmax


def place_tokens(tokens: Array, new: Array, start: Array) -> Array:
    """Writes ``new [B, W, T]`` to positions ``start [B, W]`` and following of ``tokens [B, W, L]``.

    Tokens beyond L are dropped.
    """
    index = jnp.arange(tokens.shape[-1], dtype=jnp.int32)[None, None] - start[..., None]
    inside = (index >= 0) & (index < new.shape[-1])
    source = jnp.clip(index, 0, new.shape[-1] - 1)
    return jnp.where(inside, jnp.take_along_axis(new, source, axis=-1), tokens)


def record(
    values: Array | None, start: Array, sequences: Sequences, distribution: Softmax, new: Array
) -> Array | None:
    """The log-probabilities of all tokens, with those of new ones.

    Args:
      values: float32 ``[B, W, L]``, of the tokens before, or None, which stays None.
      start: int32 ``[B, W]``, the number of tokens before.
      sequences: the sequences with the new tokens that were appended.
      distribution: of ``[B, W, T, V]``, from which the new tokens were drawn.
      new: int32 ``[B, W, T]``, of which the first may have been appended.
    """
    if values is None:
        return None
    values = place_tokens(values, distribution.log_prob_of(new), start)
    index = jnp.arange(values.shape[-1], dtype=jnp.int32)[None, None]
    return jnp.where(index < sequences.length[..., None], values, 0.0)


def append(
    sequences: Sequences,
    new: Array,
    count: Array,
    dead: Array,
    distribution: Softmax,
    stop: Stop,
    limit: Array,
) -> tuple[Sequences, Array]:
    """Appends up to ``count`` tokens to every sequence that is not done, and ends sequences.

    Args:
      sequences: the sequences decoded so far.
      new: int32 ``[B, W, T]``, the tokens to append.
      count: int32 ``[B, W]``, the number of tokens to append unless the sequence ends earlier.
      dead: bool ``[B, W, T]``, where no token is allowed; a sequence ends before such a position.
      distribution: the target's untransformed distribution, ``[B, W, T, V]``. Before a peak of NaN,
        a sequence ends, and its log-probability becomes NaN.
      stop: the stop conditions.
      limit: int32 ``[B]``, the maximum number of new tokens of each row.

    Returns:
      The sequences, and the number of tokens appended to each, int32 ``[B, W]``.
    """
    index = jnp.arange(new.shape[-1], dtype=jnp.int32)[None, None]
    length_after = sequences.length[..., None] + index + 1
    written = place_tokens(sequences.tokens, new, sequences.length)
    is_end_token = stopping.is_end_token(stop, new.reshape(new.shape[0], -1)).reshape(new.shape)
    ends_with_text = jax.vmap(
        lambda n: stopping.ends_with_text(stop, written, n), in_axes=-1, out_axes=-1
    )(length_after)
    ends_with_text &= length_after >= stopping.minimum(stop)[:, None, None]
    ends = is_end_token | ends_with_text
    is_nan = jnp.isnan(distribution.peak[..., 0])
    dead |= is_nan
    possible = (index < count[..., None]) & ~dead & (length_after <= limit[:, None, None])
    possible &= ~sequences.done[..., None]
    # The token that ends a sequence is still part of it.
    ends_before = jnp.cumsum(ends, axis=-1, dtype=jnp.int32) - ends.astype(jnp.int32)
    kept = jnp.cumprod((possible & (ends_before == 0)).astype(jnp.int32), axis=-1)
    appended = kept.sum(-1, dtype=jnp.int32)
    length = sequences.length + appended
    finished = sequences.finished | ((kept > 0) & ends).any(-1)
    is_next = (index == appended[..., None]) & (index < count[..., None])
    dead_end = (dead & is_next).any(-1)
    ends_at_nan = (is_nan & is_next).any(-1) & ~(sequences.done | finished)
    ends_at_nan &= length < limit[:, None]
    real = jnp.arange(written.shape[-1], dtype=jnp.int32)[None, None] < length[..., None]
    log_prob_of_new = jnp.where(kept > 0, distribution.log_prob_of(new), 0.0).sum(-1)
    log_prob_of_new = jnp.where(ends_at_nan, jnp.nan, log_prob_of_new)
    log_prob, lost = exact.add(sequences.log_prob, sequences.log_prob_lost, log_prob_of_new)
    return Sequences(
        tokens=jnp.where(real, written, 0),
        length=length,
        log_prob=log_prob,
        log_prob_lost=lost,
        finished=finished,
        done=sequences.done | finished | dead_end | (length >= limit[:, None]),
    ), appended
