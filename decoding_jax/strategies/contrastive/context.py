"""The hidden states of the tokens so far, with which candidates are compared."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from decoding_jax.base import Array
from decoding_jax.loop.counters import over_axes
from decoding_jax.ops import exact


class Context(NamedTuple):
    """The hidden states of prompts and new tokens, each of norm 1.

    Attributes:
      hidden: float32 ``[B, P + L, D]``: P places of the prompt, and then the new tokens.
      exists: bool ``[B, P + L]``, whether a place holds a token.
    """

    hidden: Array
    exists: Array


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
    size = hidden.shape[1]
    place = jnp.arange(size + max_new_tokens, dtype=jnp.int32)[None]
    exists = place < length[:, None]
    # The hidden states of padding may be anything, including NaN and infinities.
    known = jnp.where(exists[:, :size, None], unit(hidden), 0.0)
    return Context(jnp.pad(known, ((0, 0), (0, max_new_tokens), (0, 0))), exists)


def add(context: Context, hidden: Array, place: Array) -> Context:
    """Adds one token a row.

    Args:
      context: the tokens so far.
      hidden: ``[B, 1, D]``, of norm 1.
      place: int32, a scalar below P + L, or ``[B]``, in which places of P + L and above are
        dropped.
    """
    size = context.hidden.shape[1]
    is_place = jnp.arange(size, dtype=jnp.int32)[None] == over_axes(place, 2)
    if place.ndim:
        states = jax.vmap(lambda h, new, p: h.at[p].set(new[0], mode="drop"))(
            context.hidden, hidden, place
        )
    else:
        zero = jnp.int32(0)
        states = lax.dynamic_update_slice(context.hidden, hidden, (zero, place, zero))
    return Context(states, context.exists | is_place)


def largest_cosine(context: Context, hidden: Array) -> Array:
    """The largest cosine of each candidate with any token so far: float32 ``[B, k]``.

    Args:
      context: the tokens so far.
      hidden: ``[B, k, D]``, of the candidates, of norm 1.
    """
    # The sum is in float32 and in one fixed order. A matrix product might round to bfloat16.
    cosine = exact.sum_last(hidden[:, :, None] * context.hidden[:, None])
    return jnp.where(context.exists[:, None], cosine, -jnp.inf).max(-1)
