"""Point sets: the initial codes of a row's samples, N integers of 64 bits.

In every set each point by itself is exactly uniform, so each sample by itself follows the model.
The sets differ in how evenly their points are spread. An interval of p 2**64 consecutive codes is
expected to hold N p points; each function below states how far the count can be from N p.
"""

from __future__ import annotations

from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from decoding_jax import fields
from decoding_jax.base import Array
from decoding_jax.ops import random, uint64


class Points(Protocol):
    """A set of points. Any function with this signature can be given instead of a name.

    It takes a scalar typed key, which is one row's, and N. It returns uint32 ``[N, 2]``: 64-bit
    integers, high word first, each of which is uniform over [0, 2**64).
    """

    def __call__(self, key: Array, num_samples: int) -> Array: ...


def lattice(key: Array, num_samples: int) -> Array:
    """``i / N + u`` modulo 1, with one shift u for the row (Vilnis et al. 2023, section 3).

    Every interval holds the floor or the ceiling of N p points. The points are ``floor(i 2**64
    / N) + u`` with u uniform over all 2**64 shifts, so uniformity and evenness are exact for any N.

    Example:
      >>> x = uint64.to_ints(lattice(jax.random.key(0), 4))
      >>> [int(d) == 2**62 for d in (x[1:] - x[:-1]) % 2**64]
      [True, True, True]
    """
    return uint64.add(jnp.asarray(cells(num_samples)), _shift(key, num_samples))


def stratified(key: Array, num_samples: int) -> Array:
    """``(i + v_i) / N + u`` modulo 1: one uniform point in each of N equal cells, which u shifts.

    Only the two cells at the ends of an interval are cut, so the count differs from N p by less
    than 2.
    """
    shift, jitter = random.split_key(key)
    starts = jnp.asarray(cells(num_samples))
    widest = uint64.from_int(2**64 // num_samples - 1)
    inside = uint64.multiply_high(
        random.bits(jitter, (num_samples, 2)),
        jnp.broadcast_to(widest, (num_samples, 2)),
    )
    return uint64.add(uint64.add(starts, inside), _shift(shift, num_samples))


def antithetic(key: Array, num_samples: int) -> Array:
    """Pairs ``x`` and ``1 - x`` (samples 2i and 2i + 1), each pair independent of the others.

    Every pair adds equally to the counts of an interval and of its mirror image. If N is odd,
    the last point has no partner.
    """
    points = random.bits(key, ((num_samples + 1) // 2, 1, 2))
    return jnp.concatenate([points, ~points], axis=1).reshape(-1, 2)[:num_samples]


def iid(key: Array, num_samples: int) -> Array:
    """Independent points, as in ordinary sampling: counts are binomial."""
    return random.bits(key, (num_samples, 2))


def radical_inverse(key: Array, num_samples: int) -> Array:
    """The van der Corput sequence in base 2 under Owen's nested uniform scrambling (1995).

    Every dyadic interval ``[a / 2**j, (a + 1) / 2**j)`` holds the floor or the ceiling of n p
    of the first n points, for every n up to N: the first samples are themselves evenly spread.
    """
    depth = (num_samples - 1).bit_length()
    flips_key, tail_key = random.split_key(key)
    # Digit l of point i is bit l of i, flipped by a random bit that belongs to the digits before
    # it. After the digits that distinguish N points, every point has independent random digits.
    index = np.arange(num_samples, dtype=np.uint32)
    flips = random.bits(flips_key, (2**depth,)) & 1
    digits = jnp.zeros(num_samples, jnp.uint32)
    for level in range(depth):
        node = (1 << level) + (index & ((1 << level) - 1))
        digits |= (flips[node] ^ ((index >> level) & 1)) << (31 - level)
    tail = random.bits(tail_key, (num_samples, 2))
    return uint64.pack(digits | (tail[:, 0] >> depth), tail[:, 1])


POINTS: dict[str, Points] = {
    "lattice": lattice,
    "stratified": stratified,
    "antithetic": antithetic,
    "iid": iid,
    "radical_inverse": radical_inverse,
}


def as_points(name: str, points: Any) -> Any:
    """Checks the kind of a setting that is a name in ``POINTS``, or a function like ``Points``."""
    if not isinstance(points, str) and not callable(points):
        raise fields.error(name, "a name such as 'lattice', or a function", points)
    return points


def points(points: str | Points, keys: Array, num_samples: int) -> Array:
    """The points of every row.

    Args:
      points: a name in ``POINTS``, or a function as ``Points`` describes it.
      keys: typed keys ``[B]``, one for each row, from ``ops.random.row_keys``.
      num_samples: N, from 1 to 2**31 - 1.

    Returns:
      uint32 ``[B, N, 2]``: 64-bit codes, high word first.

    Raises:
      ValueError: for an unknown name, a ``num_samples`` that is out of range, or a function that
        returns another shape or dtype.

    Example:
      >>> from decoding_jax.ops.random import row_keys
      >>> points("lattice", row_keys(jax.random.key(0), 3), 8).shape
      (3, 8, 2)
    """
    if isinstance(points, str) and points not in POINTS:
        known = ", ".join(POINTS)
        raise fields.error("points", f"{known} or a function (see codes.Points)", points)
    if not isinstance(num_samples, int) or not 1 <= num_samples < 2**31:
        raise fields.error("num_samples", "an int of 1 or more", num_samples)
    place = POINTS[points] if isinstance(points, str) else points
    codes = jax.vmap(lambda key: place(key, num_samples))(keys)
    if codes.shape[1:] != (num_samples, 2) or codes.dtype != jnp.uint32:
        raise ValueError(
            f"points: expected a function that returns uint32{[num_samples, 2]}, got one that "
            f"returns {codes.dtype}{list(codes.shape[1:])}"
        )
    return codes


def cells(num_samples: int) -> np.ndarray:
    """``floor(i 2**64 / N)``: uint32 ``[N, 2]``."""
    index = np.arange(num_samples, dtype=np.uint64)
    size = np.uint64(num_samples)
    high, remainder = np.divmod(index << np.uint64(32), size)
    return np.stack([high, (remainder << np.uint64(32)) // size], axis=-1).astype(np.uint32)


def _shift(key: Array, num_samples: int) -> Array:
    return jnp.broadcast_to(random.bits(key, (2,)), (num_samples, 2))
