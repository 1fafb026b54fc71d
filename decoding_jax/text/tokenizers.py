"""Tokenizers, which convert strings to token ids and back.

They wrap the libraries ``tokenizers`` and ``sentencepiece``, or another tokenizer. The byte
tokenizer of ByT5 is implemented here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Protocol

import sentencepiece
import tokenizers

from decoding_jax import fields
from decoding_jax.text import token_texts
from decoding_jax.text.chat import SupportsChat
from decoding_jax.text.token_texts import TokenTexts

_MARK = "\ue000"  # A character that is in no text, and merges with none.
_SPACE = "▁"  # The character that pieces have in the place of spaces.


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
    """A tokenizer that knows the text of each token, which stop strings and constraints need.

    Attributes:
      vocab_size: the number of ids, which constraints need.
    """

    @property
    def vocab_size(self) -> int: ...

    def token_texts(self, size: int) -> TokenTexts:
        """The text that each id below ``size`` adds. Other ids of the model add nothing."""
        ...


_INSTEAD = {
    "batch_decode": "[tokenizer.decode(ids) for ids in rows]",
    "batch_encode_plus": "[tokenizer.encode(text) for text in texts]",
    "bos_token_id": "tokenizer.encode(text), which puts the first tokens before a text",
    "convert_ids_to_tokens": "tokenizer.token_texts(size), the text of each token",
    "convert_tokens_to_ids": "tokenizer.pieces(text)",
    "encode_plus": "tokenizer.encode(text)",
    "eos_token_id": "tokenizer.eos_ids",
    "from_pretrained": "decoding_jax.text.load_tokenizer(directory)",
    "pad": "text.encode_batch(model, rows, width), which pads on the right",
    "pad_token_id": "the length of a Prompt, and no token that means padding",
    "tokenize": "tokenizer.pieces(text)",
}


class NamesMethods:
    """A tokenizer that names its method for what those of other libraries have.

    Example:
      >>> ByteTokenizer().eos_token_id
      Traceback (most recent call last):
      AttributeError: eos_token_id: a ByteTokenizer has tokenizer.eos_ids instead
    """

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        name = type(self).__name__
        raise ValueError(
            f"tokenizer: expected tokenizer.encode(text) for one text, got a call of the {name}; "
            "generate takes texts"
        )

    def __getattr__(self, name: str) -> Any:
        kind = type(self).__name__
        if name in _INSTEAD:
            raise AttributeError(f"{name}: a {kind} has {_INSTEAD[name]} instead")
        raise AttributeError(f"{kind} has no attribute {name}")


def as_text(text: Any) -> str:
    """Checks that this is one string, and returns it.

    Raises:
      ValueError: for anything else.
    """
    if not isinstance(text, str):
        raise fields.error("text", "one string, as in [encode(text) for text in texts]", text)
    return text


def _processor(path: str | Path) -> sentencepiece.SentencePieceProcessor:
    try:
        return sentencepiece.SentencePieceProcessor(model_file=str(path))
    except (OSError, RuntimeError) as e:
        raise TokenizerError(f"{path}: not a SentencePiece model") from e


class SentencePieceTokenizer(NamesMethods, SupportsChat):
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
        self._pieces = _processor(path)
        self._prefix, self._suffix = list(prefix), list(suffix)
        self.eos_ids = tuple(eos_ids)
        self._special = dict(special or {})

    @property
    def vocab_size(self) -> int:
        """The number of ids."""
        return self._pieces.vocab_size()

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
        return self._pieces.encode(as_text(text))

    def decode(self, ids: Sequence[int]) -> str:
        size = self._pieces.vocab_size()
        # A model's embedding table may have more rows than the tokenizer has pieces.
        return self._pieces.decode([int(i) for i in ids if i < size])

    def settled(self, ids: Sequence[int]) -> str:
        return token_texts.without_incomplete(self.decode(ids), 3)

    def token_texts(self, size: int) -> TokenTexts:
        pieces = self._pieces
        known = range(min(size, pieces.vocab_size()))
        rest = size - len(known)
        empty = [pieces.is_control(i) for i in known] + [True] * rest
        byte = [int(pieces.id_to_piece(i)[3:5], 16) if pieces.is_byte(i) else -1 for i in known]
        return token_texts.texts_by_decoding(self.decode, empty, byte + [-1] * rest)


class HuggingFaceTokenizer(NamesMethods, SupportsChat):
    """A ``tokenizers.Tokenizer``, whose post-processor adds the special tokens.

    Args:
      tokenizer: the tokenizer.
      eos_ids: see ``Tokenizer``.
    """

    def __init__(self, tokenizer: tokenizers.Tokenizer, *, eos_ids: Sequence[int] = ()):
        self._tokenizer, self._decoding = tokenizer, token_texts.decoding_of(tokenizer)
        self.eos_ids = tuple(eos_ids)

    @property
    def vocab_size(self) -> int:
        """The number of ids, those of added tokens included."""
        return max(self._tokenizer.get_vocab(with_added_tokens=True).values()) + 1

    def encode(self, text: str) -> list[int]:
        return self._tokenizer.encode(as_text(text)).ids

    def pieces(self, text: str) -> list[int]:
        return self._tokenizer.encode(as_text(text), add_special_tokens=False).ids

    def chat_pieces(self, text: str) -> list[int]:
        return self.pieces(text)

    def decode(self, ids: Sequence[int]) -> str:
        return self._tokenizer.decode([int(i) for i in ids], skip_special_tokens=True)

    def settled(self, ids: Sequence[int]) -> str:
        return token_texts.settled_by_decoder(self._tokenizer, self._decoding, ids)

    def token_texts(self, size: int) -> TokenTexts:
        return token_texts.texts_of_decoder(self._tokenizer, size)


class ByteTokenizer(NamesMethods):
    """The tokenizer of ByT5 (Xue et al. 2022): UTF-8 bytes as ids 3 to 258.

    The ids 0, 1 and 2 are the padding, end and unknown tokens.

    Example:
      >>> ByteTokenizer().encode("hi")
      [107, 108, 1]
      >>> ByteTokenizer().decode([107, 108, 1])
      'hi'
    """

    eos_ids: tuple[int, ...] = (1,)
    vocab_size: int = 259

    def encode(self, text: str) -> list[int]:
        return [*self.pieces(text), 1]

    def pieces(self, text: str) -> list[int]:
        return [b + 3 for b in as_text(text).encode("utf-8")]

    def decode(self, ids: Sequence[int]) -> str:
        return bytes(int(i) - 3 for i in ids if 3 <= i < 259).decode("utf-8", errors="replace")

    def settled(self, ids: Sequence[int]) -> str:
        return token_texts.without_incomplete(self.decode(ids), 1)

    def token_texts(self, size: int) -> TokenTexts:
        texts = [bytes([i - 3]) if 3 <= i < 259 else b"" for i in range(size)]
        return token_texts.concatenated(texts)


class NumberedPieces(NamesMethods):
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
        self._pieces = _processor(path)
        self._numbers, self._codes, self._unknown_id = dict(numbers), re.compile(codes), unknown_id
        left_out = set(special)
        self._texts = {i: x.replace(_SPACE, " ") for x, i in numbers.items() if i not in left_out}
        self._prefix, self._suffix = list(prefix), list(suffix)
        self.eos_ids = tuple(eos_ids)
        self.vocab_size = max(numbers.values()) + 1

    def encode(self, text: str) -> list[int]:
        """The token ids of an input, with its special tokens."""
        return self._prefix + self.pieces(text) + self._suffix

    def pieces(self, text: str) -> list[int]:
        """The token ids without special tokens, but for a code at the beginning."""
        code = self._codes.match(as_text(text))
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


class WrappedTokenizer(NamesMethods):
    """A wrapper of a tokenizer; a subclass defines ``encode``.

    Args:
      tokenizer: the other tokenizer.

    Attributes:
      passed_on: the names of optional attributes that are those of the other tokenizer.
    """

    passed_on: ClassVar[tuple[str, ...]] = ("settled", "token_texts", "vocab_size")

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
            return super().__getattr__(name)
        return getattr(self._tokenizer, name)


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
