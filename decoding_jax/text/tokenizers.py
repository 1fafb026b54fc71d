"""Tokenizers, which convert strings to token ids and back.

They wrap the libraries ``tokenizers`` and ``sentencepiece``. The byte tokenizer of ByT5 is
implemented here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

import sentencepiece
import tokenizers

from decoding_jax.text.chat import SupportsChat
from decoding_jax.text.settled import decoding_of, settled_by_decoder, without_incomplete
from decoding_jax.text.token_texts import (
    TokenTexts,
    concatenated,
    texts_by_decoding,
    texts_of_decoder,
)

_MARK = "\ue000"  # a character that is in no text, and merges with none


class TokenizerError(ValueError):
    """The tokenizer of a directory is missing or cannot be read."""


class Tokenizer(Protocol):
    """The methods that ``generate``, ``stream`` and ``constraints`` use.

    Attributes:
      eos_ids: the ids that end a text.
    """

    eos_ids: tuple[int, ...]

    def encode(self, text: str) -> list[int]:
        """The token ids of an input, with the special tokens that the model expects."""
        ...

    def pieces(self, text: str) -> list[int]:
        """The token ids without special tokens. Only ``constraints`` uses this method."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ``ids``, without special tokens."""
        ...


class SettlingTokenizer(Tokenizer, Protocol):
    """A tokenizer that knows which part of a text further tokens do not change."""

    def settled(self, ids: Sequence[int]) -> str:
        """The beginning of ``decode(ids)`` with which every ``decode([*ids, *more])`` begins."""
        ...


class ConcatenatingTokenizer(Tokenizer, Protocol):
    """A tokenizer that knows the text of each token, which stop strings need."""

    def token_texts(self, size: int) -> TokenTexts:
        """The text that each id below ``size`` adds. Other ids of the model add nothing."""
        ...


class SentencePieceTokenizer(SupportsChat):
    """A SentencePiece model.

    Args:
      path: the ``.model`` file.
      prefix: the ids put before every input, such as Llama's start token.
      suffix: the ids put after every input, such as T5's end token.
      eos_ids: see ``Tokenizer``.
      special: the ids of special tokens by the text that stands for them in a rendered
        conversation.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        prefix: Sequence[int] = (),
        suffix: Sequence[int] = (),
        eos_ids: Sequence[int] = (),
        special: Mapping[str, int] | None = None,
    ):
        try:
            self._pieces = sentencepiece.SentencePieceProcessor(model_file=str(path))
        except (OSError, RuntimeError) as e:
            raise TokenizerError(f"{path}: not a SentencePiece model") from e
        self._prefix, self._suffix = list(prefix), list(suffix)
        self.eos_ids = tuple(eos_ids)
        self._special = dict(special or {})

    def encode(self, text: str) -> list[int]:
        return self._prefix + self.pieces(text) + self._suffix

    def chat_pieces(self, text: str) -> list[int]:
        names = sorted(self._special, key=len, reverse=True)
        first, *rest = re.split(f"({'|'.join(map(re.escape, names))})", text) if names else [text]
        ids = self.pieces(first) if first else []
        for part in rest:
            ids += [self._special[part]] if part in self._special else self._pieces_within(part)
        return ids

    def _pieces_within(self, text: str) -> list[int]:
        """The token ids of a text that is not the beginning, before which no space is put."""
        mark = self.pieces(_MARK)
        return self.pieces(_MARK + text)[len(mark) :]

    def pieces(self, text: str) -> list[int]:
        return self._pieces.encode(text)

    def decode(self, ids: Sequence[int]) -> str:
        size = self._pieces.vocab_size()
        # A model's embedding table may have more rows than the tokenizer has pieces.
        return self._pieces.decode([int(i) for i in ids if i < size])

    def settled(self, ids: Sequence[int]) -> str:
        return without_incomplete(self.decode(ids), 3)

    def token_texts(self, size: int) -> TokenTexts:
        pieces = self._pieces
        known = range(min(size, pieces.vocab_size()))
        rest = size - len(known)
        empty = [pieces.is_control(i) for i in known] + [True] * rest
        byte = [int(pieces.id_to_piece(i)[3:5], 16) if pieces.is_byte(i) else -1 for i in known]
        return texts_by_decoding(self.decode, empty, byte + [-1] * rest)


class HuggingFaceTokenizer(SupportsChat):
    """A ``tokenizers.Tokenizer``, whose post-processor adds the special tokens.

    Args:
      tokenizer: the tokenizer.
      eos_ids: see ``Tokenizer``.
    """

    def __init__(self, tokenizer: tokenizers.Tokenizer, *, eos_ids: Sequence[int] = ()):
        self._tokenizer, self._decoding = tokenizer, decoding_of(tokenizer)
        self.eos_ids = tuple(eos_ids)

    def encode(self, text: str) -> list[int]:
        return self._tokenizer.encode(text).ids

    def pieces(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=False).ids

    def chat_pieces(self, text: str) -> list[int]:
        return self.pieces(text)

    def decode(self, ids: Sequence[int]) -> str:
        return self._tokenizer.decode([int(i) for i in ids], skip_special_tokens=True)

    def settled(self, ids: Sequence[int]) -> str:
        return settled_by_decoder(self._tokenizer, self._decoding, ids)

    def token_texts(self, size: int) -> TokenTexts:
        return texts_of_decoder(self._tokenizer, size)


class ByteTokenizer:
    """The tokenizer of ByT5 (Xue et al. 2022): UTF-8 bytes as ids 3 to 258.

    The ids 0, 1 and 2 are the padding, end and unknown tokens.

    Example:
      >>> ByteTokenizer().encode("hi")
      [107, 108, 1]
      >>> ByteTokenizer().decode([107, 108, 1])
      'hi'
    """

    eos_ids: tuple[int, ...] = (1,)

    def encode(self, text: str) -> list[int]:
        return [*self.pieces(text), 1]

    def pieces(self, text: str) -> list[int]:
        return [b + 3 for b in text.encode("utf-8")]

    def decode(self, ids: Sequence[int]) -> str:
        return bytes(int(i) - 3 for i in ids if 3 <= i < 259).decode("utf-8", errors="replace")

    def settled(self, ids: Sequence[int]) -> str:
        return without_incomplete(self.decode(ids), 1)

    def token_texts(self, size: int) -> TokenTexts:
        return concatenated([bytes([i - 3]) if 3 <= i < 259 else b"" for i in range(size)])
