"""What a verifier is."""

from __future__ import annotations

from typing import Any, Protocol

from decoding_jax.base import Array
from decoding_jax.strategies.speculative.block import Block, Verdict
from decoding_jax.strategies.speculative.distributions import Softmax


class Verifier(Protocol):
    """Draws tokens, of the target and of the draft, and decides which drafted ones stand.

    It is a pytree. What it draws for a lane depends on the lane's key and path alone. Laws are
    transformed, and at least one logit of each is above -inf.
    """

    def init(self, key: Any, batch_size: int, lanes: int) -> tuple[Any, Any]:
        """Makes the seed, which stays, and the memory, arrays ``[B, W, ...]`` that change."""
        ...

    def draw(
        self, seed: Any, memory: Any, law: Softmax, position: Array, clock: Array
    ) -> tuple[Array, Any]:
        """A token of a law, the target's or the draft's.

        Args:
          seed: from ``init``.
          memory: as of the token before.
          law: of ``[B, W, V]``.
          position: int32 ``[B, W]``, which new token this is.
          clock: int32, which no other draw shares.

        Returns:
          int32 ``[B, W]``, and the memory as of that token.
        """
        ...

    def verify(
        self,
        seed: Any,
        memory: Any,
        block: Block,
        law: Softmax,
        position: Array,
        clock: Array,
    ) -> Verdict:
        """Judges a block.

        Args:
          seed: from ``init``.
          memory: as of the token before the block.
          block: K drafted tokens a lane.
          law: the target's, ``[B, W, K + 1, V]``: of each drafted token's place, and of the one
            after the last.
          position: int32 ``[B, W]``, which new token the block's first is.
          clock: int32; it and the next K numbers are the block's own.
        """
        ...
