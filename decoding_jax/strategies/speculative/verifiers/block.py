"""Block verification: the drafted tokens of a block stand or fall together."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax.numpy as jnp

from decoding_jax import codes
from decoding_jax.base import Array
from decoding_jax.ops import exact, random
from decoding_jax.pytrees import pytree
from decoding_jax.strategies.speculative import distributions
from decoding_jax.strategies.speculative.block import Block as Drafted
from decoding_jax.strategies.speculative.block import Verdict, with_own
from decoding_jax.strategies.speculative.distributions import Softmax
from decoding_jax.strategies.speculative.verifiers.token import (
    Compared,
    chances,
    compare,
    drafted_probs,
    draw_own,
    streams,
)


@pytree
@dataclasses.dataclass(frozen=True)
class Block:
    """Accepts as long a part of the block as its joint law allows; the target's law exactly.

    Sun et al. 2024, "Block Verification Accelerates Speculative Decoding", Algorithm 2. In
    expectation it accepts at least as many tokens as token verification, and no rule accepts more
    of a block. With ``P_0 = 1`` and ``P_i = min(1, P_{i-1} p / q)`` at token i, the first i tokens
    are long enough with probability ``s / (s + 1 - P_i)``, where s sums ``max(P_i p - q, 0)`` over
    the vocabulary at the place after them, and the whole block with probability ``P_K``. The
    longest part that is long enough stands.
    """

    def init(self, key: Any, batch_size: int, lanes: int) -> tuple[Any, Any]:
        """See ``Verifier.init``."""
        return streams(key, batch_size, lanes), ()

    def draw(
        self, seed: Any, memory: Any, law: Softmax, position: Array, clock: Array
    ) -> tuple[Array, Any]:
        """See ``Verifier.draw``."""
        return codes.draw(law.logits, random.bits_at(seed[0], clock), law.sums), memory

    def verify(
        self,
        seed: Any,
        memory: Any,
        block: Drafted,
        law: distributions.Softmax,
        position: Array,
        clock: Array,
    ) -> Verdict:
        """See ``Verifier.verify``."""
        count = block.tokens.shape[-1]
        both = compare(block, law)
        joint = joint_ratio(*drafted_probs(block, both))
        chance = long_enough(block, both, joint)
        stands = block.proposed & (chances(seed, clock, count) < chance)
        place = jnp.arange(1, count + 1, dtype=jnp.int32)[None, None]
        accepted = jnp.where(stands, place, 0).max(-1)
        scale = jnp.where(accepted > 0, distributions.at(joint, accepted - 1), 1.0)
        own = draw_own(seed, block, both, accepted, clock, scale[..., None])
        return Verdict(with_own(block, accepted, own), accepted, memory)


def joint_ratio(p: Array, q: Array) -> Array:
    """``P_1 .. P_K`` of the drafted tokens' probabilities: float32 ``[B, W, K]``."""
    ratio = jnp.where(q > 0, p / jnp.where(q > 0, q, 1.0), 0.0)
    joint = [jnp.minimum(ratio[..., 0], 1.0)]
    for i in range(1, p.shape[-1]):
        joint.append(jnp.minimum(joint[-1] * ratio[..., i], 1.0))
    return jnp.stack(joint, axis=-1)


def long_enough(block: Drafted, both: Compared, joint: Array) -> Array:
    """The chance that the first 1 .. K tokens are long enough: float32 ``[B, W, K]``."""
    left = jnp.pad(left_over(block, both, joint), ((0, 0), (0, 0), (0, 1)))
    # At P = 1 a part is long enough for certain, also where p = q leaves nothing.
    part = jnp.where(joint >= 1, 1.0, left / jnp.maximum(left + 1 - joint, 1e-37))
    place = jnp.arange(1, joint.shape[-1] + 1, dtype=jnp.int32)[None, None]
    return jnp.where(place == block.drafted[..., None], joint, part)


def left_over(block: Drafted, both: Compared, joint: Array) -> Array:
    """The sum of ``max(P_i p - q, 0)`` at the place after token i: float32 ``[B, W, K - 1]``."""
    after, scale = both.target.places(1, joint.shape[-1]), joint[..., :-1]
    if both.draft is None:
        return scale * (1 - after.of(block.tokens[..., 1:]))
    q = both.draft.places(1, joint.shape[-1]).prob()
    return exact.sum_last(distributions.excess(scale[..., None] * after.prob(), q))
