"""Logits as an integer distribution, and the inversion of that distribution at a code.

The vocabulary is cut into about sqrt(V) blocks of consecutive tokens. The masses of the blocks are
integers that sum to 2**31 exactly, and so are the masses of the tokens inside each block. The
probability of token v of block k is the rational number

    block_mass[k] / 2**31 * token_mass[k, v] / 2**31.

Integer prefix sums are exact and monotone and can be computed in parallel, which is not true of
float sums, so a code is inverted without a sequential pass over the vocabulary. Two levels of 31
bits each keep the distribution within 1e-6 of the softmax in total variation up to V = 256,000.
Only the tokens of the selected block are read at the second level, so a draw reads the logits
twice, as a logsumexp does.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from decoding_jax.base import Array
from decoding_jax.ops import exact, gpu, uint64
from decoding_jax.ops.gather import gather_last
from decoding_jax.ops.logits import largest

TOTAL = np.uint32(2**31)  # the sum of the masses at each level
_LARGEST = np.finfo(np.float32).max
_SPREAD = 8  # the number of blocks may be larger or smaller than sqrt(V) by this factor


class IntegerDistribution(NamedTuple):
    """The exact distribution of a draw.

    Attributes:
      block_mass: uint32 ``[..., K]``, whose sum is 2**31.
      token_mass: uint32 ``[..., K, V']``, whose sum is 2**31 in each block. Token v is at index
        ``[v // V', v % V']``; indices beyond the vocabulary have mass 0.
    """

    block_mass: Array
    token_mass: Array


def integer_distribution(logits: Array) -> IntegerDistribution:
    """The distribution that ``draw`` follows exactly, as integers.

    A token of logit -inf has mass 0. NaN counts as -inf, and +inf as the largest float. Where
    every token is banned, token 0 has all the mass.

    Args:
      logits: float ``[..., V]``.

    Example:
      >>> distribution = integer_distribution(jnp.array([0.0, 0.0, 0.0, -jnp.inf]))
      >>> distribution.block_mass.tolist(), distribution.token_mass.tolist()
      ([1431655765, 715827883], [[1073741824, 1073741824], [2147483648, 0]])
    """
    tokens = _blocks(logits)
    blocks = _cdf(block_sums(logits))
    inside = _cdf(_weights(tokens))
    return IntegerDistribution(_masses(blocks), _masses(inside))


def invert(
    logits: Array, offset: Array, last: Array, sums: Array | None = None
) -> tuple[Array, Array, Array]:
    """Finds the token at a code, and the remaining code inside that token's interval.

    An interval of ``last + 1`` points is divided among the tokens, in the order of their ids, in
    proportion to their masses. Both levels round the boundaries down to whole points. The point
    ``offset`` lies in the interval of exactly one token, whose mass is positive. All codes of an
    interval therefore share its boundaries. The distribution of the token at a uniform code is
    exactly the ``integer_distribution`` where the boundaries are whole, as they are at 2**64
    points; otherwise each token's share differs from it by at most 2 points. A token that has all
    the mass leaves the code unchanged.

    Args:
      logits: float ``[..., V]``.
      offset: uint32 ``[..., 2]``, a 64-bit integer, at most ``last``.
      last: uint32 ``[..., 2]``, the width of the interval minus one.
      sums: the ``block_sums`` of the logits, if they are already known.

    Returns:
      The token, int32 ``[...]``, and the offset and last of its interval, uint32 ``[..., 2]``.
    """
    sums = block_sums(logits) if sums is None else sums
    return _find(_blocks(logits), sums, _weights, offset, last)


def draw(logits: Array, bits: Array, sums: Array | None = None) -> Array:
    """Draws one token for each 64 random bits, exactly from the ``integer_distribution``.

    Args:
      logits: float ``[..., V]``, after any transform.
      bits: uint32 ``[..., 2]``, uniform, for example from ``ops.random.lane_bits``.
      sums: the ``block_sums`` of the logits, if they are already known.

    Returns:
      int32 ``[...]``.

    Example:
      >>> draw(jnp.log(jnp.array([0.5, 0.5])), jnp.uint32([2**31, 0])).item()
      1
    """
    return invert(logits, bits, jnp.full_like(bits, 0xFFFFFFFF), sums)[0]


def weighted_distribution(weights: Array) -> IntegerDistribution:
    """The distribution that ``draw_weighted`` follows exactly, as integers.

    Example:
      >>> distribution = weighted_distribution(jnp.array([2.0, 0.0, 0.0, 2.0]))
      >>> distribution.block_mass.tolist()
      [1073741824, 1073741824]
    """
    tokens = _blocks(weights, 0.0)
    return IntegerDistribution(_masses(_cdf(exact.sum_last(tokens))), _masses(_cdf(tokens)))


def draw_weighted(weights: Array, bits: Array) -> Array:
    """Draws one token for each 64 random bits, exactly from the ``weighted_distribution``.

    Args:
      weights: float32 ``[..., V]``, none below 0, whose sum is from 2**-60 to 2**60. A weight below
        2**-32 of the sum may count as 0.
      bits: uint32 ``[..., 2]``, uniform.

    Returns:
      int32 ``[...]``.

    Example:
      >>> draw_weighted(jnp.array([0.0, 0.2, 0.0]), jnp.uint32([7, 7])).item()
      1
    """
    tokens, last = _blocks(weights, 0.0), jnp.full_like(bits, 0xFFFFFFFF)
    return _find(tokens, exact.sum_last(tokens), lambda weights: weights, bits, last)[0]


def block_sums(logits: Array, peak: Array | None = None) -> Array:
    """Sums ``exp(logits - max)`` over each block of the vocabulary.

    Args:
      logits: float ``[..., V]``, as for ``draw``.
      peak: ``[..., 1]``, the largest logit, if it is already known; it is NaN where a logit is NaN
        (see ``ops.logits.largest``).

    Returns:
      float32 ``[..., K]``, an argument of ``draw``. Their sum is the softmax's denominator.

    Example:
      >>> block_sums(jnp.zeros(4)).tolist()
      [2.0, 2.0]
    """

    def partial_sums(peak: Array) -> Array:
        # The logits are cut into chunks before the exponential. Cutting its result would write
        # the whole array to memory and read it back.
        parts = exact.chunks(_blocks(logits), -jnp.inf)
        return exact.add_all([_exp(part, peak[..., None]) for part in parts])

    return exact.sum_last(_with_peak(partial_sums, logits, peak))


def block_count(vocab_size: int) -> int:
    """K, the number of blocks: near sqrt(V), and a divisor of V if there is one near it.

    A divisor needs no padding, so nothing is copied. Of two divisors that are equally near, the
    one with more factors of two is chosen because it shards more evenly.

    Example:
      >>> block_count(32_128), block_count(256_000), block_count(97)
      (128, 512, 10)
    """
    root = math.isqrt(vocab_size)
    for small in range(root, 0, -1):
        if vocab_size % small == 0 and small * _SPREAD >= root:
            return max(small, vocab_size // small, key=lambda k: (k & -k, -k))
    return math.ceil(vocab_size / (root + 1))


def _blocks(values: Array, fill: float = -jnp.inf) -> Array:
    """``[..., V]`` as ``[..., K, V']``, padded with ``fill`` only if K does not divide V."""
    vocab_size = values.shape[-1]
    count = block_count(vocab_size)
    size = math.ceil(vocab_size / count)
    if padding := count * size - vocab_size:
        pads = [(0, 0)] * (values.ndim - 1) + [(0, padding)]
        values = jnp.pad(values, pads, constant_values=fill)
    return values.reshape(*values.shape[:-1], count, size)


def _weights(logits: Array) -> Array:
    """``exp(logits - max)`` over the last axis: float32 ``[..., n]``."""
    return _with_peak(lambda peak: _exp(logits, peak), logits)


def _exp(logits: Array, peak: Array) -> Array:
    logits = logits.astype(jnp.float32)
    return exact.exp(jnp.where(logits > _LARGEST, _LARGEST, logits) - peak)


def _with_peak(
    function: Callable[[Array], Array], logits: Array, peak: Array | None = None
) -> Array:
    """``function`` of the finite maximum over the last axis (kept), or of 0 where all are -inf."""

    def call(peak: Array) -> Array:
        peak = jnp.minimum(peak.astype(jnp.float32), _LARGEST)
        return function(jnp.where(jnp.isneginf(peak), 0.0, peak))

    def known() -> Array:
        return jnp.max(jnp.where(jnp.isnan(logits), -jnp.inf, logits), -1, keepdims=True)

    # NaN is rare, and a maximum that ignores it takes longer, so it is computed only where there is
    # a NaN. The branch is also a fusion barrier: without it a compiler that fuses products and sums
    # may compute the exponentials once for each of their uses. A GPU's compiler would compute both
    # branches, and both maxima take no longer there than one.
    peak = largest(logits) if peak is None else peak
    is_nan = jnp.isnan(peak)
    return gpu.either(
        lambda: call(jnp.where(is_nan, known(), peak)),
        lambda: jax.lax.cond(jnp.any(is_nan), lambda: call(known()), lambda: call(peak)),
    )


def _cdf(weights: Array) -> Array:
    """Prefix sums of integer masses in proportion to ``weights``: uint32 ``[..., n]``.

    The last prefix sum is 2**31. A weight of zero has mass zero; where all weights are zero, the
    first entry has all the mass.
    """
    # The target is below 2**31 by more than float rounding can add. The prefix sums are then
    # stretched onto 2**31. Stretching is a monotone map of integers, so masses stay at or above
    # zero, and equal prefix sums (a mass of zero) stay equal.
    slack = 2**14 + weights.shape[-1]
    total = exact.sum_last(weights)[..., None]
    factor = jnp.where(total > 0, (float(TOTAL) - slack) / total, 0.0)
    mass = jnp.round(weights * factor).astype(jnp.uint32)
    sums = jax.lax.associative_scan(jnp.add, mass, axis=-1)
    mass_sum = sums[..., -1:]
    stretch = (TOTAL - mass_sum).astype(jnp.float32) / jnp.maximum(mass_sum, 1).astype(jnp.float32)
    stretched = sums + jnp.round(sums.astype(jnp.float32) * stretch).astype(jnp.uint32)
    return jnp.where(sums == mass_sum, TOTAL, stretched)


def _masses(cdf: Array) -> Array:
    return jnp.diff(cdf, axis=-1, prepend=jnp.zeros_like(cdf[..., :1]))


def _find(
    tokens: Array, blocks: Array, weigh: Callable[[Array], Array], offset: Array, last: Array
) -> tuple[Array, Array, Array]:
    """Inverts both levels: the token, and the ``offset`` and ``last`` of its interval.

    Args:
      tokens: ``[..., K, V']``, the logits or weights of the tokens in each block.
      blocks: float32 ``[..., K]``, the weights of the blocks.
      weigh: maps ``[..., V']``, the selected block's part of ``tokens``, to weights.
      offset: uint32 ``[..., 2]``, at most ``last``.
      last: uint32 ``[..., 2]``, the width of the interval minus one.
    """
    block, offset, last = _narrow(_cdf(blocks), offset, last)
    selected = jnp.take_along_axis(tokens, block[..., None, None], axis=-2)[..., 0, :]
    token, offset, last = _narrow(_cdf(weigh(selected)), offset, last)
    return block * tokens.shape[-1] + token, offset, last


def _narrow(cdf: Array, offset: Array, last: Array) -> tuple[Array, Array, Array]:
    """The entry whose part of the interval contains ``offset``, and the code inside that part."""
    # Entry i ends at the boundary scale(last, cdf[i]). The first entry that ends beyond the offset
    # contains it. The end of the whole interval is beyond every offset, but it may be 2**64, which
    # is stored as 0 and therefore tested by its CDF.
    ends = uint64.scale(last[..., None, :], cdf)
    beyond = uint64.less(offset[..., None, :], ends) | (cdf == TOTAL)
    index = jnp.sum(~beyond, axis=-1, dtype=jnp.int32)
    before = jnp.where(index == 0, np.uint32(0), gather_last(cdf, jnp.maximum(index - 1, 0)))
    low, high = uint64.scale(last, before), uint64.scale(last, gather_last(cdf, index))
    one = uint64.from_int(1)
    last = uint64.subtract(uint64.subtract(high, low), jnp.broadcast_to(one, low.shape))
    return index, uint64.subtract(offset, low), last
