"""Selects one of several drafts by their tokens, for block verification.

Thomas and Pal 2026, "Greedy Multi-Path Block Verification for Faster Decoding in Speculative
Sampling" (arXiv:2602.16961), split the verification of several paths into the selection of one
and block verification of it. A selected token does not have the draft's distribution; its own
distribution takes the draft's place in block verification. They rank the paths by an order of
tokens. The selection here prefers tokens at random, and comes close to the optimum, which
``python -m experiments.verification_bounds`` computes.

At a node with n drafts, let q be the draft's distribution, and let R p be the mass that block
verification may accept, where p is the target's distribution and R the joint ratio of the node.
With a share g in [0, 1], let

    a = g**(n - 1),   b = 1 + g + ... + g**(n - 1),   s = clip(R p, a q, b q),

where the sum of s is 1. Each draft's token x is *preferred* with probability
``(s(x) / q(x) - a) / (b - a)``, independently. The first preferred draft is selected, or the first
draft where none is preferred. Then s is the distribution of the selected token:

- A token is not preferred with probability g, since ``1 - (1 - a) / (b - a) = g``. None of n is
  with ``g**n``.
- The selected token is x after a preferred draft with probability
  ``(1 - g**n) / (1 - g) q(x) preferred(x) = b q(x) preferred(x)``, and otherwise with
  ``g**(n - 1) q(x) (1 - preferred(x)) = a q(x) (1 - preferred(x))``. Their sum is s(x).

The token is accepted with probability ``sum(min(R p, s))``. Of all distributions between a q and
b q, whatever g is, s has the largest: no such sum exceeds ``1 - sum(max(a q - R p, 0))``, which
falls as g grows, or ``sum(min(R p, b q))``, which grows. Both are equal where s sums to 1, and s
attains them. With n = 1, s is q.

The next tokens of the drafts that agree with the selected token are independent draws, whichever
draft was selected and however many agree. By induction from the leaves, block verification with s
in the place of q therefore accepts a node or what is below it with probability R, and what follows
the node has the target's distribution.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from decoding_jax.base import Array
from decoding_jax.ops import exact, gpu
from decoding_jax.ops.gather import gather_last, gather_position
from decoding_jax.strategies.speculative import distributions
from decoding_jax.strategies.speculative.stages import Drafts

_STEPS = 24  # of the bisection for g, whose interval then is as small as a unit of float32


class Selection(NamedTuple):
    """The selected path, and what block verification needs of it.

    Attributes:
      tokens: int32 ``[B, W, K]``.
      nodes: int32 ``[B, W, K]``, the index of each token among the tokens fed to the target.
      drafts: int32 ``[B, W, K]``, a draft that agrees with all tokens before this one.
      joint: float32 ``[B, W, K]``, R of each token's node.
      ceiling: float32 ``[B, W, K]``, b at each token.
      mass: float32 ``[B, W, K]``, the sum of ``max(R p - s, 0)`` at each token, with R of the node
        before it.
      preferred: float32 ``[B, W, K, C]``, the probability that each draft's token is preferred; 0
        for a draft that does not agree with the tokens before.
    """

    tokens: Array
    nodes: Array
    drafts: Array
    joint: Array
    ceiling: Array
    mass: Array
    preferred: Array


def bounds(target: Array, draft: Array, count: Array, most: int) -> tuple[Array, Array]:
    """a and b, for which ``clip(target, a draft, b draft)`` sums to 1.

    Args:
      target: float32 ``[..., V]``, R p.
      draft: float32 ``[..., V]``, q.
      count: int32 ``[...]``, n, at least 1.
      most: the largest possible n.

    Returns:
      float32 ``[...]`` each.

    Example:
      >>> target, draft = jnp.array([0.5, 0.5]), jnp.array([0.75, 0.25])
      >>> [round(float(x), 4) for x in bounds(target, draft, jnp.int32(2), 2)]
      [0.75, 1.75]
    """

    # `count` differs by lane, so the powers of g up to the largest count are made for all of them.
    def of_share(share: Array) -> tuple[Array, Array]:
        power, floor, ceiling = jnp.ones_like(share), jnp.ones_like(share), jnp.ones_like(share)
        for n in range(2, most + 1):
            power = jnp.abs(power * share)
            floor = jnp.where(count == n, power, floor)
            ceiling = jnp.where(count >= n, ceiling + power, ceiling)
        return floor, ceiling

    def halve(_: Array, interval: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = interval
        middle = (low + high) / 2
        floor, ceiling = of_share(middle)
        clipped = jnp.clip(target, floor[..., None] * draft, ceiling[..., None] * draft)
        # The sum grows with g: from that of `min(R p, q)`, which is at most 1, to 1 or more. All
        # programs must find the same g, so the sum is added in one order.
        below = exact.sum_last(clipped) < 1
        return jnp.where(below, middle, low), jnp.where(below, high, middle)

    # One draft has a = b = 1 whatever g is, and the interval [0, 0].
    interval = jnp.zeros(count.shape, jnp.float32), (count > 1).astype(jnp.float32)
    steps = jnp.where((count > 1).any(), _STEPS, 0)
    _, share = gpu.either(
        lambda: lax.fori_loop(0, _STEPS, halve, interval),
        lambda: lax.fori_loop(0, steps, halve, interval),
    )
    return of_share(share)


def select_path(drafts: Drafts, length: Array, target: Array, uniforms: Array) -> Selection:
    """Selects a draft by its tokens, level by level.

    Args:
      drafts: C drafts of every lane, drawn independently.
      length: int32 ``[B, W]``, the number of drafted tokens. What is beyond it is undefined.
      target: the target's transformed logits after each token fed, ``[B, W, 1 + K C, V]``.
      uniforms: float32 ``[B, W, K, C]``, uniform numbers in [0, 1).
    """
    shape, (size, num_drafts) = length.shape, drafts.tokens.shape[2:]

    def at(values: Array, i: Array) -> Array:
        return lax.dynamic_index_in_dim(values, i, 2, keepdims=False)

    def select(i: Array, carry: Any) -> Any:
        # `agreeing [B, W, C]` are the drafts whose tokens so far are the selected ones. They share
        # the node, and so its p and q, which are read from the first of them.
        selection, agreeing, node, joint = carry
        draft = lax.argmax(agreeing, agreeing.ndim - 1, jnp.int32)
        q = distributions.softmax(gather_position(at(drafts.logits, i), draft)).probs()
        p = distributions.softmax(gather_position(target, node)).probs()
        p = jnp.abs(joint[..., None] * p)
        floor, ceiling = bounds(p, q, agreeing.sum(-1, dtype=jnp.int32), num_drafts)
        tokens = at(drafts.tokens, i)
        p_of, q_of = (jnp.take_along_axis(x, tokens, axis=-1, mode="clip") for x in (p, q))
        ratio = p_of / jnp.maximum(q_of, 1e-37)
        # Divisors are at least 1e-37, which is not subnormal. The draft has drawn its tokens, so q
        # is positive unless it was rounded to 0. With one draft a = b, and none is preferred.
        above = jnp.clip(ratio, floor[..., None], ceiling[..., None]) - floor[..., None]
        preferred = above / jnp.maximum(ceiling - floor, 1e-37)[..., None]
        preferred = jnp.where(agreeing, preferred, 0.0)
        is_preferred = at(uniforms, i) < preferred
        candidates = jnp.where(is_preferred.any(-1, keepdims=True), is_preferred, agreeing)
        chosen = lax.argmax(candidates, candidates.ndim - 1, jnp.int32)
        token, ratio = gather_last(tokens, chosen), gather_last(ratio, chosen)
        # The target was fed the last token, and then level after level of all drafts.
        node = 1 + i * drafts.width + chosen
        # R p / s is below 1 only where s is a q.
        next_joint = jnp.where(ratio < floor, ratio / jnp.maximum(floor, 1e-37), 1.0)
        mass = exact.sum_last(distributions.excess(p, jnp.abs(ceiling[..., None] * q)))
        new = Selection(token, node, draft, next_joint, ceiling, mass, preferred)
        update = lambda values, value: lax.dynamic_update_index_in_dim(values, value, i, 2)  # noqa: E731
        agreeing &= tokens == token[..., None]
        return jax.tree.map(update, selection, new), agreeing, node, next_joint

    integers = jnp.zeros((*shape, size), jnp.int32)
    preferred = jnp.zeros((*shape, size, num_drafts), jnp.float32)
    numbers = preferred[..., 0]
    empty = Selection(*(integers,) * 3, *(numbers,) * 3, preferred)
    agreeing, joint = drafts.verified, jnp.ones(shape, jnp.float32)
    carry = empty, agreeing, jnp.zeros_like(length), joint
    return lax.fori_loop(0, length.max(), select, carry)[0]
