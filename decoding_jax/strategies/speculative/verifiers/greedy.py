"""Greedy verification: a drafted token is accepted if it is the target's most probable one."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

from decoding_jax.base import Array
from decoding_jax.ops.logits import lowest_argmax
from decoding_jax.pytrees import pytree
from decoding_jax.strategies.speculative.distributions import Softmax
from decoding_jax.strategies.speculative.stages import Draft, count_leading
from decoding_jax.strategies.speculative.verifiers.base import Verification


def count_matching(draft: Draft, chosen: Array) -> Array:
    """The number of leading drafted tokens that the target chooses too, int32 ``[B, W]``.

    Args:
      draft: K drafted tokens of every lane.
      chosen: int32 ``[B, W, K + 1]``, the target's choice at each position.
    """
    return count_leading(draft.valid & (draft.tokens == chosen[:, :, :-1]))


@pytree
@dataclasses.dataclass(frozen=True)
class GreedyVerifier:
    """Decodes the sequences of ``greedy``, whatever the draft is. It needs no key."""

    needs_key: ClassVar[bool] = False

    def init(self, key: Array | None, batch_size: int, lanes: int) -> tuple[Any, Any]:
        """See ``Verifier.init``."""
        return (), ()

    def draw(
        self, keys: Any, state: Any, distribution: Softmax, position: Array, counter: Array
    ) -> tuple[Array, Any]:
        """See ``Verifier.draw``."""
        return lowest_argmax(distribution.logits), state

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
        chosen = lowest_argmax(target.logits)
        return Verification(chosen, count_matching(draft, chosen), state)
