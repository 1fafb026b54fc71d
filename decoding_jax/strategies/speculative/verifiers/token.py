"""Token verification: each drafted token stands with probability min(1, p / q)."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from decoding_jax import codes
from decoding_jax.base import Array
from decoding_jax.ops import random
from decoding_jax.strategies.speculative import laws
from decoding_jax.strategies.speculative.block import Block, Verdict, leading, with_own
from decoding_jax.transforms.settings import pytree


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
        self, seed: Any, memory: Any, logits: Array, position: Array, clock: Array
    ) -> tuple[Array, Any]:
        """See ``Verifier.draw``."""
        return codes.draw(logits, random.bits_at(seed[0], clock)), memory

    def verify(
        self, seed: Any, memory: Any, block: Block, logits: Array, position: Array, clock: Array
    ) -> Verdict:
        """See ``Verifier.verify``."""
        accepted = judge(seed, block, logits, clock)
        own = draw_own(seed, block, logits, accepted, clock)
        return Verdict(with_own(block, accepted, own), accepted, memory)


def streams(key: Any, batch_size: int, lanes: int) -> tuple[Array, Array, Array]:
    """Keys ``[B, W]`` for draws, for acceptance, and for the verifier's own tokens."""
    drafts, rest = random.split(random.row_keys(key, batch_size))
    chances, own = random.split(rest)
    return tuple(random.lane_keys(keys, lanes) for keys in (drafts, chances, own))  # type: ignore[return-value]


def chances(seed: Any, clock: Array, count: int) -> Array:
    """Uniform numbers for K decisions of every lane: float32 ``[B, W, K]``, below 1."""
    bits = jax.vmap(lambda t: random.bits_at(seed[1], t), out_axes=2)(clock + jnp.arange(count))
    return laws.uniform(bits)


def draft_prob(block: Block) -> Array:
    """q of every drafted token, float32 ``[B, W, K]``: 1 where it was certain."""
    if block.logits is None:
        return jnp.ones(block.tokens.shape, jnp.float32)
    return laws.softmax(block.logits).of(block.tokens)


def judge(seed: Any, block: Block, logits: Array, clock: Array) -> Array:
    """How many drafted tokens stand, judged one by one: int32 ``[B, W]``."""
    count = block.tokens.shape[-1]
    p = laws.softmax(logits[:, :, :count]).of(block.tokens)
    return leading(block.proposed & (chances(seed, clock, count) * draft_prob(block) < p))


def draw_own(
    seed: Any,
    block: Block,
    logits: Array,
    accepted: Array,
    clock: Array,
    scale: Array | None = None,
) -> Array:
    """The token after the accepted ones, of ``max(scale p - q, 0)``; of p where all stand.

    Args:
      seed: with the keys of ``streams``.
      block: K drafted tokens a lane.
      logits: the target's, ``[B, W, K + 1, V]``.
      accepted: int32 ``[B, W]``.
      clock: int32.
      scale: float32 ``[B, W]``; 1 by default.

    Returns:
      int32 ``[B, W]``.
    """
    p = laws.softmax(laws.at(logits, accepted)).prob()
    if block.logits is None:
        q = laws.one_hot(laws.at(block.tokens, accepted), p.shape[-1])
    else:
        q = laws.softmax(laws.at(block.logits, accepted)).prob()
    left = laws.residual(p if scale is None else scale[..., None] * p, q)
    rejected = (accepted < block.drafted)[..., None]
    return laws.draw_weighted(jnp.where(rejected, left, p), random.bits_at(seed[2], clock))
