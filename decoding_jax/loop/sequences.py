"""The sequences decoded so far, and the counters of a state.

A counter is one number for all rows, or one for each row. While all rows advance together, a
counter such as the number of steps is a scalar, and the cache is written in place at one slot.
Where rows are refilled (``loop.refill``), each row has its own number. Steps take both.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp

from decoding_jax import fields
from decoding_jax.base import Array, DecodeOutput, LanguageModel, Stop
from decoding_jax.loop import stopping
from decoding_jax.ops import exact
from decoding_jax.ops.logits import log_prob_of


def over_axes(counter: Array, ndim: int) -> Array:
    """A counter that broadcasts against arrays ``[B, ...]``.

    Args:
      counter: int32, a scalar or ``[B]``.
      ndim: the number of axes of these arrays.

    Returns:
      A scalar, or int32 ``[B, 1, ...]`` with ``ndim`` axes.

    Example:
      >>> over_axes(jnp.int32(3), 2).shape, over_axes(jnp.array([3, 4]), 2).shape
      ((), (2, 1))
    """
    return counter.reshape(counter.shape + (1,) * (ndim - 1)) if counter.ndim else counter


def per_lane(counter: Array, lanes: int) -> Array:
    """A counter as the ``start`` of ``LanguageModel.extend``: a scalar, or int32 ``[B, W]``.

    Example:
      >>> per_lane(jnp.int32(3), 4).shape, per_lane(jnp.array([3, 4]), 4).shape
      ((), (2, 4))
    """
    if counter.ndim == 0:
        return counter
    return jnp.broadcast_to(counter[:, None], (counter.shape[0], lanes))


class Sequences(NamedTuple):
    """The sequences decoded so far.

    Attributes:
      tokens: int32 ``[B, W, L]``, 0 from ``length`` on.
      length: int32 ``[B, W]``, the number of new tokens.
      log_prob: float32 ``[B, W]``, the sum of the tokens' log-probabilities under the model; NaN
        for a sequence that ended where the model's logits were NaN.
      log_prob_lost: float32 ``[B, W]``, the rounding error of that sum (see ``ops.exact.add``).
      finished: bool ``[B, W]``, ended by a stop condition.
      done: bool ``[B, W]``, finished, at its limit, without an allowed continuation, or where the
        model's logits were NaN.
    """

    tokens: Array
    length: Array
    log_prob: Array
    log_prob_lost: Array
    finished: Array
    done: Array


def empty_sequences(limit: Array, lanes: int, max_new_tokens: int) -> Sequences:
    """Creates sequences without tokens; rows whose ``limit`` (int32 ``[B]``) is 0 are done."""
    shape = (limit.shape[0], lanes)
    return Sequences(
        tokens=jnp.zeros((*shape, max_new_tokens), jnp.int32),
        length=jnp.zeros(shape, jnp.int32),
        log_prob=jnp.zeros(shape, jnp.float32),
        log_prob_lost=jnp.zeros(shape, jnp.float32),
        finished=jnp.zeros(shape, bool),
        done=jnp.broadcast_to(limit[:, None] < 1, shape),
    )


def write(tokens: Array, token: Array, position: Array) -> Array:
    """Writes one token of each path.

    Args:
      tokens: int32 ``[B, ..., L]``, the paths.
      token: int32 ``[B, ...]``.
      position: int32 ``[B, ...]``, ``[B]`` or a scalar; nothing is written outside of 0 to L - 1.

    Example:
      >>> write(jnp.array([[5, 0, 0], [6, 7, 0]]), jnp.array([8, 9]), jnp.array([1, 2])).tolist()
      [[5, 8, 0], [6, 7, 9]]
    """
    of_paths = position.ndim == token.ndim
    position = position[..., None] if of_paths else over_axes(position, tokens.ndim)
    places = jnp.arange(tokens.shape[-1], dtype=jnp.int32)
    places = places.reshape((1,) * (tokens.ndim - 1) + places.shape)
    return jnp.where(places == position, token[..., None], tokens)


def append_token(
    old: Sequences, token: Array, logits: Array, allowed: Array, stop: Stop, max_new_tokens: int
) -> Sequences:
    """Appends a token to each sequence that is not done, and ends those that a condition ends.

    Args:
      old: the sequences.
      token: int32 ``[B, W]``, the chosen tokens.
      logits: float32 ``[B, W, V]``, or ``[B, 1, V]``, the model's, from which ``log_prob``
        comes. Where any of them is NaN, a sequence ends without the token, and its log-probability
        is NaN.
      allowed: float32 ``[B, W, V]``, after the transform, clean. A sequence ends without the token
        where all of them are -inf.
      stop: when a sequence ends.
      max_new_tokens: L.
    """
    gained = log_prob_of(logits, token)
    is_nan = jnp.isnan(gained)
    is_dead_end = (allowed.max(-1) == -jnp.inf) | is_nan
    is_appended = ~old.done & ~is_dead_end
    tokens = write(old.tokens, token, jnp.where(is_appended, old.length, -1))
    length = old.length + is_appended.astype(jnp.int32)
    finished = old.finished | (is_appended & stopping.ends(stop, token, tokens, length))
    limit = stopping.limits(stop, old.length.shape[0], max_new_tokens)
    gained = jnp.where(is_appended | (is_nan & ~old.done), gained, 0.0)
    log_prob, log_prob_lost = exact.add(old.log_prob, old.log_prob_lost, gained)
    return Sequences(
        tokens=tokens,
        length=length,
        log_prob=log_prob,
        log_prob_lost=log_prob_lost,
        finished=finished,
        done=old.done | is_dead_end | finished | (length >= limit[:, None]),
    )


def new_values(old: Sequences, new: Sequences, value: Array, values: Array) -> Array:
    """``values [B, W, L, ...]`` of tokens, with ``value [B, W, ...]`` for those just appended."""
    position = jnp.arange(values.shape[2], dtype=jnp.int32)[None, None]
    is_new = (position >= old.length[..., None]) & (position < new.length[..., None])
    is_new = is_new.reshape(is_new.shape + (1,) * (values.ndim - 3))
    return jnp.where(is_new, value[:, :, None], values)


def output_of_some(sequences: Sequences, exists: Array, info: Any) -> DecodeOutput:
    """The output of a strategy whose score is ``log_prob``, and which may lack sequences.

    Args:
      sequences: the sequences.
      exists: bool ``[B, N]``. The others have length 0 and a ``log_prob`` of -inf.
      info: of the strategy.
    """
    log_prob = jnp.where(exists, sequences.log_prob, -jnp.inf)
    return DecodeOutput(
        tokens=jnp.where(exists[..., None], sequences.tokens, 0),
        length=jnp.where(exists, sequences.length, 0),
        log_prob=log_prob,
        score=log_prob,
        finished=sequences.finished & exists,
        info=info,
    )


def check_lengths(
    model: LanguageModel,
    prompt_size: int,
    max_new_tokens: int | None,
    *,
    last_is_fed: bool = False,
) -> int:
    """Refuses a length that exceeds the model's positions, and returns the length.

    Args:
      model: a target or a draft.
      prompt_size: P.
      max_new_tokens: L.
      last_is_fed: whether the last token is fed back too. Otherwise, P + L - 1 positions suffice.

    Raises:
      ValueError: if they are too many, or ``max_new_tokens`` is None or below 1.
    """
    max_new_tokens = fields.as_count("max_new_tokens", max_new_tokens)
    maximum = model.max_positions
    if maximum is None:
        return max_new_tokens
    available = maximum - prompt_size + (0 if last_is_fed else 1)
    if available < 1:
        longest = maximum - 1 if last_is_fed else maximum
        raise ValueError(
            f"prompt: expected at most {longest} tokens, padding included, before new ones, got "
            f"{prompt_size}: the model has {maximum} positions"
        )
    if max_new_tokens > available:
        raise ValueError(
            f"max_new_tokens: expected at most {available} after a prompt of {prompt_size}, got "
            f"{max_new_tokens}: the model has {maximum} positions"
            + (", and all tokens are fed" if last_is_fed else "")
        )
    return max_new_tokens
