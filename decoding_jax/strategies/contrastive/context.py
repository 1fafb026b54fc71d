"""The hidden states of the tokens so far, with which candidates are compared."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import lax

from decoding_jax.base import Array, Cache, LanguageModel, Prompt
from decoding_jax.loop import model_calls
from decoding_jax.ops import exact


class Context(NamedTuple):
    """The hidden states of prompts and new tokens, each of norm 1.

    Attributes:
      hidden: float32 ``[B, P + L, D]``: P places of the prompt, and then the new tokens.
      exists: bool ``[B, P + L]``, whether a place holds a token.
    """

    hidden: Array
    exists: Array


def prefill(model: LanguageModel, prompt: Prompt, slots: int) -> tuple[Array, Array, Cache]:
    """Runs the prompts: logits ``[B, V]``, hidden states ``[B, P, D]`` and a cache of one lane.

    Raises:
      ValueError: for logits of another shape or dtype, or without hidden states of each token.
    """
    output, cache = model.prefill(*prompt, lanes=1, slots=slots, with_hidden=True)
    batch, size = prompt.tokens.shape
    shape = (batch, 1, 1, model.vocab_size)
    source = "model: got logits"
    logits = model_calls.as_logits(output.logits, shape, source, "prefill", "[B, 1, 1, V]")
    hidden = hidden_of(output.hidden, "prefill")
    if hidden.ndim != 4 or hidden.shape[:3] != (batch, 1, size):
        raise ValueError(
            f"model: got hidden {hidden.dtype}{list(hidden.shape)} from prefill; takes "
            f"[B, 1, P, D], which begins with {[batch, 1, size]} here"
        )
    return logits[:, 0, 0], hidden[:, 0], cache


def hidden_of(hidden: Any, function: str) -> Array:
    """Hidden states, which a model may leave out.

    Raises:
      ValueError: for None.
    """
    if hidden is None:
        raise ValueError(
            f"model: got no hidden states from {function}; contrastive search takes a model that "
            "returns them"
        )
    return hidden


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
    # Padding may have any hidden states, not finite ones among them.
    known = jnp.where(exists[:, :size, None], unit(hidden), 0.0)
    return Context(jnp.pad(known, ((0, 0), (0, max_new_tokens), (0, 0))), exists)


def add(context: Context, hidden: Array, place: Array) -> Context:
    """Adds the hidden states ``[B, 1, D]``, of norm 1, of one token a row."""
    size = context.hidden.shape[1]
    zero = jnp.int32(0)
    return Context(
        lax.dynamic_update_slice(context.hidden, hidden, (zero, place, zero)),
        context.exists | (jnp.arange(size, dtype=jnp.int32)[None] == place),
    )


def largest_cosine(context: Context, hidden: Array) -> Array:
    """The largest cosine of each candidate with any token so far: float32 ``[B, k]``.

    Args:
      context: the tokens so far.
      hidden: ``[B, k, D]``, of the candidates, of norm 1.
    """
    # In float32 and one fixed order, where a matrix product may round to bfloat16.
    cosine = exact.sum_last(hidden[:, :, None] * context.hidden[:, None])
    return jnp.where(context.exists[:, None], cosine, -jnp.inf).max(-1)
