"""What speculative decoding did: calls, drafted tokens, and how many of them stood."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp

from decoding_jax.base import Array
from decoding_jax.strategies.speculative.chain import Outcome


class Info(NamedTuple):
    """Counts of a run. Prefills are not among the calls.

    Attributes:
      target_calls: int32, calls of the target's ``extend``: iterations of the loop.
      draft_calls: int32, of the drafter.
      blocks: int32 ``[B, W]``, iterations in which the lane was not done.
      proposed: int32 ``[B, W]``, drafted tokens.
      accepted: int32 ``[B, W]``, those of them that are in the output.
      rejected: int32 ``[B, W]``, blocks of which a token was rejected, and replaced in the output.
      emitted: int32 ``[B, W]``, the tokens that the blocks gave: all but the first.
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
        """a: of all drafted tokens that were judged, how many stood; float32 ``[]``."""
        accepted, rejected = self.accepted.sum(), self.rejected.sum()
        return accepted / jnp.maximum(accepted + rejected, 1)

    @property
    def tokens_per_call(self) -> Array:
        """Tokens that a block gave on average, float32 ``[]``."""
        return self.emitted.sum() / jnp.maximum(self.blocks.sum(), 1)

    @property
    def tokens_per_iteration(self) -> Array:
        """R: tokens a lane and iteration of the loop, lanes that were done included."""
        return self.emitted.sum() / jnp.maximum(self.target_calls * self.blocks.size, 1)


def no_info(batch_size: int, lanes: int) -> Info:
    """Counts before the loop."""
    zero, zeros = jnp.int32(0), jnp.zeros((batch_size, lanes), jnp.int32)
    return Info(zero, zero, zeros, zeros, zeros, zeros, zeros)


def count_block(info: Info, *, live: Array, came: Outcome, took: Array) -> Info:
    """The counts after one iteration.

    Args:
      info: before it.
      live: bool ``[B, W]``, not done before.
      came: what came of the block.
      took: int32 ``[B, W]``, how many of its tokens the lane took.
    """
    judged = live & (came.accepted < came.judged) & (took > came.accepted)
    return Info(
        target_calls=info.target_calls + 1,
        draft_calls=info.draft_calls + came.draft_calls,
        blocks=info.blocks + live.astype(jnp.int32),
        proposed=info.proposed + jnp.where(live, came.proposed, 0),
        accepted=info.accepted + jnp.where(live, jnp.minimum(came.accepted, took), 0),
        rejected=info.rejected + judged.astype(jnp.int32),
        emitted=info.emitted + took,
    )
