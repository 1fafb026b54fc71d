"""A model's logits, clean logits, and what is computed from them: maxima, log-probabilities.

A model's logits may be NaN. No strategy chooses a token by them: ``clean`` bans every NaN, and a
sequence ends where the model's logits hold one. This is seen without reading the logits once more:
log-probabilities of logits that are not clean, and their ``largest``, are NaN where any logit is.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from decoding_jax.base import Array
from decoding_jax.ops import exact


def bounded(logits: Array) -> Array:
    """float32 logits in which +inf is replaced by the largest float; NaN stays.

    Tokens with a logit of +inf thus have all the probability, in equal parts.

    Example:
      >>> bounded(jnp.array([jnp.inf, 1.0, jnp.nan])).tolist()
      [3.4028234663852886e+38, 1.0, nan]
    """
    logits = logits.astype(jnp.float32)
    return jnp.where(logits == jnp.inf, jnp.finfo(jnp.float32).max, logits)


def clean(logits: Array) -> Array:
    """float32 logits in which NaN is replaced by -inf (banned), and +inf by the largest float.

    Example:
      >>> clean(jnp.array([jnp.nan, 1.0, -jnp.inf]))
      Array([-inf,   1., -inf], dtype=float32)
    """
    logits = logits.astype(jnp.float32)
    logits = jnp.where(jnp.isnan(logits), -jnp.inf, logits)
    return jnp.minimum(logits, jnp.finfo(jnp.float32).max)


def largest(logits: Array) -> Array:
    """The largest of ``logits [..., V]``: ``[..., 1]``, NaN where any of them is NaN.

    XLA's maximum does not propagate NaN reliably: on a CPU it ignores a NaN, or forgets the numbers
    before it, depending on the index of the NaN and on V. One pass therefore takes the maximum and
    looks for NaN, which takes no longer than the maximum alone.

    Example:
      >>> largest(jnp.array([[1.0, 3.0], [jnp.nan, 1.0]]))
      Array([[ 3.],
             [nan]], dtype=float32)
    """

    def combine(left: tuple[Array, Array], right: tuple[Array, Array]) -> tuple[Array, Array]:
        return jnp.maximum(left[0], right[0]), left[1] | right[1]

    start = jnp.array(-jnp.inf, logits.dtype), jnp.array(False)
    best, spoiled = jax.lax.reduce((logits, jnp.isnan(logits)), start, combine, (logits.ndim - 1,))
    return jnp.where(spoiled, jnp.nan, best)[..., None]


def log_prob_of(logits: Array, token: Array) -> Array:
    """The log-probability, in nats, of ``token [...]`` under the softmax of ``logits [..., V]``.

    The result is NaN where any logit is NaN, and otherwise -inf for a banned token, including where
    every token is banned. A logit of +inf counts as the largest float. Equal to the bit in every
    program, as ``log_softmax`` is (see ``ops.exact``).

    Example:
      >>> log_prob_of(jnp.log(jnp.array([1.0, 3.0])), jnp.array(0)).round(4)
      Array(-1.3863, dtype=float32)
    """
    chosen = jnp.take_along_axis(logits, token[..., None], axis=-1, mode="clip")
    # The passes read the logits as they are: no bounded copy of them is written.
    return _log_prob(bounded(chosen), logits.astype(jnp.float32))[..., 0]


def _log_prob(logit: Array, logits: Array) -> Array:
    """Log-probabilities of ``logit [..., n]`` under the softmax of ``logits [..., V]``."""
    peak, total = normaliser(logits, largest(bounded(logits)))
    return (logit - peak) - exact.log(jnp.maximum(total, 1.0))


def normaliser(logits: Array, peak: Array | None = None) -> tuple[Array, Array]:
    """The softmax's denominator, equal to the bit in every program (see ``ops.exact``).

    ``(logits - peak) - log(total)`` is the log-softmax, never above 0.

    Args:
      logits: float32 ``[..., V]``, no NaN and no +inf.
      peak: float32 ``[..., 1]``, the largest of them if it is known. With ``largest`` of bounded
        logits, they may be NaN or +inf; with NaN, the result is a peak of NaN and a total of 0.

    Returns:
      peak float32 ``[..., 1]``, the largest logit, or 0 where all are -inf; and total
      ``[..., 1]``, the sum of ``exp(logits - peak)``: at least 1, or 0 where all are -inf.

    Example:
      >>> normaliser(jnp.array([3.0, 3.0, -jnp.inf]))
      (Array([3.], dtype=float32), Array([2.], dtype=float32))
    """
    peak = logits.max(-1, keepdims=True) if peak is None else peak
    peak = jnp.where(peak == -jnp.inf, 0.0, peak)
    return peak, exact.sum_exp(logits, peak)[..., None]


def log_total(logits: Array) -> Array:
    """The logarithm of the softmax's denominator, equal to the bit in every program.

    Args:
      logits: float32 ``[..., V]``, no NaN and no +inf.

    Returns:
      float32 ``[...]``; -inf where all logits are.

    Example:
      >>> log_total(jnp.log(jnp.array([0.25, 0.5, 0.0]))).round(4)
      Array(-0.2877, dtype=float32)
    """
    peak, total = normaliser(logits)
    return jnp.where(total > 0, peak + exact.log(jnp.maximum(total, 1.0)), -jnp.inf)[..., 0]


def lowest_argmax(logits: Array) -> Array:
    """The lowest id among the largest of ``logits [..., V]``, int32. No logit is NaN.

    It is computed by two plain reductions. XLA's argmax is one reduction over pairs, which the CPU
    does not vectorise.

    Example:
      >>> lowest_argmax(jnp.array([1.0, 5.0, 5.0]))
      Array(1, dtype=int32)
    """
    size = logits.shape[-1]
    index = jnp.arange(size, dtype=jnp.int32).reshape((1,) * (logits.ndim - 1) + (size,))
    best = logits.max(-1, keepdims=True)
    return jnp.minimum(jnp.where(logits == best, index, size).min(-1), size - 1)


def log_softmax(logits: Array) -> Array:
    """Log-probabilities, in nats, of ``logits [..., V]``; all -inf where every token is banned.

    They are all NaN where any logit is NaN. ``ops.vocab.log_softmax_or_uniform`` is uniform where
    every token is banned. A logit of +inf counts as the largest float.

    Example:
      >>> log_softmax(jnp.array([0.0, 0.0, -jnp.inf])).round(4)
      Array([-0.6931, -0.6931,    -inf], dtype=float32)
    """
    logits = bounded(logits)
    return _log_prob(logits, logits)


def are_nan(log_probs: Array) -> Array:
    """Whether the log-probabilities ``[..., V]`` of ``log_softmax`` are NaN, bool ``[...]``."""
    return jnp.isnan(log_probs[..., 0])
