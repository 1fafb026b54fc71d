"""Special tokens of the caller's choice around every input, such as the source language."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from decoding_jax.text.tokenizers import Tokenizer


class WithSpecialTokens:
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

    def __init__(
        self, tokenizer: Tokenizer, *, prefix: Sequence[int] = (), suffix: Sequence[int] = ()
    ):
        self._tokenizer, self._prefix, self._suffix = tokenizer, list(prefix), list(suffix)
        self.eos_ids = tokenizer.eos_ids
        self.generation_config = getattr(tokenizer, "generation_config", None)

    def encode(self, text: str) -> list[int]:
        """The token ids of an input, between the special tokens."""
        return [*self._prefix, *self._tokenizer.pieces(text), *self._suffix]

    def pieces(self, text: str) -> list[int]:
        """The token ids without special tokens."""
        return self._tokenizer.pieces(text)

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ``ids``, as the tokenizer decodes them."""
        return self._tokenizer.decode(ids)

    def __getattr__(self, name: str) -> Any:
        """``settled`` and ``token_texts``, of a tokenizer that has them."""
        if name not in ("settled", "token_texts"):
            raise AttributeError(f"{type(self).__name__} has no attribute {name}")
        return getattr(self._tokenizer, name)
