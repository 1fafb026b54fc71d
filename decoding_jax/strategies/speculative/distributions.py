"""Distributions over the vocabulary, whose probabilities are bitwise equal in every program.

Equal logits give bitwise equal probabilities, whatever the shape of the batch (see ``ops.exact``).
A draft that equals its target is therefore never rejected, and its residual ``p - q`` is exactly
zero.
"""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp

from decoding_jax import codes
from decoding_jax.base import Array, CarriedStates, Prefix, Prompt, Stop, Transform
from decoding_jax.loop import model_calls, stopping
from decoding_jax.ops import exact, gpu
from decoding_jax.ops.gather import gather_position
from decoding_jax.ops.logits import bounded, clean, largest

_TRACE = 2.0**-60  # Too small to be drawn if the other weights sum to more than 2**-28.


class Softmax(NamedTuple):
    """The softmax of logits, stored as its unnormalised parts.

    Attributes:
      logits: float32 ``[..., V]``, at least one of them above -inf.
      peak: float32 ``[..., 1]``, the largest logit.
      total: float32 ``[..., 1]``, the sum of ``exp(logits - peak)``.
      sums: float32 ``[..., n]``, which add up to the total: ``codes.block_sums``, for
        ``codes.draw``.
    """

    logits: Array
    peak: Array
    total: Array
    sums: Array

    def gather_position(self, index: Array) -> Softmax:
        """Of ``[B, W, T, V]``, the distributions ``[B, W, V]`` at positions ``index [B, W]``."""
        return Softmax(*(gather_position(values, index) for values in self))

    def position(self, index: int) -> Softmax:
        """Of ``[B, W, T, V]``, the distributions ``[B, W, V]`` at one position."""
        return Softmax(*(values[:, :, index] for values in self))

    def positions(self, start: int, stop: int) -> Softmax:
        """Of ``[B, W, T, V]``, the distributions at positions ``start`` to ``stop - 1``."""
        return Softmax(*(values[:, :, start:stop] for values in self))

    def log_prob_of(self, token: Array) -> Array:
        """The log-probability of ``token [...]``, in nats; -inf where it is banned or NaN."""
        chosen = jnp.take_along_axis(self.logits, token[..., None], axis=-1, mode="clip")
        chosen = clean(chosen)
        log_prob = chosen - self.peak - jnp.log(self.total)
        return jnp.where(chosen == -jnp.inf, -jnp.inf, log_prob)[..., 0]

    def probs(self) -> Array:
        """The probabilities, float32 ``[..., V]``."""
        return exact.exp(self.logits - self.peak) / self.total

    def prob_of(self, token: Array) -> Array:
        """The probability of ``token [...]``, float32 ``[...]``."""
        chosen = jnp.take_along_axis(self.logits, token[..., None], axis=-1, mode="clip")
        return (exact.exp(chosen - self.peak) / self.total)[..., 0]


def softmax(logits: Array, peak: Array | None = None) -> Softmax:
    """The distribution of clean logits.

    Args:
      logits: float32 ``[..., V]``, without NaN or +inf (see ``ops.logits.clean``).
      peak: float32 ``[..., 1]``, the largest of them if it is known.

    Example:
      >>> round(softmax(jnp.log(jnp.array([1.0, 3.0]))).prob_of(jnp.array(1)).item(), 6)
      0.75
    """
    peak = logits.max(-1, keepdims=True) if peak is None else peak
    sums = codes.block_sums(logits, peak)
    return Softmax(logits, peak, exact.sum_last(sums)[..., None], sums)


def of_model(logits: Array) -> Softmax:
    """The distribution of a model's logits ``[..., V]``; its peak is NaN where any logit is.

    Example:
      >>> of_model(jnp.array([[1.0, 2.0], [jnp.nan, 2.0]])).peak.tolist()
      [[2.0], [nan]]
    """
    return softmax(clean(logits), largest(bounded(logits)))


def ensure_support(logits: Array, peak: Array) -> tuple[Array, Array, Array]:
    """Gives all the mass to token 0 where every token is banned.

    A path without an allowed continuation continues with token 0, under both target and draft, so
    that every position has a distribution. The sequence is cut before that token.

    Args:
      logits: float32 ``[..., V]``, without NaN or +inf.
      peak: ``[..., 1]``, the largest of them.

    Returns:
      The logits, of which at least one is above -inf; a bool ``[...]`` that is true where every
      token was banned; and the largest of the logits.

    Example:
      >>> ensure_support(jnp.array([-jnp.inf, -jnp.inf]), jnp.array([-jnp.inf]))[0].tolist()
      [0.0, -inf]
    """
    dead = peak[..., 0] == -jnp.inf
    first = jnp.arange(logits.shape[-1], dtype=jnp.int32) == 0
    first = first.reshape((1,) * dead.ndim + first.shape)
    logits = jnp.where(dead[..., None] & first, 0.0, logits)
    return logits, dead, jnp.where(dead[..., None], 0.0, peak)


def one_hot(token: Array, size: int) -> Array:
    """The one-hot vectors of ``token [...]``, float32 ``[..., V]``; zeros for -1."""
    index = jnp.arange(size, dtype=jnp.int32).reshape((1,) * token.ndim + (size,))
    return (index == token[..., None]).astype(jnp.float32)


def excess(target: Array, draft: Array) -> Array:
    """``max(target - draft, 0)``, in which each operation is rounded once (see ``ops.exact``)."""
    return jnp.maximum(jnp.abs(target) - draft, 0.0)


def residual(target: Array, draft: Array, scale: Array | float = 1.0) -> Array:
    """The residual of the target, ``max(scale * target - draft, 0)``.

    The target times 2**-60 is added to it. Beside any other weight this is too small to be drawn;
    where rounding leaves no residual at all, the token is drawn from the target.

    Args:
      target: float32 ``[..., V]``, probabilities.
      draft: float32 ``[..., V]``, probabilities, or zeros.
      scale: float32, broadcastable to the probabilities, from 0 to 1.

    Returns:
      Weights float32 ``[..., V]``, not normalised, for ``codes.draw_weighted``.

    Example:
      >>> residual(jnp.array([0.75, 0.25]), jnp.array([0.5, 0.5])).tolist()
      [0.25, 2.168404344971009e-19]
    """
    return excess(scale * target, draft) + _TRACE * target


def uniform(bits: Array) -> Array:
    """Uniform numbers in [0, 1), float32 ``[...]``, from 64 random bits ``[..., 2]`` each."""
    return (bits[..., 0] >> 8).astype(jnp.float32) * 2.0**-24


__all__ = [
    "Softmax",
    "ensure_support",
    "excess",
    "of_model",
    "one_hot",
    "residual",
    "softmax",
    "uniform",
]


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
    states: CarriedStates | None = None,
) -> Allowed:
    """Bans early end tokens and applies the transform to logits of the target or the draft.

    Args:
      logits: a model's logits, float32 ``[B, W, T, V]``.
      prompt: B prompts.
      tokens: int32 ``[B, W, L]`` or ``[B, W, T, L]``, the paths, including drafted tokens.
      length: int32 ``[B, W, T]``, the number of new tokens on each path.
      transform: applied after end tokens are banned; None changes nothing.
      stop: the end tokens and the minimum length.
      states: the states of the transform after a beginning of all paths of a lane.
    """
    paths = tokens[:, :, None] if tokens.ndim == 3 else tokens
    paths = jnp.broadcast_to(paths, (*length.shape, tokens.shape[-1]))
    prefix = Prefix(*prompt, paths, length, states)

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
    peak = gpu.cond(unchanged, lambda: peak, lambda: banned().max(-1, keepdims=True))
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
    sums = gpu.cond(allowed.unchanged, lambda: distribution[1:], computed)
    return Softmax(logits, *sums)
