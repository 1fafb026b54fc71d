"""Special tokens of the caller's choice around every input, such as the source language."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from decoding_jax.text.tokenizers import Tokenizer
from decoding_jax.text.wrapped_tokenizer import WrappedTokenizer


class WithSpecialTokens(WrappedTokenizer):
    """A tokenizer that puts other special tokens around every input.

    A tokenizer from ``load`` puts those around it that its file names, which are of one source
    language in a multilingual model.

    Args:
      tokenizer: the tokenizer, whose other methods are unchanged.
      prefix: the ids put before every input.
      suffix: the ids put after every input, such as ``tokenizer.eos_ids``.

    Example:
      >>> from decoding_jax.text import ByteTokenizer
      >>> WithSpecialTokens(ByteTokenizer(), prefix=[300], suffix=[1]).encode("hi")
      [300, 107, 108, 1]
    """

    passed_on: ClassVar[tuple[str, ...]] = (
        *WrappedTokenizer.passed_on,
        "apply_chat_template",
        "chat",
        "chat_pieces",
    )

    def __init__(
        self, tokenizer: Tokenizer, *, prefix: Sequence[int] = (), suffix: Sequence[int] = ()
    ):
        super().__init__(tokenizer)
        self._prefix, self._suffix = list(prefix), list(suffix)

    def encode(self, text: str) -> list[int]:
        """The token ids of an input, between the special tokens."""
        return [*self._prefix, *self.pieces(text), *self._suffix]
