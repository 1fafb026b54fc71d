"""The hidden states of the tokens so far, with which candidates are compared."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from decoding_jax.base import Array
from decoding_jax.loop.sequences import over_axes
from decoding_jax.ops import exact
from decoding_jax.ops.logits import largest
from decoding_jax.sharding.meshes import over_rows


class States(NamedTuple):
    """Hidden states of some tokens of each row.

    Attributes:
      hidden: float32 ``[B, K, D]``, of norm 1, or with NaN; zeros where there is no token.
      exists: bool ``[B, K]``, whether a place holds a token.
    """

    hidden: Array
    exists: Array


class Context(NamedTuple):
    """The hidden states of prompts and of new tokens.

    They are two arrays, so that a wider prompt only adds padding (``Strategy.widens``).

    Attributes:
      prompt: P places.
      new: L places.
    """

    prompt: States
    new: States


def unit(hidden: Array) -> Array:
    """Hidden states ``[..., D]`` in float32, divided by their norm; zeros stay zeros."""
    hidden = hidden.astype(jnp.float32)
    norm = jnp.sqrt(exact.sum_last(hidden * hidden))[..., None]
    return hidden / jnp.where(norm > 0, norm, 1.0)


def start(hidden: Array, length: Array, max_new_tokens: int) -> Context:
    """The context of prompts, with room for new tokens.

    Args:
      hidden: ``[B, P, D]``.
      length: int32 ``[B]``.
      max_new_tokens: L.
    """
    batch, size, depth = hidden.shape
    exists = jnp.arange(size, dtype=jnp.int32)[None] < length[:, None]
    # The hidden states of padding may be anything, including NaN and infinities.
    known = jnp.where(exists[..., None], unit(hidden), 0.0)
    new = States(
        over_rows(jnp.zeros((batch, max_new_tokens, depth), jnp.float32)),
        jnp.zeros((batch, max_new_tokens), bool),
    )
    return Context(States(known, exists), new)


def add(context: Context, hidden: Array, place: Array) -> Context:
    """Adds one new token a row.

    Args:
      context: the tokens so far.
      hidden: ``[B, 1, D]``, of norm 1.
      place: int32, the number of new tokens so far: a scalar below L, or ``[B]``, in which
        places of L and above are dropped.
    """
    new = context.new
    is_place = jnp.arange(new.exists.shape[1], dtype=jnp.int32)[None] == over_axes(place, 2)
    if place.ndim:
        states = jax.vmap(lambda h, one, p: h.at[p].set(one[0], mode="drop"))(
            new.hidden, hidden, place
        )
    else:
        zero = jnp.int32(0)
        states = lax.dynamic_update_slice(new.hidden, hidden, (zero, place, zero))
    return context._replace(new=States(states, new.exists | is_place))


def largest_cosine(context: Context, hidden: Array) -> Array:
    """The largest cosine of each candidate with any token so far: float32 ``[B, k]``.

    It is NaN where any of these cosines is, as with a hidden state that is not finite.

    Args:
      context: the tokens so far.
      hidden: ``[B, k, D]``, of the candidates, of norm 1.
    """
    of_parts = []
    for states in context:
        # The sum is in float32 and in one fixed order. A matrix product might round to bfloat16.
        cosine = exact.sum_last(hidden[:, :, None] * states.hidden[:, None])
        of_parts.append(largest(jnp.where(states.exists[:, None], cosine, -jnp.inf)))
    return largest(jnp.concatenate(of_parts, axis=-1))[..., 0]
