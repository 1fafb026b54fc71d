"""The tokens allowed after each path, by the transform and the stop conditions."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jax import lax

from decoding_jax.base import Array, Prefix, Prompt, Stop, Transform
from decoding_jax.loop import model_calls, stopping
from decoding_jax.ops.logits import largest
from decoding_jax.strategies.speculative.distributions import (
    Softmax,
    ensure_support,
    of_model,
    softmax,
)


class Allowed(NamedTuple):
    """The transformed logits after some paths.

    Attributes:
      logits: float32 ``[B, W, T, V]``, transformed; token 0 is allowed where every token is
        banned (see ``distributions.ensure_support``).
      dead: bool ``[B, W, T]``, where no token is allowed.
      peak: float32 ``[B, W, T, 1]``, the largest of the logits.
      unchanged: bool, whether all logits equal the model's; None where that is unknown.
    """

    logits: Array
    dead: Array
    peak: Array
    unchanged: Array | None

    def distribution(self) -> Softmax:
        """The softmax of these logits."""
        return softmax(self.logits, self.peak)


def allow(
    logits: Array,
    prompt: Prompt,
    tokens: Array,
    length: Array,
    transform: Transform | None,
    stop: Stop,
) -> Allowed:
    """Bans early end tokens and applies the transform to logits of the target or the draft.

    Args:
      logits: a model's logits, float32 ``[B, W, T, V]``.
      prompt: B prompts.
      tokens: int32 ``[B, W, L]`` or ``[B, W, T, L]``, the paths, including drafted tokens.
      length: int32 ``[B, W, T]``, the number of new tokens on each path.
      transform: applied after end tokens are banned; None changes nothing.
      stop: the end tokens and the minimum length.
    """
    paths = tokens[:, :, None] if tokens.ndim == 3 else tokens
    paths = jnp.broadcast_to(paths, (*length.shape, tokens.shape[-1]))
    prefix = Prefix(*prompt, paths, length)

    def banned() -> Array:
        return model_calls.allowed_logits(logits, prefix, stop, None)

    if transform is not None:
        changed = model_calls.allowed_logits(logits, prefix, stop, transform)
        return Allowed(*ensure_support(changed, changed.max(-1, keepdims=True)), None)
    # If every row's largest logit is finite, none is NaN or +inf; if no end token is banned either,
    # the logits are unchanged. The branch calls ``banned`` again instead of using its result, since
    # XLA materialises every array that is passed to a branch.
    peak = largest(logits)
    early = length < stopping.minimum(stop)[:, None, None]
    unchanged = jnp.isfinite(peak).all() & ~early.any()
    peak = lax.cond(unchanged, lambda: peak, lambda: banned().max(-1, keepdims=True))
    return Allowed(*ensure_support(banned(), peak), unchanged)


def model_distribution(logits: Array, allowed: Allowed, distribution: Softmax) -> Softmax:
    """The model's untransformed distribution, used for the reported ``log_prob``.

    Its peak is NaN where any of the model's logits is.

    Args:
      logits: the model's logits, float32 ``[B, W, T, V]``.
      allowed: the result of ``allow`` for these logits.
      distribution: ``allowed.distribution()``. Its sums are reused where the logits are unchanged.
    """

    def computed() -> tuple[Array, ...]:
        return of_model(logits)[1:]

    if allowed.unchanged is None:
        return Softmax(logits, *computed())
    # The logits stay outside the branch, which would copy them.
    sums = lax.cond(allowed.unchanged, lambda: distribution[1:], computed)
    return Softmax(logits, *sums)
