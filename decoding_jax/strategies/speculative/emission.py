"""Tokens appended to lanes of different lengths, several at once, up to where a sequence ends."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from decoding_jax.base import Array, Prefix, Prompt, Stop, Transform
from decoding_jax.loop import Lanes, model_calls, stopping
from decoding_jax.ops import exact
from decoding_jax.ops.logits import clean, largest
from decoding_jax.strategies.speculative.distributions import Softmax, settle, softmax


class Allowed(NamedTuple):
    """What may follow some paths.

    Attributes:
      logits: transformed, and settled (see ``distributions.settle``), ``[B, W, T, V]``.
      dead: bool ``[B, W, T]``: where nothing is allowed.
      peak: float32 ``[B, W, T, 1]``, the largest of the logits.
      as_given: bool, whether all logits are a model's own; None where that is not known.
    """

    logits: Array
    dead: Array
    peak: Array
    as_given: Array | None

    def law(self) -> Softmax:
        """Of these logits."""
        return softmax(self.logits, self.peak)


def put(tokens: Array, new: Array, start: Array) -> Array:
    """``tokens [B, W, L]`` with ``new [B, W, T]`` from ``start [B, W]`` on; beyond L is dropped."""
    place = jnp.arange(tokens.shape[-1], dtype=jnp.int32)[None, None] - start[..., None]
    inside = (place >= 0) & (place < new.shape[-1])
    taken = jnp.take_along_axis(new, jnp.clip(place, 0, new.shape[-1] - 1), axis=-1)
    return jnp.where(inside, taken, tokens)


def allow(
    logits: Array,
    prompt: Prompt,
    tokens: Array,
    length: Array,
    transform: Transform | None,
    stop: Stop,
) -> Allowed:
    """What may follow each path, target and draft alike.

    Args:
      logits: a model's, ``[B, W, T, V]``.
      prompt: of the rows.
      tokens: int32 ``[B, W, L]`` or ``[B, W, T, L]``, the paths, drafted tokens included.
      length: int32 ``[B, W, T]``, new tokens on each.
      transform: applied after end tokens are banned.
      stop: says where they are.
    """

    def free() -> Array:
        return stopping.ban_end_tokens(stop, clean(logits), length)

    if transform is not None:
        paths = tokens[:, :, None] if tokens.ndim == 3 else tokens
        paths = jnp.broadcast_to(paths, (*length.shape, tokens.shape[-1]))
        prefix = Prefix(*prompt, paths, length)
        changed = clean(model_calls.transformed(transform, free(), prefix))
        return Allowed(*settle(changed, changed.max(-1, keepdims=True)), None)
    # The largest logit is finite where none is NaN or +inf: if it is everywhere, and no end token
    # is banned, nothing was changed. (Logits handed to the branch would be written out for it.)
    given = largest(logits)
    early = length < stopping.minimum(stop)[:, None, None]
    as_given = jnp.isfinite(given).all() & ~early.any()
    peak = lax.cond(as_given, lambda: given, lambda: free().max(-1, keepdims=True))
    return Allowed(*settle(free(), peak), as_given)


def own_law(logits: Array, allowed: Allowed, law: Softmax) -> Softmax:
    """A model's law before any transform, for what tokens count as: ``[B, W, T, V]``.

    Args:
      logits: the model's.
      allowed: what came of them.
      law: of what is allowed. Where that is all as it was given, nothing is added up again.
    """

    def whole() -> tuple[Array, ...]:
        return softmax(clean(logits))[1:]

    if allowed.as_given is None:
        return Softmax(logits, *whole())
    # The logits stay outside: out of a branch they would be copied.
    return Softmax(logits, *lax.cond(allowed.as_given, lambda: law[1:], whole))


def append(
    lanes: Lanes,
    new: Array,
    count: Array,
    dead: Array,
    law: Softmax,
    stop: Stop,
    limit: Array,
) -> tuple[Lanes, Array]:
    """Appends up to ``count`` tokens to every lane that is not done, and ends what ends.

    Args:
      lanes: what stands.
      new: int32 ``[B, W, T]``.
      count: int32 ``[B, W]``, how many of them are meant.
      dead: bool ``[B, W, T]``: where nothing was allowed; the sequence ends before it.
      law: the target's before any transform, ``[B, W, T, V]``.
      stop: when a sequence ends.
      limit: int32 ``[B]``, the most new tokens of a row.

    Returns:
      The lanes, and how many tokens each took: int32 ``[B, W]``.
    """
    place = jnp.arange(new.shape[-1], dtype=jnp.int32)[None, None]
    after = lanes.length[..., None] + place + 1
    written = put(lanes.tokens, new, lanes.length)
    flat = stopping.is_end_token(stop, new.reshape(new.shape[0], -1))
    ends = jax.vmap(
        lambda n: stopping.ends_with_sequence(stop, written, n), in_axes=-1, out_axes=-1
    )(after)
    ended = flat.reshape(new.shape) | (ends & (after >= stopping.minimum(stop)[:, None, None]))
    possible = (place < count[..., None]) & ~dead & (after <= limit[:, None, None])
    possible &= ~lanes.done[..., None]
    # Exclusive: the token that ends a sequence is still its own.
    ends_so_far = jnp.cumsum(ended, axis=-1, dtype=jnp.int32)
    open_before = ends_so_far - ended.astype(jnp.int32) == 0
    taken = jnp.cumprod((possible & open_before).astype(jnp.int32), axis=-1)
    took = taken.sum(-1, dtype=jnp.int32)
    length = lanes.length + took
    finished = lanes.finished | ((taken > 0) & ended).any(-1)
    stuck = (dead & (place == took[..., None]) & (place < count[..., None])).any(-1)
    real = jnp.arange(written.shape[-1], dtype=jnp.int32)[None, None] < length[..., None]
    gained = jnp.where(taken > 0, law.log_of(new), 0.0).sum(-1)
    log_prob, lost = exact.add(lanes.log_prob, lanes.log_prob_lost, gained)
    return Lanes(
        tokens=jnp.where(real, written, 0),
        length=length,
        log_prob=log_prob,
        log_prob_lost=lost,
        finished=finished,
        done=lanes.done | finished | stuck | (length >= limit[:, None]),
    ), took
