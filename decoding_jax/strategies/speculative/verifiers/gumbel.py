"""Gumbel-coupled verification: target and draft take the argmax of logits and the same noise."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from decoding_jax.base import Array
from decoding_jax.ops import random
from decoding_jax.ops.logits import lowest_argmax
from decoding_jax.pytrees import pytree
from decoding_jax.strategies.speculative import distributions
from decoding_jax.strategies.speculative.block import Block, Verdict
from decoding_jax.strategies.speculative.distributions import Softmax
from decoding_jax.strategies.speculative.verifiers.greedy import match


@pytree
@dataclasses.dataclass(frozen=True)
class Gumbel:
    """Samples that depend on the key and the target alone: no draft changes a token of them.

    After Daliri, Musco and Suresh 2025, "Coupling without Communication and Drafter-Invariant
    Speculative Decoding". A lane has Gumbel noise of its own for every position and token, so the
    drafted token is the target's own with probability at least (1 - d) / (1 + d), where d is the
    total variation between the two distributions. V random numbers a position are drawn, twice.
    """

    def init(self, key: Any, batch_size: int, lanes: int) -> tuple[Any, Any]:
        """See ``Verifier.init``."""
        return random.lane_keys(random.row_keys(key, batch_size), lanes), ()

    def draw(
        self, seed: Any, memory: Any, law: Softmax, position: Array, clock: Array
    ) -> tuple[Array, Any]:
        """See ``Verifier.draw``."""
        noise = gumbel_noise(seed, position[..., None], law.logits.shape[-1])
        return lowest_argmax(law.logits + noise[:, :, 0]), memory

    def verify(
        self,
        seed: Any,
        memory: Any,
        block: Block,
        law: distributions.Softmax,
        position: Array,
        clock: Array,
    ) -> Verdict:
        """See ``Verifier.verify``."""
        logits = law.logits
        positions = position[..., None] + jnp.arange(logits.shape[2])[None, None]
        own = lowest_argmax(logits + gumbel_noise(seed, positions, logits.shape[-1]))
        return Verdict(own, match(block, own), memory)


def gumbel_noise(keys: Array, position: Array, size: int) -> Array:
    """Standard Gumbel noise for every lane, position and token.

    It is minus the log of an exponential variable. The largest of V of them decides, which is the
    least exponential; made of a uniform near 0, that one keeps its bits where it is as small as
    1 / V.

    Args:
      keys: typed keys ``[B, W]``.
      position: int32 ``[B, W, T]``.
      size: V.

    Returns:
      float32 ``[B, W, T, V]``, finite.
    """

    def one(key: Array, position: Array) -> Array:
        bits = jax.random.bits(jax.random.fold_in(key, position), (size,), jnp.uint32)
        uniform = (bits.astype(jnp.float32) + 0.5) * 2.0**-32
        return -jnp.log(-jnp.log1p(-jnp.minimum(uniform, 1 - 2.0**-24)))

    positions = jax.vmap(one, (None, 0))
    return jax.vmap(jax.vmap(positions))(keys, position)
