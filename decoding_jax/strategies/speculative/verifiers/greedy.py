"""Greedy verification: a drafted token stands if it is the target's most probable one."""

from __future__ import annotations

import dataclasses
from typing import Any

from decoding_jax.base import Array
from decoding_jax.ops.logits import lowest_argmax
from decoding_jax.pytrees import pytree
from decoding_jax.strategies.speculative import distributions
from decoding_jax.strategies.speculative.block import Block, Verdict, leading
from decoding_jax.strategies.speculative.distributions import Softmax


def match(block: Block, own: Array) -> Array:
    """How many drafted tokens are the ones that the target chooses itself: int32 ``[B, W]``.

    Args:
      block: K drafted tokens a lane.
      own: int32 ``[B, W, K + 1]``, what the target chooses after each of them.
    """
    return leading(block.proposed & (block.tokens == own[:, :, :-1]))


@pytree
@dataclasses.dataclass(frozen=True)
class Greedy:
    """Gives what ``greedy`` gives, whatever the draft. It needs no key."""

    def init(self, key: Any, batch_size: int, lanes: int) -> tuple[Any, Any]:
        """See ``Verifier.init``."""
        return (), ()

    def draw(
        self, seed: Any, memory: Any, law: Softmax, position: Array, clock: Array
    ) -> tuple[Array, Any]:
        """See ``Verifier.draw``."""
        return lowest_argmax(law.logits), memory

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
        own = lowest_argmax(law.logits)
        return Verdict(own, match(block, own), memory)
