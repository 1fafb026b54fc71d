"""Arithmetic codes: N samples of one row, each exact by itself, spread evenly together.

After Vilnis et al., "Arithmetic Sampling: Parallel Diverse Decoding for Large Language Models"
(2023). A sample is a point on the line [0, 1); a prefix of probability p owns an interval of
width p; a sample takes the tokens in whose intervals its point lies. The line here has 2**64
points and intervals are whole numbers of them, so nothing is rounded but the boundaries, and
these are the same for all samples:

- **While N width > 2**64** another sample may share the prefix. What is left of the code inside
  the interval is carried exactly; it is what spreads the samples from here on.
- **From there on** a sample of the lattice is alone in its interval, and its place inside is
  uniform: the rest is dropped, and every later token draws 64 fresh bits.

What holds, exactly. Let p of a prefix be ``width / 2**64`` while codes are carried, and from
there on that times the later tokens' ``integer_distribution``.

1. Every sample by itself has each prefix with probability p: its point is uniform.
2. On the lattice the number of samples with a prefix is the floor or the ceiling of N p. While
   codes are carried the prefix is an interval of the line. An interval at or below 1/N has no
   sample or one (just one at 1/N), and so has each of its parts.
3. p is the product of the tokens' ``integer_distribution``, rounded: after j carried tokens the two
   differ by less than ``2 j / 2**64``. They are equal wherever N times the product is an
   integer, and for the first token always. So statement 2 holds for the product too, save
   where N times it lies within ``2 j N / 2**64`` of an integer without being one.

A carried interval is wider than ``2**64 / N``, so at least 64 - log2 N bits are left of every
code in use, however long the text: codes never run out and nothing needs refilling. A token
that has all the mass, such as one that a prompt forces, takes nothing from the code.
"""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp

from decoding_jax.base import Array
from decoding_jax.codes import cdf, point_sets
from decoding_jax.ops import random, uint64


class Code(NamedTuple):
    """What is left of every sample's code. All of a row's N samples must be there.

    Attributes:
      offset: uint32 ``[B, N, 2]``: the point's place in its prefix's interval, a 64-bit integer.
      last: uint32 ``[B, N, 2]``: one less than the interval's width, so that 2**64 fits.
      keys: typed keys ``[B, N]``, of the bits that samples draw once they are alone.
    """

    offset: Array
    last: Array
    keys: Array


def start(points: str | point_sets.Points, keys: Array, num_samples: int) -> Code:
    """Codes of samples that have no tokens yet.

    Args:
      points: the point set: ``lattice``, ``stratified``, ``antithetic``, ``iid``,
        ``radical_inverse`` or a function (see ``Points``).
      keys: typed keys ``[B]``, one a row, from ``ops.random.row_keys``.
      num_samples: N.

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
    """The next token of every sample.

    Args:
      code: from ``start`` or an earlier ``choose``.
      logits: float ``[B, N, V]``, after any transform. -inf is never chosen, NaN counts as
        -inf and +inf as the largest float; where nothing is left the token is 0.
      position: int32, a scalar or ``[B, N]``: which new token this is. No two calls for a
        sample may share one, or they share their bits.
      sums: the logits' ``block_sums``, where these are known.

    Returns:
      The tokens, int32 ``[B, N]``, and the codes that are left.

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
    """``choose`` as a function of its bits: ``fresh``, uint32 ``[B, N, 2]``, for samples alone."""
    alone = is_alone(last)[..., None]
    whole = jnp.full_like(last, 0xFFFFFFFF)
    token, new_offset, new_last = cdf.invert(
        logits, jnp.where(alone, fresh, offset), jnp.where(alone, whole, last), sums
    )
    return token, jnp.where(alone, offset, new_offset), jnp.where(alone, last, new_last)


def is_alone(last: Array) -> Array:
    """Whether N p <= 1 for the prefix: bool ``[B, N]`` for a ``Code.last`` ``[B, N, 2]``."""
    narrowest = uint64.from_int(2**64 // last.shape[-2] - 1)
    return ~uint64.less(jnp.broadcast_to(narrowest, last.shape), last)
