"""Logits without NaN and +inf, and quantities computed from them: maxima, log-probabilities."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from decoding_jax.base import Array
from decoding_jax.ops import exact


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

    The logits are clean: no NaN and no +inf. The result is -inf for a banned token, including where
    every token is banned.

    Example:
      >>> log_prob_of(jnp.log(jnp.array([1.0, 3.0])), jnp.array(0)).round(4)
      Array(-1.3863, dtype=float32)
    """
    chosen = jnp.take_along_axis(logits, token[..., None], axis=-1, mode="clip")[..., 0]
    total = jax.nn.logsumexp(logits, axis=-1)
    return jnp.where(chosen == -jnp.inf, -jnp.inf, chosen - total)


def normaliser(logits: Array) -> tuple[Array, Array]:
    """The softmax's denominator, equal to the bit in every program (see ``ops.exact``).

    ``(logits - peak) - log(total)`` is the log-softmax, never above 0.

    Args:
      logits: float32 ``[..., V]``, no NaN and no +inf.

    Returns:
      peak float32 ``[..., 1]``, the largest logit, or 0 where all are -inf; and total
      ``[..., 1]``, the sum of ``exp(logits - peak)``: at least 1, or 0 where all are -inf.

    Example:
      >>> normaliser(jnp.array([3.0, 3.0, -jnp.inf]))
      (Array([3.], dtype=float32), Array([2.], dtype=float32))
    """
    peak = logits.max(-1, keepdims=True)
    peak = jnp.where(peak == -jnp.inf, 0.0, peak)
    return peak, exact.sum_last(exact.exp(logits - peak))[..., None]


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

    ``ops.vocab.log_softmax_or_uniform`` is uniform there instead. The logits are clean: no NaN and
    no +inf.

    Example:
      >>> log_softmax(jnp.array([0.0, 0.0, -jnp.inf])).round(4)
      Array([-0.6931, -0.6931,    -inf], dtype=float32)
    """
    total = jax.nn.logsumexp(logits, axis=-1, keepdims=True)
    return jnp.where(logits == -jnp.inf, -jnp.inf, logits - total)
