"""The base of tokenizers that change how another one encodes inputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from decoding_jax.text.tokenizers import Tokenizer


class WrappedTokenizer:
    """A wrapper of a tokenizer; a subclass defines ``encode``.

    Args:
      tokenizer: the other tokenizer.
    """

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
        """``settled`` and ``token_texts``, of a tokenizer that has them."""
        if name not in ("settled", "token_texts"):
            raise AttributeError(f"{type(self).__name__} has no attribute {name}")
        return getattr(self._tokenizer, name)
