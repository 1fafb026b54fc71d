"""The base of tokenizers that change how another one encodes inputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from decoding_jax.text.tokenizers import Tokenizer


class WrappedTokenizer:
    """A wrapper of a tokenizer; a subclass defines ``encode``.

    Args:
      tokenizer: the other tokenizer.

    Attributes:
      passed_on: the names of optional attributes that are those of the other tokenizer.
    """

    passed_on: ClassVar[tuple[str, ...]] = ("settled", "token_texts")

    def __init__(self, tokenizer: Tokenizer):
        self._tokenizer = tokenizer
        self.eos_ids = tokenizer.eos_ids
        self.generation_config = getattr(tokenizer, "generation_config", None)

    def pieces(self, text: str) -> list[int]:
        """The token ids of an input alone, without special tokens."""
        return self._tokenizer.pieces(text)

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ``ids``, as the tokenizer decodes them."""
        return self._tokenizer.decode(ids)

    def __getattr__(self, name: str) -> Any:
        """The attributes in ``passed_on``, of a tokenizer that has them."""
        if name not in self.passed_on:
            raise AttributeError(f"{type(self).__name__} has no attribute {name}")
        return getattr(self._tokenizer, name)
