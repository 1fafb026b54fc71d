"""Arithmetic codes: N samples of one row, each exact by itself, spread evenly together.

After Vilnis et al., "Arithmetic Sampling: Parallel Diverse Decoding for Large Language Models"
(2023). A sample is a point of the interval [0, 1), and a prefix of probability p owns a
subinterval of width p. A sample takes the tokens whose intervals contain its point. In this
implementation the whole interval has 2**64 points, and every subinterval is a whole number of them,
so only the boundaries are rounded. All samples share these boundaries.

- **While N * width > 2**64** another sample may share the prefix. The position of the point inside
  the interval is carried exactly to the next token, and it keeps the samples evenly spread.
- **Once N * width <= 2**64** a sample of the lattice is alone in its interval, and its position
  inside is uniform. The code is then dropped, and every later token draws 64 fresh bits.

The following statements hold exactly. Let p of a prefix be ``width / 2**64`` while codes are
carried, and that value times the later tokens' ``integer_distribution`` after the code is dropped.

1. Each sample by itself has each prefix with probability p, because its point is uniform.
2. On the lattice, the number of samples with a prefix is the floor or the ceiling of N p. While
   codes are carried, the prefix is an interval of the line. An interval of width 1/N or less holds
   at most one sample (exactly one at 1/N), and so does each of its parts.
3. p is the rounded product of the tokens' ``integer_distribution``: after j carried tokens the two
   differ by less than ``2 j / 2**64``. They are equal wherever N times the product is an
   integer, and always for the first token. Statement 2 therefore also holds for the product,
   except where N times the product is within ``2 j N / 2**64`` of an integer but not equal to it.

A carried interval is wider than ``2**64 / N``, so every code in use keeps at least 64 - log2 N
bits, however long the text is. Codes never run out, and nothing has to be refilled. A token
that has all the mass, such as one that a prompt forces, uses up nothing of the code.
"""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp

from decoding_jax.base import Array
from decoding_jax.codes import cdf, point_sets
from decoding_jax.ops import random, uint64


class Code(NamedTuple):
    """The remaining code of every sample. It must hold all N samples of a row.

    Attributes:
      offset: uint32 ``[B, N, 2]``: the position of the point in its prefix's interval, a 64-bit
        integer.
      last: uint32 ``[B, N, 2]``: the interval's width minus one, so that 2**64 fits.
      keys: typed keys ``[B, N]`` for the bits that a sample draws once it is alone.
    """

    offset: Array
    last: Array
    keys: Array


def start(points: str | point_sets.Points, keys: Array, num_samples: int) -> Code:
    """The codes of samples that have no tokens yet.

    Args:
      points: the point set: ``lattice``, ``stratified``, ``antithetic``, ``iid``,
        ``radical_inverse`` or a function (see ``Points``).
      keys: typed keys ``[B]``, one for each row, from ``ops.random.row_keys``.
      num_samples: N, the number of samples of each row.

    Returns:
      A ``Code`` for ``[B, N]`` samples.

    Raises:
      ValueError: for an unknown point set or ``num_samples`` below 1.

    Example:
      >>> import jax
      >>> start("lattice", random.row_keys(jax.random.key(0), 2), 8).offset.shape
      (2, 8, 2)
    """
    point_keys, lane_keys = random.split(keys)
    offset = point_sets.points(points, point_keys, num_samples)
    last = jnp.full_like(offset, 0xFFFFFFFF)
    return Code(offset, last, random.lane_keys(lane_keys, num_samples))


def choose(
    code: Code, logits: Array, position: Array | int, sums: Array | None = None
) -> tuple[Array, Code]:
    """Chooses the next token of every sample.

    Args:
      code: from ``start`` or an earlier ``choose``.
      logits: float ``[B, N, V]``, after any transform. -inf is never chosen, NaN counts as
        -inf and +inf as the largest float. Where every token is banned, the token is 0.
      position: int32, a scalar or ``[B, N]``: the index of this new token. Two calls with the same
        position for a sample draw the same bits.
      sums: the ``block_sums`` of the logits, if they are already known.

    Returns:
      The tokens, int32 ``[B, N]``, and the codes that remain.

    Example:
      >>> import jax
      >>> code = start("lattice", random.row_keys(jax.random.key(0), 1), 8)
      >>> token, code = choose(code, jnp.zeros((1, 8, 4)), 0)
      >>> jnp.bincount(token[0], length=4).tolist()
      [2, 2, 2, 2]
    """
    fresh = random.bits_at(code.keys, position)
    token, offset, last = step(code.offset, code.last, logits, fresh, sums)
    return token, code._replace(offset=offset, last=last)


def step(
    offset: Array, last: Array, logits: Array, fresh: Array, sums: Array | None = None
) -> tuple[Array, Array, Array]:
    """``choose`` with given bits: a sample that is alone uses ``fresh``, uint32 ``[B, N, 2]``."""
    alone = is_alone(last)[..., None]
    whole = jnp.full_like(last, 0xFFFFFFFF)
    token, new_offset, new_last = cdf.invert(
        logits, jnp.where(alone, fresh, offset), jnp.where(alone, whole, last), sums
    )
    return token, jnp.where(alone, offset, new_offset), jnp.where(alone, last, new_last)


def is_alone(last: Array) -> Array:
    """Returns whether N p <= 1 for the prefix: bool ``[B, N]``, from ``Code.last [B, N, 2]``."""
    narrowest = uint64.from_int(2**64 // last.shape[-2] - 1)
    return ~uint64.less(jnp.broadcast_to(narrowest, last.shape), last)
