"""The protocols of drafters: those that give distributions, and those that guess tokens."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol, runtime_checkable

from decoding_jax.base import Array, Prompt


class Path(NamedTuple):
    """The prompt and the new tokens of every lane when a block is drafted.

    Attributes:
      prompt: B prompts.
      tokens: int32 ``[B, W, L]``, new tokens.
      length: int32 ``[B, W]``, the number of new tokens.
    """

    prompt: Prompt
    tokens: Array
    length: Array


@runtime_checkable
class Drafter(Protocol):
    """Gives the distribution of one drafted token after another. A drafter is a pytree.

    Each distribution is transformed as the target's is, and the verifier draws from it. A drafter
    that uses the inputs of an encoder-decoder has ``bind`` too; see ``SupportsBind``.
    """

    @property
    def vocab_size(self) -> int: ...

    def init(self, prompt: Prompt, *, lanes: int, max_new_tokens: int) -> Any:
        """Makes the state, such as a cache of the prompt."""
        ...

    def begin(self, state: Any, path: Path) -> tuple[Array, Any]:
        """The logits ``[B, W, V]`` after the path. Drafts of earlier blocks are forgotten."""
        ...

    def next(self, state: Any, token: Array, slot: Array) -> tuple[Array, Any]:
        """The logits ``[B, W, V]`` after one more drafted token.

        Args:
          state: from ``begin`` or an earlier ``next``.
          token: int32 ``[B, W]``.
          slot: int32 ``[B, W]``, the number of new tokens before it. Beyond ``max_new_tokens``
            the result is not used.
        """
        ...


@runtime_checkable
class Guesser(Protocol):
    """Guesses the drafted tokens of a whole block at once, with certainty. It is a pytree."""

    def init(self, prompt: Prompt, *, lanes: int, max_new_tokens: int) -> Any:
        """Makes the state."""
        ...

    def guess(self, state: Any, path: Path, count: int) -> Array:
        """Up to K tokens after the path: int32 ``[B, W, K]``, -1 from where there are none.

        A token outside the vocabulary ends the draft before it.
        """
        ...


@runtime_checkable
class SupportsBind(Protocol):
    """A drafter that uses the encoder inputs of the model that it drafts for."""

    def bind(self, tokens: Array, length: Array) -> Any:
        """The drafter for these inputs.

        Args:
          tokens: int32 ``[B, P]``, right-padded.
          length: int32 ``[B]``.
        """
        ...
