"""64-bit unsigned integers as pairs of uint32, for programs that run without 64-bit types.

A number is a uint32 array ``[..., 2]`` with the high word first: ``x = x[..., 0] * 2**32 +
x[..., 1]``. Everything wraps modulo 2**64, as uint64 does.
"""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

from decoding_jax.base import Array


def from_int(value: int) -> np.ndarray:
    """A Python integer modulo 2**64 as uint32 ``[2]``.

    Example:
      >>> from_int(2**32 + 5).tolist()
      [1, 5]
    """
    return np.array([(value >> 32) & 0xFFFFFFFF, value & 0xFFFFFFFF], np.uint32)


def to_ints(x: Array | np.ndarray) -> np.ndarray:
    """Converts a concrete uint32 array ``[..., 2]`` to Python integers, an object array ``[...]``.

    Example:
      >>> to_ints(from_int(2**64 - 1)).item() == 2**64 - 1
      True
    """
    words = np.asarray(x).astype(object)
    return np.asarray(words[..., 0] * 2**32 + words[..., 1], object)


def pack(high: Array, low: Array) -> Array:
    """uint32 ``[..., 2]`` of a high and a low word ``[...]``."""
    return jnp.stack([high, low], axis=-1)


def add(x: Array, y: Array) -> Array:
    """``x + y``, for ``[..., 2]`` of one shape.

    Example:
      >>> add(jnp.uint32([0, 2**32 - 1]), jnp.uint32([0, 1])).tolist()
      [1, 0]
    """
    low = x[..., 1] + y[..., 1]
    return pack(x[..., 0] + y[..., 0] + _bit(low < x[..., 1]), low)


def subtract(x: Array, y: Array) -> Array:
    """``x - y``, for ``[..., 2]`` of one shape.

    Example:
      >>> subtract(jnp.uint32([1, 0]), jnp.uint32([0, 1])).tolist()
      [0, 4294967295]
    """
    return pack(x[..., 0] - y[..., 0] - _bit(x[..., 1] < y[..., 1]), x[..., 1] - y[..., 1])


def less(x: Array, y: Array) -> Array:
    """``x < y``: bool ``[...]``, for ``[..., 2]`` of one shape.

    Example:
      >>> less(jnp.uint32([0, 9]), jnp.uint32([1, 0])).item()
      True
    """
    high_x, high_y = x[..., 0], y[..., 0]
    return (high_x < high_y) | ((high_x == high_y) & (x[..., 1] < y[..., 1]))


def multiply_words(x: Array, y: Array) -> Array:
    """The full product of two words: uint32 ``[...]`` times ``[...]`` gives ``[..., 2]``.

    Example:
      >>> multiply_words(jnp.uint32(2**32 - 1), jnp.uint32(2**32 - 1)).tolist()
      [4294967294, 1]
    """
    x_high, x_low = x >> 16, x & 0xFFFF
    y_high, y_low = y >> 16, y & 0xFFFF
    middle = x_high * y_low + (x_low * y_low >> 16)
    carry = (middle & 0xFFFF) + x_low * y_high
    return pack(x_high * y_high + (middle >> 16) + (carry >> 16), x * y)


def multiply_high(x: Array, y: Array) -> Array:
    """``floor(x * y / 2**64)``, for ``[..., 2]`` of one shape.

    Example:
      >>> multiply_high(jnp.uint32([2**31, 0]), jnp.uint32([0, 7])).tolist()
      [0, 3]
    """
    low = multiply_words(x[..., 1], y[..., 1])
    cross = add(multiply_words(x[..., 0], y[..., 1]), _word(low[..., 0]))  # below 2**64
    other = add(multiply_words(x[..., 1], y[..., 0]), _word(cross[..., 1]))
    total = add(multiply_words(x[..., 0], y[..., 0]), _word(cross[..., 0]))
    return add(total, _word(other[..., 0]))


def scale(last: Array, numerator: Array) -> Array:
    """A fraction of an interval's width: ``floor((last + 1) * numerator / 2**31)`` modulo 2**64.

    Args:
      last: uint32 ``[..., 2]``, the width minus one, so that a width of 2**64 fits.
      numerator: uint32 ``[...]``, at most 2**31.

    Returns:
      uint32 ``[..., 2]``. With a numerator of 2**31 the result may be 2**64, which wraps to 0.

    Example:
      >>> scale(jnp.uint32([0, 9]), jnp.uint32(2**30)).tolist()
      [0, 5]
    """
    low = multiply_words(last[..., 1], numerator)
    high = multiply_words(last[..., 0], numerator)
    bottom = add(low, _word(numerator))  # (2**32 - 1) * 2**31 + 2**31 is below 2**64
    top = add(high, _word(bottom[..., 0]))
    return pack((top[..., 0] << 1) | (top[..., 1] >> 31), (top[..., 1] << 1) | bottom[..., 1] >> 31)


def _word(low: Array) -> Array:
    return pack(jnp.zeros_like(low), low)


def _bit(condition: Array) -> Array:
    return condition.astype(jnp.uint32)
