"""Functions of the vocabulary axis: log-probabilities, and masses as integers with exact sums.

All are equal to the bit in every program (see ``ops.exact``).
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

from decoding_jax.ops import exact, uint64
from decoding_jax.ops.logits import lowest_argmax

Array = jax.Array


def below_max(logits: Array) -> Array:
    """``logits`` minus their maximum over the last axis; all 0 where every logit is -inf.

    Example:
      >>> below_max(jnp.array([[1.0, 3.0], [-jnp.inf, -jnp.inf]]))
      Array([[-2.,  0.],
             [ 0.,  0.]], dtype=float32)
    """
    top = jnp.max(logits, axis=-1, keepdims=True)
    is_top = logits == top
    # The inner `where` keeps inf - inf from giving a NaN in the branch that is not selected.
    return jnp.where(is_top, 0.0, logits - jnp.where(is_top, 0.0, top))


def log_softmax_or_uniform(logits: Array) -> Array:
    """Log-probabilities, in nats, over the last axis; uniform where every logit is -inf.

    ``ops.logits.log_softmax`` gives -inf there instead.

    Example:
      >>> log_softmax_or_uniform(jnp.array([0.0, 0.0, -jnp.inf]))
      Array([-0.6931472, -0.6931472,       -inf], dtype=float32)
    """
    shifted = below_max(logits)
    return shifted - exact.log(exact.sum_exp(shifted, 0.0))[..., None]


def entropy(log_probs: Array) -> Array:
    """The entropy, in nats, over the last axis, which is kept with size 1.

    Example:
      >>> entropy(jnp.log(jnp.array([0.5, 0.5, 0.0])))
      Array([0.6931472], dtype=float32)
    """
    finite = jnp.where(log_probs > -jnp.inf, log_probs, 0.0)
    return exact.sum_last(jnp.abs(exact.exp(log_probs) * finite))[..., None]


def token_ids(x: Array) -> Array:
    """The index of each entry on the last axis: int32, of the shape of ``x``."""
    return lax.broadcasted_iota(jnp.int32, x.shape, x.ndim - 1)


def sums(*parts: Array) -> tuple[Array, ...]:
    """Sums of int32 arrays of one shape over the last axis, in one pass.

    XLA's CPU backend runs one reduction of many operands several times faster than one reduction
    for each operand.
    """

    def add(left: tuple[Array, ...], right: tuple[Array, ...]) -> tuple[Array, ...]:
        return tuple(a + b for a, b in zip(left, right, strict=True))

    zeros = tuple(jnp.zeros((), jnp.int32) for _ in parts)
    return tuple(lax.reduce(parts, zeros, add, (parts[0].ndim - 1,)))


def first_argmax(logits: Array) -> Array:
    """Bool mask of the largest entry of the last axis, or of the first if several are equal.

    Example:
      >>> first_argmax(jnp.array([1.0, 2.0, 2.0]))
      Array([False,  True, False], dtype=bool)
    """
    return token_ids(logits) == lowest_argmax(logits)[..., None]


def integer_masses(log_weights: Array) -> tuple[Array, Array]:
    """``exp(log_weights)`` as two-limb integers whose sums over the last axis cannot overflow.

    The unit of the high limb is a power of two between ``2**-30`` and ``2**-29`` of the sum. The
    low limb holds ``low_bits(V)`` more bits (13 at V = 256,000). Scaling by a power of two is
    exact, so equal weights get equal masses.

    Args:
      log_weights: float32 ``[..., V]`` with maximum 0 (see ``below_max``).

    Returns:
      int32 ``[..., V]`` high and low limbs.
    """
    weights = exact.exp(log_weights)
    total = exact.sum_last(weights)[..., None]
    exponent = (lax.bitcast_convert_type(total, jnp.int32) >> 23) - 127
    scale = lax.bitcast_convert_type((29 - exponent + 127) << 23, jnp.float32)
    scaled = weights * scale
    high = scaled.astype(jnp.int32)
    remainder = scaled - high.astype(jnp.float32)
    low = (remainder * 2.0 ** low_bits(log_weights.shape[-1])).astype(jnp.int32)
    return high, low


def carry(limbs: tuple[Array, ...], bits: int) -> tuple[Array, ...]:
    """Carries the overflow of the low limb into the high limb; a single limb stays unchanged."""
    if len(limbs) == 1:
        return limbs
    high, low = limbs
    return high + (low >> bits), low & ((1 << bits) - 1)


def low_bits(vocab_size: int) -> int:
    """Bits of a low limb, so that the sum of ``vocab_size`` low limbs is below ``2**31``."""
    return 31 - vocab_size.bit_length()


def fraction_of(masses: tuple[Array, Array], fraction: Array) -> tuple[Array, Array]:
    """The total of two-limb ``masses`` times ``fraction``, at least one unit.

    A float32 fraction represents every number that rounds to it, and the least of them is used:
    0.3 of ten equal masses is three of them although float32's 0.3 is slightly above 3 / 10.

    Args:
      masses: from ``integer_masses``, ``[..., V]``.
      fraction: float32, which broadcasts to ``[...]`` and is clipped to ``[0, 1)``.

    Returns:
      int32 high and low limbs ``[...]``.
    """
    bits = low_bits(masses[0].shape[-1])
    high, low = (s.astype(jnp.uint32) for s in sums(*masses))
    fraction = jnp.clip(fraction, 0.0, 1.0 - 2.0**-24)
    numerator = (fraction * 2.0**32).astype(jnp.uint32)
    numerator = jnp.broadcast_to(numerator - (numerator >> 24), high.shape)
    part = ((high * numerator) >> (32 - bits)) + uint64.multiply_words(low, numerator)[..., 0]
    target = carry((uint64.multiply_words(high, numerator)[..., 0], part), bits)
    is_zero = (target[0] == 0) & (target[1] == 0)
    return target[0].astype(jnp.int32), jnp.where(is_zero, 1, target[1].astype(jnp.int32))
