"""What a drafter is, in its two kinds: one that gives laws, and one that guesses."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol, runtime_checkable

from decoding_jax.base import Array, Prompt


class Path(NamedTuple):
    """What stands of every lane when a block is drafted.

    Attributes:
      prompt: of the rows.
      tokens: int32 ``[B, W, L]``, new tokens.
      length: int32 ``[B, W]``, how many.
    """

    prompt: Prompt
    tokens: Array
    length: Array


@runtime_checkable
class Drafter(Protocol):
    """Gives the law of one drafted token after another. A pytree.

    The driver transforms each law as it does the target's, and the verifier draws from it.
    """

    @property
    def vocab_size(self) -> int: ...

    def init(self, prompt: Prompt, *, lanes: int, max_new_tokens: int) -> Any:
        """Makes the state: what is known of the prompt, a cache perhaps."""
        ...

    def begin(self, state: Any, path: Path) -> tuple[Array, Any]:
        """The logits ``[B, W, V]`` after what stands. Drafts of the block before are forgotten."""
        ...

    def next(self, state: Any, token: Array, slot: Array) -> tuple[Array, Any]:
        """The logits ``[B, W, V]`` after a drafted token more.

        Args:
          state: from ``begin`` or an earlier ``next``.
          token: int32 ``[B, W]``.
          slot: int32 ``[B, W]``, which new token it is; it may lie beyond ``max_new_tokens``, and
            the answer then means nothing.
        """
        ...


@runtime_checkable
class Guesser(Protocol):
    """Gives drafted tokens for certain, a whole block at once. A pytree."""

    def init(self, prompt: Prompt, *, lanes: int, max_new_tokens: int) -> Any:
        """Makes the state."""
        ...

    def guess(self, state: Any, path: Path, count: int) -> Array:
        """Up to K tokens after what stands: int32 ``[B, W, K]``, -1 from where it has none.

        A token outside the vocabulary counts as none.
        """
        ...
