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

**Several codes.** With ``after="lattice"``, a sample that is alone starts its next code, the k-th
of its text, at a point of the k-th lattice of its row, and narrows it until ``N * width <= 2**64``
once more (``renewed``). Every lattice has a shift of its own, and every sample uses one point of
it, so a code is uniform whatever the sample's text is so far, and statements 1 to 3 hold, with p
the product over the codes. The lattices make a Latin hypercube of the codes (McKay, Beckman &
Conover 1979): samples with different prefixes are spread over the k-th code, although each may
come to it at another token. That helps where equal codes mean alike after different prefixes. The
order of ids does not give that, and ``by_probability`` does: a small code follows the most
probable tokens. Statements 1 to 3 hold for every order that depends on the prefix alone.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from decoding_jax.base import Array
from decoding_jax.codes import cdf, point_sets
from decoding_jax.ops import random, uint64
from decoding_jax.ops.gather import gather_last
from decoding_jax.ops.top_k import top_k


class Code(NamedTuple):
    """The remaining code of every sample. It must hold all N samples of a row.

    Attributes:
      offset: uint32 ``[B, N, 2]``: the position of the point in its prefix's interval, a 64-bit
        integer.
      last: uint32 ``[B, N, 2]``: the interval's width minus one, so that 2**64 fits.
      keys: typed keys ``[B, N]`` for the bits that a sample draws once it is alone.
      used: int32 ``[B, N]``, the number of codes that the sample has used up; or None where it has
        one code, and draws its later tokens independently.
    """

    offset: Array
    last: Array
    keys: Array
    used: Array | None = None


ORDERS = ("id", "probability")
"""The orders of tokens in the interval of their prefix: by id, or ``by_probability``."""

AFTER = ("independent", "lattice")
"""What chooses a sample's tokens once it is alone: independent bits, or the next code."""

HEAD = 32
"""The number of tokens that ``by_probability`` puts first."""


def start(
    points: str | point_sets.Points, keys: Array, num_samples: int, after: str = "independent"
) -> Code:
    """The codes of samples that have no tokens yet.

    Args:
      points: the point set: ``lattice``, ``stratified``, ``antithetic``, ``iid``,
        ``radical_inverse`` or a function (see ``Points``).
      keys: typed keys ``[B]``, one for each row, from ``ops.random.row_keys``.
      num_samples: N, the number of samples of each row.
      after: what chooses the tokens of samples that are alone, one of ``AFTER``.

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
    used = None if after == "independent" else jnp.zeros(offset.shape[:2], jnp.int32)
    return Code(offset, last, random.lane_keys(lane_keys, num_samples), used)


def choose(
    code: Code,
    logits: Array,
    position: Array | int,
    sums: Array | None = None,
    order: str = "id",
) -> tuple[Array, Code]:
    """Chooses the next token of every sample.

    Args:
      code: from ``start`` or an earlier ``choose``.
      logits: float ``[B, N, V]``, after any transform. -inf is never chosen, NaN counts as
        -inf and +inf as the largest float. Where every token is banned, the token is 0.
      position: int32, a scalar or ``[B, N]``: the index of this new token. Two calls with the same
        position for a sample draw the same bits. Samples with several codes do not need it.
      sums: the ``block_sums`` of the logits, if they are already known.
      order: of the tokens' intervals in that of their prefix, one of ``ORDERS``.

    Returns:
      The tokens, int32 ``[B, N]``, and the codes that remain.

    Example:
      >>> import jax
      >>> code = start("lattice", random.row_keys(jax.random.key(0), 1), 8)
      >>> token, code = choose(code, jnp.zeros((1, 8, 4)), 0)
      >>> jnp.bincount(token[0], length=4).tolist()
      [2, 2, 2, 2]
    """
    if code.used is None:
        fresh = random.bits_at(code.keys, position)
        token, offset, last = step(code.offset, code.last, logits, fresh, sums, order)
    else:
        code = renewed(code, code.used)
        token, offset, last = narrow(code.offset, code.last, logits, sums, order)
    return token, code._replace(offset=offset, last=last)


def step(
    offset: Array,
    last: Array,
    logits: Array,
    fresh: Array,
    sums: Array | None = None,
    order: str = "id",
) -> tuple[Array, Array, Array]:
    """``choose`` with given bits: a sample that is alone uses ``fresh``, uint32 ``[B, N, 2]``."""
    alone = is_alone(last)[..., None]
    whole = jnp.full_like(last, 0xFFFFFFFF)
    token, new_offset, new_last = narrow(
        jnp.where(alone, fresh, offset), jnp.where(alone, whole, last), logits, sums, order
    )
    return token, jnp.where(alone, offset, new_offset), jnp.where(alone, last, new_last)


def narrow(
    offset: Array, last: Array, logits: Array, sums: Array | None, order: str
) -> tuple[Array, Array, Array]:
    """``cdf.invert`` with the tokens in one of ``ORDERS``."""
    if order == "id":
        return cdf.invert(logits, offset, last, sums)
    ids, ordered = by_probability(logits)
    place, offset, last = cdf.invert(ordered, offset, last)
    head = ids.shape[-1]
    token = jnp.where(place < head, gather_last(ids, jnp.minimum(place, head - 1)), place - head)
    return token, offset, last


def by_probability(logits: Array) -> tuple[Array, Array]:
    """The most probable tokens in descending order, and then all others in that of their ids.

    Args:
      logits: float ``[..., V]``.

    Returns:
      The ids of the first H tokens, int32 ``[..., H]``, equal logits by lower id, where H is
      ``HEAD`` or V if that is less; and the logits in the new order, ``[..., H + V]``, which are
      -inf where one of the first tokens was.

    Example:
      >>> by_probability(jnp.array([0.0, 2.0, 1.0]))[0]
      Array([1, 2, 0], dtype=int32)
    """
    logits = jnp.where(jnp.isnan(logits), -jnp.inf, logits.astype(jnp.float32))
    values, ids = top_k(logits, min(HEAD, logits.shape[-1]))
    least, index = values[..., -1:], jnp.arange(logits.shape[-1], dtype=jnp.int32)
    index = index.reshape((1,) * (logits.ndim - 1) + index.shape)
    is_first = (logits > least) | ((logits == least) & (index <= ids[..., -1:]))
    return ids, jnp.concatenate([values, jnp.where(is_first, -jnp.inf, logits)], -1)


def renewed(code: Code, used: Array) -> Code:
    """The codes in which every sample that is alone has its next one.

    The k-th codes of a row are a lattice: sample i has the point ``a i / N + u`` modulo 1, with a
    random shift u and a random factor a that has no divisor in common with N, for each row and k.

    Args:
      code: of samples that may be alone.
      used: its ``used``.
    """
    count = code.last.shape[-2]
    keys = jnp.broadcast_to(code.keys[:, :1], code.keys.shape)
    shift, bits = (random.bits_at(keys, 2 * used + i) for i in range(2))
    factors = np.array([a for a in range(1, count + 1) if math.gcd(a, count) == 1], np.uint32)
    factor = jnp.asarray(factors)[bits[..., 0] % np.uint32(len(factors))]
    place = factor * jnp.arange(count, dtype=jnp.uint32)[None] % np.uint32(count)
    point = uint64.add(jnp.asarray(point_sets.cells(count))[place.astype(jnp.int32)], shift)
    alone = is_alone(code.last)
    return code._replace(
        offset=jnp.where(alone[..., None], point, code.offset),
        last=jnp.where(alone[..., None], np.uint32(0xFFFFFFFF), code.last),
        used=used + alone.astype(jnp.int32),
    )


def is_alone(last: Array) -> Array:
    """Returns whether N p <= 1 for the prefix: bool ``[B, N]``, from ``Code.last [B, N, 2]``."""
    narrowest = uint64.from_int(2**64 // last.shape[-2] - 1)
    return ~uint64.less(jnp.broadcast_to(narrowest, last.shape), last)
