"""The k largest numbers of each row, as they are or with Gumbel noise, which draws k of them.

The k largest are found in two levels, without moving sharded rows.

Adding independent Gumbel noise to log-weights and taking the k largest draws k items without
replacement, in order (Yellott 1977; Kool et al. 2019, "Stochastic Beams and Where to Find Them").
The largest of a set is itself a Gumbel variable, located at the log of the set's weight. Given the
largest, the others are Gumbels truncated at it. Noise is therefore drawn for blocks of items first,
and then for the items of at most k blocks, which takes about sqrt(V) random numbers instead of V.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

from decoding_jax.base import Array
from decoding_jax.ops import random
from decoding_jax.ops.gather import gather_items
from decoding_jax.ops.vocab import first_argmax
from decoding_jax.sharding.meshes import map_rows

BLOCK = 64
"""Numbers in a block; the first level takes the maximum of each block."""


def top_k(values: Array, k: int) -> tuple[Array, Array]:
    """The k largest along the last axis, in descending order, equal numbers by lower index first.

    One pass takes the maximum of every block of 64 numbers. Only the k blocks with the largest
    maxima are then searched. That costs little more than a maximum, whereas ``lax.top_k`` walks the
    whole row with a heap. Rows that are sharded over devices are not moved.

    Args:
      values: float32 ``[..., n]``, no NaN.
      k: static, at most n.

    Returns:
      The values ``[..., k]`` and their indices, int32.

    Raises:
      ValueError: for a k below 1 or above n.

    Example:
      >>> top_k(jnp.array([1.0, 5.0, 2.0, 5.0]), 3)[1]
      Array([1, 3, 2], dtype=int32)
    """
    *rows, size = values.shape
    if not 1 <= k <= size:
        raise ValueError(f"k: expected 1 to {size}, the size of the last axis, got {k}")
    values = jnp.where(values == 0, 0.0, values)  # -0.0, which XLA puts below 0.0
    # XLA would gather sharded rows: its top-k takes all rows together.
    return map_rows(lambda x: _top_k(x, k), values) if rows else _top_k(values, k)


def _top_k(values: Array, k: int) -> tuple[Array, Array]:
    *rows, size = values.shape
    flat = values.reshape(-1, size)
    best, index = _two_levels(flat, k) if size > 2 * k * BLOCK else _one_level(flat, k)
    return best.reshape(*rows, k), index.reshape(*rows, k)


def _two_levels(values: Array, k: int) -> tuple[Array, Array]:
    """``top_k`` of ``[R, n]``: a number outside the k best blocks is below k others."""
    rows, size = values.shape
    blocks = -(-size // BLOCK)
    padding = blocks * BLOCK - size
    if padding:
        values = jnp.pad(values, ((0, 0), (0, padding)), constant_values=-jnp.inf)
    values = values.reshape(rows, blocks, BLOCK)
    chosen = _ascending(
        _top_k(values.max(-1), k)[1]
    )  # ascending, so equal numbers keep their order
    held = gather_items(values, chosen).reshape(rows, k * BLOCK)
    best, index = _one_level(held, k)
    block = gather_items(chosen, index // BLOCK)
    # An index is never one of the padding, which comes last, after at least k other numbers.
    return best, block * BLOCK + index % BLOCK


def _ascending(index: Array) -> Array:
    """Sorts distinct numbers ``[R, k]`` by their ranks, which is faster than XLA's sort."""
    rank = (index[:, None] < index[..., None]).sum(-1, dtype=jnp.int32)
    placed = rank[:, None] == jnp.arange(index.shape[-1], dtype=jnp.int32)[None, :, None]
    return jnp.where(placed, index[:, None], 0).sum(-1, dtype=jnp.int32)


def _one_level(values: Array, k: int) -> tuple[Array, Array]:
    # XLA's CPU compiler recognises a top-k by its two slices; if they merge with other slices, it
    # sorts instead. A separate barrier keeps each slice apart, because one barrier around the pair
    # crashes the compiler (jaxlib 0.10.2).
    best, index = lax.top_k(values, k)
    return lax.optimization_barrier(best), lax.optimization_barrier(index)


def gumbel(key: Array, shape: tuple[int, ...]) -> Array:
    """Standard Gumbel noise, float32, each number from 32 random bits.

    The upper tail, which decides the largest numbers, has the full resolution of the bits.
    """
    bits = random.bits(key, shape)
    half = jnp.uint32(1 << 31)
    # -log(1 - v) for a uniform v is computed from the smaller of v and 1 - v, which is exact.
    low = jnp.where(bits < half, bits, ~bits).astype(jnp.float32)
    low = (low + 0.5) * 2.0**-32
    return -jnp.log(jnp.where(bits < half, -jnp.log1p(-low), -jnp.log(low)))


def conditioned(key: Array, locations: Array, maximum: Array) -> Array:
    """Gumbels at ``locations``, given that the largest of each set is ``maximum``.

    The largest of a set is the item with the largest sum of location and noise, and its value is
    the maximum T. Every other value is a Gumbel below T. With independent noise g that is
    ``-log(exp(-T) + exp(-(location + g)))``, whose distribution function is
    ``F(x) / F(T)``. Kool et al. 2019, appendix B.3, transform the noise that chose the largest item
    instead. That subtracts nearly equal numbers where two items compete, which multiplies the
    rounding of their sums; here only positive numbers are added.

    Args:
      key: a typed key.
      locations: float32 ``[..., n]``; -inf stays -inf.
      maximum: float32 ``[...]``, the maximum of each set. A set with -inf has no items.

    Example:
      >>> values = conditioned(jax.random.key(0), jnp.array([0.0, 1.0, -jnp.inf]), jnp.array(2.0))
      >>> values.max().item(), values[2].item()
      (2.0, -inf)
    """
    choice, values = random.split_key(key)
    exists = (locations > -jnp.inf) & (maximum[..., None] > -jnp.inf)
    location = jnp.where(exists, locations, 0.0)
    top = jnp.where(exists, jnp.broadcast_to(maximum[..., None], locations.shape), 0.0)
    sums = jnp.where(exists, location + gumbel(choice, locations.shape), -jnp.inf)
    below = -jnp.logaddexp(-top, -(location + gumbel(values, locations.shape)))
    return jnp.where(exists, jnp.where(first_argmax(sums), top, below), -jnp.inf)


def top_k_gumbel(
    keys: Array, log_weights: Array, k: int, maximum: Array | None = None
) -> tuple[Array, Array]:
    """The k largest of ``log_weights`` with Gumbel noise, in order.

    Args:
      keys: typed keys ``[B]``.
      log_weights: float32 ``[B, G, n]``; -inf is never drawn.
      k: static, at most ``G * n``.
      maximum: float32 ``[B, G]``, the known maximum of each group's perturbed log-weights, or None.
        A group whose maximum is -inf has no items.

    Returns:
      The perturbed log-weights float32 ``[B, k]``, padded with -inf where fewer than k items can be
      drawn, and int32 indices ``[B, k]`` into the ``G * n`` items.

    Example:
      >>> keys = jax.random.split(jax.random.key(0), 1)
      >>> weights = jnp.log(jnp.array([[[0.5, 0.0, 0.5]]]))
      >>> value, index = top_k_gumbel(keys, weights, 3)
      >>> sorted(index[0, :2].tolist()), value[0, 2].item()
      ([0, 2], -inf)
    """
    rows, groups, size = log_weights.shape
    pairs = jax.vmap(random.split_key)(keys)
    blocks = -(-size // BLOCK)
    padding = blocks * BLOCK - size
    if padding:
        pads = ((0, 0), (0, 0), (0, padding))
        log_weights = jnp.pad(log_weights, pads, constant_values=-jnp.inf)
    items = log_weights.reshape(rows, groups, blocks, BLOCK)
    totals = jax.nn.logsumexp(items, axis=-1)
    if maximum is None:
        best = totals + jax.vmap(lambda key: gumbel(key, (groups, blocks)))(pairs[:, 0])
    else:
        best = jax.vmap(conditioned)(pairs[:, 0], totals, maximum)

    count = min(k, groups * blocks)
    best, block = top_k(best.reshape(rows, groups * blocks), count)
    selected = gather_items(items.reshape(rows, groups * blocks, BLOCK), block)
    perturbed = jax.vmap(conditioned)(pairs[:, 1], selected, best).reshape(rows, count * BLOCK)
    value, index = top_k(perturbed, k)
    block = gather_items(block, index // BLOCK)
    within = (block % blocks) * BLOCK + index % BLOCK
    return value, block // blocks * size + jnp.minimum(within, size - 1)
