"""Token verification: each drafted token stands with probability min(1, p / q)."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from decoding_jax import codes
from decoding_jax.base import Array
from decoding_jax.ops import random
from decoding_jax.pytrees import pytree
from decoding_jax.strategies.speculative import distributions
from decoding_jax.strategies.speculative.block import Block, Verdict, leading, with_own
from decoding_jax.strategies.speculative.distributions import Softmax


@pytree
@dataclasses.dataclass(frozen=True)
class Token:
    """Accepts drafted tokens one by one: the target's law exactly, whatever the draft.

    Leviathan, Kalman and Matias 2022, "Fast Inference from Transformers via Speculative Decoding",
    Algorithm 1; Chen et al. 2023, "Accelerating Large Language Model Decoding with Speculative
    Sampling", Algorithm 2. A token drawn from q stands with probability min(1, p / q); the first
    that does not is replaced by one drawn in proportion to max(p - q, 0). A token stands with
    probability sum(min(p, q)), which no coupling exceeds.
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
        block: Block,
        law: distributions.Softmax,
        position: Array,
        clock: Array,
    ) -> Verdict:
        """See ``Verifier.verify``."""
        both = compare(block, law)
        accepted = judge(seed, block, both, clock)
        own = draw_own(seed, block, both, accepted, clock)
        return Verdict(with_own(block, accepted, own), accepted, memory)


def streams(key: Any, batch_size: int, lanes: int) -> tuple[Array, Array, Array]:
    """Keys ``[B, W]`` for draws, for acceptance, and for the verifier's own tokens."""
    drafts, rest = random.split(random.row_keys(key, batch_size))
    chances, own = random.split(rest)
    return tuple(random.lane_keys(keys, lanes) for keys in (drafts, chances, own))  # type: ignore[return-value]


def chances(seed: Any, clock: Array, count: int) -> Array:
    """Uniform numbers for K decisions of every lane: float32 ``[B, W, K]``, below 1."""
    bits = jax.vmap(lambda t: random.bits_at(seed[1], t), out_axes=2)(
        clock + jnp.arange(count, dtype=jnp.int32)
    )
    return distributions.uniform(bits)


class Compared(NamedTuple):
    """The laws that a block is judged by.

    Attributes:
      target: of ``[B, W, K + 1]`` places.
      draft: of ``[B, W, K]``, or None where each token was certain.
    """

    target: distributions.Softmax
    draft: distributions.Softmax | None


def compare(block: Block, target: distributions.Softmax) -> Compared:
    """The target's law ``[B, W, K + 1, V]`` beside that of a block."""
    return Compared(target, block.law)


def drafted_probs(block: Block, both: Compared) -> tuple[Array, Array]:
    """p and q of every drafted token, float32 ``[B, W, K]``; q is 1 where it was certain."""
    # A token more, so that the target's law is not cut.
    longer = jnp.pad(block.tokens, ((0, 0), (0, 0), (0, 1)))
    p = both.target.of(longer)[:, :, :-1]
    return p, jnp.ones_like(p) if both.draft is None else both.draft.of(block.tokens)


def judge(seed: Any, block: Block, both: Compared, clock: Array) -> Array:
    """How many drafted tokens stand, judged one by one: int32 ``[B, W]``."""
    p, q = drafted_probs(block, both)
    return leading(block.proposed & (chances(seed, clock, p.shape[-1]) * q < p))


def draw_own(
    seed: Any,
    block: Block,
    both: Compared,
    accepted: Array,
    clock: Array,
    scale: Array | float = 1.0,
) -> Array:
    """The token after the accepted ones, of ``max(scale p - q, 0)``; of p where all stand.

    Args:
      seed: with the keys of ``streams``.
      block: K drafted tokens a lane.
      both: its distributions.
      accepted: int32 ``[B, W]``.
      clock: int32.
      scale: float32, 1 or ``[B, W, 1]``.

    Returns:
      int32 ``[B, W]``.
    """
    rejected = accepted < block.drafted

    def target() -> Array:
        return both.target.at(accepted).prob()

    def left() -> Array:
        p = target()
        if both.draft is None:
            q = distributions.one_hot(distributions.at(block.tokens, accepted), p.shape[-1])
        else:
            q = both.draft.at(accepted).prob()
        some = rejected[..., None]
        return distributions.residual(
            p, jnp.where(some, q, 0.0), jnp.where(some, jnp.asarray(scale, jnp.float32), 1.0)
        )

    # The branch also serves what comes after it: without one a compiler makes these weights anew
    # for each of their uses, and slowly.
    weights = lax.cond(rejected.any(), left, target)
    return codes.draw_weighted(weights, random.bits_at(seed[2], clock))
