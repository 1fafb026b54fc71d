"""The protocol of verifiers."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

from decoding_jax.base import Array
from decoding_jax.strategies.speculative.distributions import Softmax
from decoding_jax.strategies.speculative.draft import Draft


class Verification(NamedTuple):
    """The tokens that a verifier makes of a draft.

    Attributes:
      tokens: int32 ``[B, W, K + 1]``: the accepted tokens, then a final token that the verifier
        chose. Later entries are undefined.
      accepted: int32 ``[B, W]``, the number of accepted tokens.
      state: the verifier's state after the last of these tokens.
    """

    tokens: Array
    accepted: Array
    state: Any


class Verifier(Protocol):
    """Draws tokens, of the target and of the draft, and decides which drafted ones are accepted.

    A verifier is a pytree. What it draws for a lane depends only on the lane's key and path. The
    distributions are transformed, and each has at least one logit above -inf.
    """

    def init(self, key: Any, batch_size: int, lanes: int) -> tuple[Any, Any]:
        """Makes the keys, which stay, and the state, arrays ``[B, W, ...]`` that change."""
        ...

    def draw(
        self, keys: Any, state: Any, distribution: Softmax, position: Array, counter: Array
    ) -> tuple[Array, Any]:
        """Draws a token from a distribution, the target's or the draft's.

        Args:
          keys: from ``init``.
          state: the state after the token before.
          distribution: of ``[B, W, V]``.
          position: int32 ``[B, W]``, the number of new tokens before this one.
          counter: int32, which no other draw shares.

        Returns:
          int32 ``[B, W]``, and the state after that token.
        """
        ...

    def verify(
        self,
        keys: Any,
        state: Any,
        draft: Draft,
        target: Softmax,
        position: Array,
        counter: Array,
    ) -> Verification:
        """Decides how many drafted tokens are accepted, and chooses the token after them.

        Args:
          keys: from ``init``.
          state: the state after the token before the draft.
          draft: K drafted tokens of every lane.
          target: the target's distribution, of ``[B, W, K + 1, V]``, at the position of each
            drafted token and at the one after the last.
          position: int32 ``[B, W]``, the number of new tokens before the draft.
          counter: int32. It and the next K numbers are shared with no other draft.
        """
        ...
