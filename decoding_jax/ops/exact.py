"""Exponentials and sums of float32 that are the same to the bit in every program.

A compiler may fuse a product and a sum into one rounding, may approximate ``exp`` differently for
the last elements of a vector, and may add in any order. The last bits of the results then depend
on the shapes around them, on ``jit`` and on the device. That is not good enough where integers are
made from the results, or where several lanes must agree on a boundary. The functions of this module
leave the compiler no such freedom: each operation is rounded once, and an absolute value, which
does not change the number, separates each product from the sum that follows it. A GPU divides with
an error of up to two units in the last place, which ``divide`` corrects.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from decoding_jax.base import Array

_ARITY = 16  # the number of chunks that are added in one pass
_WIDE = 4096  # the size of an axis from which 16 small terms, slower to compile, are worth it
_LOWEST = -87.0  # below it the exponential counts as 0; smaller values would be subnormal

# x = n log 2 + f with f in [0, log 2]. log 2 is split into two parts of 16 bits, whose products
# with n (7 bits) are exact. 1 / log 2 is rounded up, so f is not negative.
_INVERSE = np.float32((1 + 2**-22) / math.log(2))
_HIGH = np.float32(round(math.log(2) * 2**16) / 2**16)
_LOW = np.float32(round((math.log(2) - float(_HIGH)) * 2**33) / 2**33)


def _series() -> list[np.float32]:
    """Coefficients of 1 + f q(f), where q of degree 5 fits (e**f - 1) / f on [0, log 2]."""
    fit = np.polynomial.Chebyshev.interpolate(lambda f: np.expm1(f) / f, 5, [0, math.log(2)])
    return [np.float32(1), *fit.convert(kind=np.polynomial.Polynomial).coef.astype(np.float32)]


def _log_series() -> list[np.float32]:
    """Positive coefficients in s**2 of a fit to log((1 + s) / (1 - s)) / s on [0, 1/3]."""
    fit = np.polynomial.Chebyshev.interpolate(
        lambda u: 2 * np.arctanh(np.sqrt(u)) / np.sqrt(u), 5, [0, 1 / 9]
    )
    return [np.float32(2), *fit.convert(kind=np.polynomial.Polynomial).coef[1:].astype(np.float32)]


_SERIES = _series()
_LOG_SERIES = _log_series()


def exp(x: Array) -> Array:
    """``exp(x)`` for x at or below 0, within a relative 2e-7; 0 for x below -87 and for NaN.

    Args:
      x: float32, at most 0, of any shape.

    Example:
      >>> exp(jnp.array([0.0, -jnp.inf, jnp.nan])).tolist()
      [1.0, 0.0, 0.0]
    """
    power = jnp.floor(x * _INVERSE)
    f = (x - power * _HIGH) - power * _LOW
    value = jnp.full_like(f, _SERIES[-1])
    for coefficient in _SERIES[-2::-1]:
        value = jnp.abs(value * f) + coefficient
    # Times 2**n: n is added to the bits of the exponent.
    bits = jax.lax.bitcast_convert_type(value, jnp.int32) + (power.astype(jnp.int32) << 23)
    return jnp.where(x >= _LOWEST, jax.lax.bitcast_convert_type(bits, jnp.float32), 0.0)


def log(x: Array) -> Array:
    """``log(x)`` for finite x of 1 and above, within a relative 3e-7, and exactly 0 at 1.

    With x = 2**n m and m in [1, 2), log m is an odd series in s = (m - 1) / (m + 1).

    Args:
      x: float32, at least 1, of any shape.

    Example:
      >>> [f"{y:.4f}" for y in log(jnp.array([1.0, 2.0, 1000.0]))]
      ['0.0000', '0.6931', '6.9078']
    """
    bits = jax.lax.bitcast_convert_type(x, jnp.int32)
    power = ((bits >> 23) - 127).astype(jnp.float32)
    # The exponent of 1 in the place of x's own: m in [1, 2), with x's digits.
    m = jax.lax.bitcast_convert_type((bits & 0x7FFFFF) | (127 << 23), jnp.float32)
    s = divide(m - 1.0, m + 1.0)
    square = jnp.abs(s * s)
    value = jnp.full_like(s, _LOG_SERIES[-1])
    for coefficient in _LOG_SERIES[-2::-1]:
        value = jnp.abs(value * square) + coefficient
    return power * _HIGH + (jnp.abs(power * _LOW) + jnp.abs(s * value))


def divide(x: Array, y: Array) -> Array:
    """``x / y``, rounded once, unless a number on the way is subnormal.

    Args:
      x: float32.
      y: float32, of a shape that broadcasts against x.

    Example:
      >>> divide(jnp.float32(1), jnp.float32(3)) == jnp.float32(1 / 3)
      Array(True, dtype=bool)
    """
    return _corrected(x / y, x, y)


def _corrected(quotient: Array, x: Array, y: Array) -> Array:
    """``x / y``, from a quotient with an error of a few units in the last place.

    The remainder is exact, since the products of halves of 12 bits are; divided in turn, it is the
    correction.
    """
    high, low = _halves(quotient)
    y_high, y_low = _halves(y)
    rest = ((x - high * y_high) - high * y_low) - low * y_high - low * y_low
    # 1 / 0 and infinities have no remainder, and are right as they are.
    return jnp.where(jnp.isfinite(rest), quotient + rest / y, quotient)


def _halves(x: Array) -> tuple[Array, Array]:
    """``x`` as a sum of two numbers with 12 bits each."""
    bits = jax.lax.bitcast_convert_type(x, jnp.int32)
    high = jax.lax.bitcast_convert_type(bits & ~0xFFF, jnp.float32)
    return high, x - high


def inverse_power(base: Array, exponent: ArrayLike) -> Array:
    """``base ** -exponent``, within a relative ``3e-7 (1 - log(result))``, and never 0.

    Args:
      base: int32 of any shape, at least 1.
      exponent: float32, at least 0, which broadcasts against ``base``.

    Example:
      >>> [f"{y:.4f}" for y in inverse_power(jnp.array([1, 4, 16]), 0.5)]
      ['1.0000', '0.5000', '0.2500']
    """
    least, exponent = jnp.finfo(jnp.float32).tiny, jnp.asarray(exponent, jnp.float32)
    return jnp.maximum(exp(-jnp.abs(exponent * log(base.astype(jnp.float32)))), least)


def sum_last(x: Array) -> Array:
    """The sum over the last axis as a balanced tree; its error grows with the log of its size.

    Args:
      x: float32 ``[..., n]``, n of 1 or more.

    Example:
      >>> sum_last(jnp.arange(5.0)).item()
      10.0
    """
    # Without the barrier, the fusions of XLA's GPU compiler take in one pass after another, and its
    # analysis of tiles follows each of the 16 slices of each pass: 16**3 paths for 2,048 numbers.
    while x.shape[-1] > 1:
        x = jax.lax.optimization_barrier(add_all(chunks(x, 0.0)))
    return x[..., 0]


def sum_exp(x: Array, peak: Array | float) -> Array:
    """The sum over the last axis of ``exp(x - peak)``, equal to that of ``sum_last`` to the bit.

    Args:
      x: float32 ``[..., n]``, n of 1 or more. What is above ``peak``, as +inf, counts as ``peak``.
      peak: finite or NaN, float32 ``[..., 1]``, or one number.

    Example:
      >>> sum_exp(jnp.array([3.0, jnp.inf, -jnp.inf]), 3.0).item()
      2.0
    """

    def term(part: Array) -> Array:
        return exp(jnp.minimum(part - peak, 0.0))

    if x.shape[-1] < _WIDE:
        return sum_last(term(x))
    # Cutting the exponentials instead would write them all to memory and read them back.
    total = add_all([term(part) for part in chunks(x, -jnp.inf)])
    return sum_last(jax.lax.optimization_barrier(total))


def add(total: Array, lost: Array, x: Array) -> tuple[Array, Array]:
    """A step of a compensated sum: ``total + lost + x`` rounded, and the error of this rounding.

    Knuth's two-sum gives the error of an addition exactly. However many numbers are added, the
    total is the float32 nearest to their sum, or one of its neighbours.

    Args:
      total: float32 of any shape.
      lost: float32 of that shape, the error that the previous addition returned, or 0.
      x: float32 of that shape.

    Returns:
      The new ``total`` and the new ``lost``, which is 0 where the total is not finite.

    Example:
      >>> total, lost = add(jnp.float32(2**24), jnp.float32(0), jnp.float32(1))
      >>> total.item(), lost.item(), add(total, lost, jnp.float32(1))[0].item()
      (16777216.0, 1.0, 16777218.0)
    """
    rough = total + x
    part = rough - total
    lost += (total - (rough - part)) + (x - part)
    new = rough + lost
    finite = jnp.isfinite(rough)
    return jnp.where(finite, new, rough), jnp.where(finite, lost - (new - rough), 0.0)


def chunks(x: Array, fill: float) -> list[Array]:
    """Cuts ``[..., n]`` into up to 16 arrays ``[..., m]``; the last is padded with ``fill``.

    Example:
      >>> [c.tolist() for c in chunks(jnp.arange(3), 0)]
      [[0], [1], [2]]
    """
    size = math.ceil(x.shape[-1] / _ARITY)
    parts = [x[..., i : i + size] for i in range(0, x.shape[-1], size)]
    if missing := size - parts[-1].shape[-1]:
        pads = [(0, 0)] * (x.ndim - 1) + [(0, missing)]
        parts[-1] = jnp.pad(parts[-1], pads, constant_values=fill)
    return parts


def add_all(parts: list[Array]) -> Array:
    """The sum of arrays of one shape, as a balanced tree."""
    # Neighbours are added, and an odd one joins the next round, so the order of additions follows
    # from the number of parts alone.
    while len(parts) > 1:
        pairs = [a + b for a, b in zip(parts[::2], parts[1::2], strict=False)]
        parts = pairs + parts[2 * len(pairs) :]
    return parts[0]
