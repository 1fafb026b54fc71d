"""The protocol of verifiers."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol, runtime_checkable

from decoding_jax.base import Array
from decoding_jax.strategies.speculative.distributions import Softmax
from decoding_jax.strategies.speculative.stages import AcceptedPath, Draft, Drafts


class Verification(NamedTuple):
    """The result of verifying a draft.

    Attributes:
      tokens: int32 ``[B, W, K + 1]``: the accepted tokens, then the final token, which the
        verifier chooses. Later entries are undefined.
      accepted: int32 ``[B, W]``, the number of accepted tokens.
      state: the verifier's state after the final token.
    """

    tokens: Array
    accepted: Array
    state: Any


class Verifier(Protocol):
    """Draws tokens from the target and the draft, and decides how many drafted ones are accepted.

    A verifier is a pytree. The tokens that it draws for a lane do not depend on other lanes. The
    distributions are transformed, and each has at least one logit above -inf. A verifier that
    chooses without a key has the attribute ``needs_key = False``.
    """

    def init(self, key: Array, batch_size: int, lanes: int) -> tuple[Any, Any]:
        """Makes the keys, which do not change, and the state, arrays ``[B, W, ...]``."""
        ...

    def draw(
        self, keys: Any, state: Any, distribution: Softmax, position: Array, counter: Array
    ) -> tuple[Array, Any]:
        """Draws a token from a distribution, the target's or the draft's.

        Args:
          keys: from ``init``.
          state: the state after the previous token.
          distribution: of ``[B, W, V]``.
          position: int32 ``[B, W]``, the number of new tokens before this one.
          counter: int32, a scalar or ``[B, W]``; no other draw of a lane has the same.

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
        """Decides how many drafted tokens are accepted, and chooses the final token.

        Args:
          keys: from ``init``.
          state: the state after the last token before the draft.
          draft: K drafted tokens of every lane.
          target: the target's distribution, of ``[B, W, K + 1, V]``, at the position of each
            drafted token and after the last one.
          position: int32 ``[B, W]``, the number of new tokens before the draft.
          counter: int32 ``[B, W]``; this number and the next K are used for no other draft of the
            lane.
        """
        ...


@runtime_checkable
class TreeVerifier(Protocol):
    """A verifier that also takes several drafts of a lane, which form a tree.

    Its keys are ``TokenKeys``, of which ``draws`` draws the drafts.
    """

    def verify_tree(
        self, keys: Any, drafts: Drafts, length: Array, target: Array, counter: Array
    ) -> AcceptedPath:
        """Accepts a path from the root, and chooses the final token.

        Args:
          keys: from ``init``.
          drafts: C drafts of every lane, drawn independently.
          length: int32 ``[B, W]``, from 0 to K, the number of drafted tokens of each draft.
          target: the target's transformed logits after each token fed, ``[B, W, 1 + N, V]``; see
            ``Drafts`` for the order of the tokens.
          counter: int32 ``[B, W]``; this number and the next K C are used for no other drafts of
            the lane.
        """
        ...
