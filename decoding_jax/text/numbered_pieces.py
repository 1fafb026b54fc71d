"""Tokenizers whose SentencePiece model only divides texts: a table has the ids of the pieces."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import sentencepiece

from decoding_jax.text.token_texts import TokenTexts
from decoding_jax.text.tokenizers import TokenizerError

SPACE = "▁"
"""The character that pieces have in the place of spaces."""


class NumberedPieces:
    """The tokenizer of a Marian or an M2M-100, which ``load`` makes.

    A code at the beginning of an input is one token, such as ``>>fra<<``, the target language of a
    Marian, or ``__fr__``.

    Args:
      path: the SentencePiece model that divides texts.
      numbers: the id of every piece.
      codes: a pattern of codes.
      special: the ids that are left out of texts.
      prefix: the ids put before every input.
      suffix: the ids put after every input.
      unknown_id: the id of pieces without one.
      eos_ids: see ``Tokenizer``.

    Raises:
      TokenizerError: in one line, if the model cannot be read.
    """

    def __init__(
        self,
        path: str | Path,
        numbers: Mapping[str, int],
        *,
        codes: str,
        special: Sequence[int],
        prefix: Sequence[int],
        suffix: Sequence[int],
        unknown_id: int,
        eos_ids: Sequence[int],
    ):
        try:
            self._pieces = sentencepiece.SentencePieceProcessor(model_file=str(path))
        except (OSError, RuntimeError) as e:
            raise TokenizerError(f"{path}: not a SentencePiece model") from e
        self._numbers, self._codes, self._unknown_id = dict(numbers), re.compile(codes), unknown_id
        left_out = set(special)
        self._texts = {i: x.replace(SPACE, " ") for x, i in numbers.items() if i not in left_out}
        self._prefix, self._suffix = list(prefix), list(suffix)
        self.eos_ids = tuple(eos_ids)

    def encode(self, text: str) -> list[int]:
        """The token ids of an input, with its special tokens."""
        return self._prefix + self.pieces(text) + self._suffix

    def pieces(self, text: str) -> list[int]:
        """The token ids without special tokens, but for a code at the beginning."""
        code = self._codes.match(text)
        found = [] if code is None else [code[0]]
        found += self._pieces.encode(text if code is None else text[code.end() :], out_type=str)
        return [self._numbers.get(piece, self._unknown_id) for piece in found]

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ``ids``, without special tokens and without spaces before it."""
        return "".join(self._texts.get(int(i), "") for i in ids).lstrip(" ")

    def settled(self, ids: Sequence[int]) -> str:
        """The text of ``ids``, which further tokens do not change."""
        return self.decode(ids)

    def token_texts(self, size: int) -> TokenTexts:
        """The text that each id below ``size`` adds."""
        texts = [self._texts.get(i, "") for i in range(size)]
        first = [text.lstrip(" ").encode() or None for text in texts]
        return TokenTexts([text.encode() for text in texts], first)
