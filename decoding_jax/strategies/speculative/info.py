"""Counts of speculative decoding: calls, drafted tokens and accepted tokens."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp

from decoding_jax.base import Array
from decoding_jax.strategies.speculative.stages import BlockResult


class Info(NamedTuple):
    """Counts of speculative decoding. Prefills are not counted as calls.

    Attributes:
      target_calls: int32, calls of the target's ``extend``, one for each iteration of the loop.
      draft_calls: int32, calls of the drafter.
      blocks: int32 ``[B, W]``, iterations in which the lane was not done.
      proposed: int32 ``[B, W]``, drafted tokens.
      accepted: int32 ``[B, W]``, drafted tokens that are part of the output.
      rejected: int32 ``[B, W]``, blocks in which a drafted token was rejected and replaced.
      emitted: int32 ``[B, W]``, tokens appended by blocks, which are all but the first.
    """

    target_calls: Array
    draft_calls: Array
    blocks: Array
    proposed: Array
    accepted: Array
    rejected: Array
    emitted: Array

    @property
    def acceptance_rate(self) -> Array:
        """a: the fraction of verified draft tokens that were accepted, float32 ``[]``."""
        accepted, rejected = _sum(self.accepted), _sum(self.rejected)
        return accepted / jnp.maximum(accepted + rejected, 1)

    @property
    def tokens_per_call(self) -> Array:
        """The mean number of tokens that a block appends, float32 ``[]``."""
        return _sum(self.emitted) / jnp.maximum(_sum(self.blocks), 1)

    @property
    def tokens_per_iteration(self) -> Array:
        """R: tokens per lane and iteration of the loop, including lanes that are done; float32."""
        steps = self.target_calls * jnp.size(self.blocks)
        return _sum(self.emitted) / jnp.maximum(steps, 1)


def _sum(counts: Array | int) -> Array:
    """The sum of the counts of all lanes, or the count of one lane, as a ``Completion`` has it."""
    return jnp.sum(jnp.asarray(counts), dtype=jnp.int32)


def no_info(batch_size: int, lanes: int) -> Info:
    """The counts before the loop."""
    zero, zeros = jnp.int32(0), jnp.zeros((batch_size, lanes), jnp.int32)
    return Info(zero, zero, zeros, zeros, zeros, zeros, zeros)


def count_block(
    info: Info, *, live: Array, result: BlockResult, appended: Array, draft_calls: Array
) -> Info:
    """The counts after one iteration.

    Args:
      info: the counts before it.
      live: bool ``[B, W]``, whether the lane was not done before.
      result: the result of the block.
      appended: int32 ``[B, W]``, the number of tokens appended to each lane.
      draft_calls: int32, calls of the drafter.
    """
    rejected = live & (result.accepted < result.verifiable) & (appended > result.accepted)
    return Info(
        target_calls=info.target_calls + 1,
        draft_calls=info.draft_calls + draft_calls,
        blocks=info.blocks + live.astype(jnp.int32),
        proposed=info.proposed + jnp.where(live, result.proposed, 0),
        accepted=info.accepted + jnp.where(live, jnp.minimum(result.accepted, appended), 0),
        rejected=info.rejected + rejected.astype(jnp.int32),
        emitted=info.emitted + appended,
    )
