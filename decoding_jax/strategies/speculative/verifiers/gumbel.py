"""Gumbel-coupled verification: target and draft take the argmax of logits and the same noise.

A token's logit with Gumbel noise is the log of its weight ``exp(logit - peak)`` over an exponential
variable, so the largest of these quotients decides. They are compared as they are: a logarithm
would round large ones to the same number, and a logit far from 0 would round the noise away.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from decoding_jax.base import Array
from decoding_jax.ops import exact, random
from decoding_jax.ops.logits import lowest_argmax
from decoding_jax.pytrees import pytree
from decoding_jax.strategies.speculative.distributions import Softmax
from decoding_jax.strategies.speculative.draft import Draft
from decoding_jax.strategies.speculative.verifiers.base import Verification
from decoding_jax.strategies.speculative.verifiers.greedy import count_matching


@pytree
@dataclasses.dataclass(frozen=True)
class GumbelVerifier:
    """Samples that depend on the key and the target alone: no draft changes a token of them.

    After Daliri, Musco and Suresh 2025, "Coupling without Communication and Drafter-Invariant
    Speculative Decoding". A lane has Gumbel noise of its own for every position and token, so the
    drafted token is the target's own with probability at least (1 - d) / (1 + d), where d is the
    total variation between the two distributions. V random numbers of 64 bits a position are drawn,
    twice. Each token's probability is that of its logits to 1e-6, whatever is added to all of them.
    """

    def init(self, key: Any, batch_size: int, lanes: int) -> tuple[Any, Any]:
        """See ``Verifier.init``."""
        return random.lane_keys(random.row_keys(key, batch_size), lanes), ()

    def draw(
        self, keys: Any, state: Any, distribution: Softmax, position: Array, counter: Array
    ) -> tuple[Array, Any]:
        """See ``Verifier.draw``."""
        noise = exponentials(keys, position[..., None], distribution.logits.shape[-1])[:, :, 0]
        return winner(distribution, noise), state

    def verify(
        self,
        keys: Any,
        state: Any,
        draft: Draft,
        target: Softmax,
        position: Array,
        counter: Array,
    ) -> Verification:
        """See ``Verifier.verify``."""
        ahead = jnp.arange(target.logits.shape[2], dtype=jnp.int32)[None, None]
        positions = position[..., None] + ahead
        chosen = winner(target, exponentials(keys, positions, target.logits.shape[-1]))
        return Verification(chosen, count_matching(draft, chosen), state)


def winner(distribution: Softmax, noise: Array) -> Array:
    """The token whose weight over its ``exponentials [..., V]`` is largest: int32 ``[...]``."""
    return lowest_argmax(exact.exp(distribution.logits - distribution.peak) / noise)


def exponentials(keys: Array, position: Array, size: int) -> Array:
    """A standard exponential variable for every lane, position and token.

    The least of V of them is about 1 / V. It is made of a uniform number near 0, of 64 bits, and so
    is as fine as a float32 can be: the two least are equal once in some 1e7 positions.

    Args:
      keys: typed keys ``[B, W]``.
      position: int32 ``[B, W, T]``.
      size: V.

    Returns:
      float32 ``[B, W, T, V]``, finite and above 0.
    """

    def one(key: Array, position: Array) -> Array:
        here = jax.random.fold_in(key, position)
        words = jax.vmap(jax.random.fold_in, (None, 0))(here, jnp.arange(size, dtype=jnp.int32))
        high, low = jnp.moveaxis(jax.random.key_data(words)[..., :2].astype(jnp.float32), -1, 0)
        uniform = high * 2.0**-32 + (low + 0.5) * 2.0**-64
        return -jnp.log1p(-jnp.minimum(uniform, 1 - 2.0**-24))

    positions = jax.vmap(one, (None, 0))
    return jax.vmap(jax.vmap(positions))(keys, position)
