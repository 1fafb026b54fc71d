"""Draws without replacement: the k largest log-probabilities after Gumbel noise is added.

Adding independent Gumbel noise to log-weights and taking the k largest draws k items without
replacement, in order (Yellott 1977; Kool et al. 2019, "Stochastic Beams and Where to Find Them").
The largest of a set is itself a Gumbel variable, located at the log of the set's weight. Given the
largest, the others are Gumbels truncated at it. Noise is therefore drawn for blocks of items first,
and then for the items of at most k blocks, which takes about sqrt(V) random numbers instead of V.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from decoding_jax.base import Array
from decoding_jax.ops import random
from decoding_jax.ops.gather import gather_items
from decoding_jax.ops.top_k import BLOCK, top_k


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


def cut_off(values: Array, maximum: Array) -> Array:
    """Conditions Gumbels on their maximum being ``maximum``: Kool et al. 2019, appendix B.3.

    Args:
      values: float32 ``[..., n]``, independent Gumbels at any locations; -inf stays -inf.
      maximum: float32 ``[...]``, the maximum that each set of n is conditioned on.

    Example:
      >>> cut = cut_off(jnp.array([1.0, 3.0, -jnp.inf]), jnp.array(2.0))
      >>> [round(value, 2) for value in cut.tolist()]
      [0.79, 2.0, -inf]
    """
    largest = values.max(-1, keepdims=True)
    maximum = maximum[..., None]
    exists = (values > -jnp.inf) & (maximum > -jnp.inf)
    safe = jnp.where(exists, values, 0.0)
    top = jnp.where(exists, jnp.broadcast_to(maximum, values.shape), 0.0)
    below = jnp.where(exists, safe - largest, -1.0)
    v = top - safe + jnp.log1p(-jnp.exp(below))
    cut = top - jnp.maximum(v, 0.0) - jnp.log1p(jnp.exp(-jnp.abs(v)))
    return jnp.where(exists, cut, -jnp.inf)


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
    noise = jax.vmap(lambda key: gumbel(key, (groups, blocks)))(pairs[:, 0])
    best = jax.nn.logsumexp(items, axis=-1) + noise
    if maximum is not None:
        best = cut_off(best, maximum)

    count = min(k, groups * blocks)
    best, block = top_k(best.reshape(rows, groups * blocks), count)
    selected = gather_items(items.reshape(rows, groups * blocks, BLOCK), block)
    noise = jax.vmap(lambda key: gumbel(key, (count, BLOCK)))(pairs[:, 1])
    perturbed = cut_off(selected + noise, best).reshape(rows, count * BLOCK)
    value, index = top_k(perturbed, k)
    block = gather_items(block, index // BLOCK)
    within = (block % blocks) * BLOCK + index % BLOCK
    return value, block // blocks * size + jnp.minimum(within, size - 1)
