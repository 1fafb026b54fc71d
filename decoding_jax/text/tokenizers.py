"""Tokenizers, which convert strings to token ids and back.

They wrap the libraries ``tokenizers`` and ``sentencepiece``, or another tokenizer.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Protocol

import sentencepiece
import tokenizers
from tokenizers import AddedToken, decoders, models, pre_tokenizers

from decoding_jax import fields
from decoding_jax.text import token_texts
from decoding_jax.text.chat import SupportsChat
from decoding_jax.text.token_texts import TokenTexts

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
        """The token ids without special tokens. ``constraints`` and ``score`` use it."""
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


class HuggingFaceTokenizer(NamesMethods, SupportsChat):
    """A ``tokenizers.Tokenizer``, whose post-processor adds the special tokens.

    A truncation or padding that was saved with it is turned off.

    Args:
      tokenizer: the tokenizer.
      eos_ids: see ``Tokenizer``.

    Attributes:
      library: the tokenizer of the library ``tokenizers``.
      clean_up: whether texts have no spaces before punctuation. A token's text then depends on
        later tokens, so stop strings and constraints are refused.
      network_size: the ``vocab_size`` of the ``config.json`` beside its files, or None.
    """

    clean_up = False
    network_size: int | None = None

    def __init__(self, tokenizer: tokenizers.Tokenizer, *, eos_ids: Sequence[int] = ()):
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self.library, self._decoding = tokenizer, token_texts.decoding_of(tokenizer)
        self._sizes: dict[int, tuple[int, int]] = {}  # by the number of tokens
        self.eos_ids = tuple(eos_ids)

    @property
    def vocab_size(self) -> int:
        """The number of ids, those of added tokens included."""
        return self._counted()[0]

    @property
    def base_vocab_size(self) -> int:
        """The number of ids without added tokens, for which a network may lack rows."""
        return self._counted()[1]

    def _counted(self) -> tuple[int, int]:
        """The sizes, for which the whole vocabulary is read once."""
        count = self.library.get_vocab_size()
        if count not in self._sizes:
            ids = set(self.library.get_vocab().values())
            base = ids.difference(self.library.get_added_tokens_decoder())
            self._sizes = {count: (max(ids, default=-1) + 1, max(base, default=-1) + 1)}
        return self._sizes[count]

    def encode(self, text: str) -> list[int]:
        return self.library.encode(as_text(text)).ids

    def pieces(self, text: str) -> list[int]:
        return self.library.encode(as_text(text), add_special_tokens=False).ids

    def chat_pieces(self, text: str) -> list[int]:
        return self.pieces(text)

    def decode(self, ids: Sequence[int]) -> str:
        text = self.library.decode([int(i) for i in ids], skip_special_tokens=True)
        return token_texts.without_spaces(text) if self.clean_up else text

    def settled(self, ids: Sequence[int]) -> str:
        text = token_texts.settled_by_decoder(self.library, self._decoding, ids)
        return token_texts.settled_without_spaces(text) if self.clean_up else text

    def token_texts(self, size: int) -> TokenTexts:
        if self.clean_up:
            raise ValueError(
                "expected a tokenizer whose text is the concatenation of its tokens' texts, got "
                "one with clean_up_tokenization_spaces; tokenizer.clean_up = False keeps the "
                "spaces before punctuation"
            )
        return token_texts.texts_of_decoder(self.library, size)


class SentencePieceTokenizer(HuggingFaceTokenizer):
    """A SentencePiece model with added tokens.

    Added tokens are searched in a text first, by ``tokenizers``. The SentencePiece library divides
    the sections between them, each as a text of its own. Texts are decoded by ``tokenizers``.

    Args:
      path: the ``.model`` file.
      prefix: the ids put before every input, such as Llama's start token.
      suffix: the ids put after every input, such as T5's end token.
      eos_ids: see ``Tokenizer``.
      added: the tokens that are added to those of the model, or that stand for one of them, by
        their ids. Control pieces and the unknown piece are special tokens in any case.
      numbers: the ids of pieces, if they are not those of the model.
      unknown: the token for pieces without an id, with ``numbers``.
      plain: whether characters and spaces stay as they are, and no space is put before a text
        that begins with one, as in the ``LlamaTokenizer`` of ``transformers``; otherwise, the
        model's own settings say so.
      each: whether a space is put before every section, rather than before the first alone.
      decoder: what makes a text of pieces; by default, runs of bytes are decoded, and the space
        that the model puts before a text is removed.

    Raises:
      TokenizerError: in one line, if the model cannot be read.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        prefix: Sequence[int] = (),
        suffix: Sequence[int] = (),
        eos_ids: Sequence[int] = (),
        added: Mapping[int, AddedToken] | None = None,
        numbers: Mapping[str, int] | None = None,
        unknown: str | None = None,
        plain: bool = False,
        each: bool = True,
        decoder: Any = None,
    ):
        reading = _PLAIN if plain else b""
        self._pieces, self._unspaced = processor(path, reading), processor(path, reading + _BARE)
        self._plain, self._each = plain, each
        pieces = self._pieces
        of_model = {pieces.id_to_piece(i): i for i in range(len(pieces))}
        self._numbers: dict[str, int] | None = None if numbers is None else dict(numbers)
        vocabulary = of_model if numbers is None else dict(numbers)
        unknown = pieces.id_to_piece(pieces.unk_id()) if unknown is None else unknown
        self._unknown_id = vocabulary[unknown]
        special = [i for i in of_model.values() if pieces.is_control(i) or pieces.is_unknown(i)]
        tokens = {
            vocabulary[piece]: AddedToken(piece, special=True, normalized=False)
            for piece in map(pieces.id_to_piece, special)
            if piece in vocabulary
        }
        tokens |= dict(added or {})
        self._prefix, self._suffix = list(prefix), list(suffix)
        self._sections = _with_tokens({}, tokens, "")
        decoder = _decoder_of(pieces) if decoder is None else decoder
        super().__init__(_with_tokens(vocabulary, tokens, unknown, decoder), eos_ids=eos_ids)

    def encode(self, text: str) -> list[int]:
        return self._prefix + self.pieces(text) + self._suffix

    def pieces(self, text: str) -> list[int]:
        found = self._sections.encode(as_text(text), add_special_tokens=False)
        ids: list[int] = []
        for token, (begin, end) in zip(found.ids, found.offsets, strict=True):
            ids += [token - 1] if token else self._pieces_of(text[begin:end], is_first=not begin)
        return ids

    def _pieces_of(self, section: str, *, is_first: bool) -> list[int]:
        spaced = self._plain and section.startswith((" ", _SPACE))
        processor = self._pieces if (is_first or self._each) and not spaced else self._unspaced
        if self._numbers is None:
            return processor.encode(section)
        pieces = processor.encode(section, out_type=str)
        return [self._numbers.get(piece, self._unknown_id) for piece in pieces]


# Settings of a SentencePiece model. It is a message of protocol buffers, to which one appends the
# fields that replace its own.
_BARE = b"\x1a\x02\x18\x00"  # normalizer_spec.add_dummy_prefix = false
_PLAIN = b"\x1a\x04\x12\x00\x20\x00"  # no charsmap, and remove_extra_whitespaces = false


def processor(path: str | Path, settings: bytes = b"") -> sentencepiece.SentencePieceProcessor:
    """A SentencePiece model, with settings in place of its own.

    Raises:
      TokenizerError: in one line, if it cannot be read.
    """
    try:
        model = Path(path).read_bytes()
        return sentencepiece.SentencePieceProcessor(model_proto=model + settings)
    except (OSError, RuntimeError) as e:
        raise TokenizerError(f"{path}: not a SentencePiece model") from e


def _decoder_of(pieces: sentencepiece.SentencePieceProcessor) -> Any:
    """The decoder of a model: spaces, bytes, and the space that it puts before a text."""
    steps = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if pieces.encode("a", out_type=str)[0].startswith(_SPACE):
        steps.append(decoders.Strip(" ", 1, 0))
    return decoders.Sequence(steps)


def _with_tokens(
    vocabulary: Mapping[str, int],
    added: Mapping[int, AddedToken],
    unknown: str,
    decoder: Any = None,
) -> tokenizers.Tokenizer:
    """A tokenizer of whole words that has added tokens at given ids.

    Without a vocabulary, ids are greater by one, and 0 is any text without added tokens.
    """
    shift = 0 if vocabulary else 1
    texts = {token.content for token in added.values()}
    kept = {text: i for text, i in vocabulary.items() if i not in added and text not in texts} or {
        unknown: 0
    }
    words = kept | {token.content: i + shift for i, token in added.items()}
    made = tokenizers.Tokenizer(models.WordLevel(words, unk_token=unknown))
    made.add_tokens(list(added.values()))
    if decoder is not None:
        made.decoder = decoder
    return made


class ByteTokenizer(HuggingFaceTokenizer):
    """The tokenizer of ByT5 (Xue et al. 2022): UTF-8 bytes as ids 3 to 258.

    The ids 0, 1 and 2 are the padding, end and unknown tokens.

    Args:
      eos_ids: see ``Tokenizer``.
      extra_ids: the number of sentinels, ``<extra_id_0>`` and so on, from id 259.

    Example:
      >>> ByteTokenizer().encode("hi")
      [107, 108, 1]
      >>> ByteTokenizer().decode([107, 108, 1])
      'hi'
      >>> ByteTokenizer(extra_ids=1).encode("<extra_id_0>hi</s>")
      [259, 107, 108, 1]
    """

    def __init__(self, *, eos_ids: Sequence[int] = (1,), extra_ids: int = 0):
        named = ["<pad>", "</s>", "<unk>"]
        sentinels = [f"<extra_id_{i}>" for i in range(extra_ids)]
        words = {token: i for i, token in enumerate(named)}
        words |= {token_texts.CHARACTER_OF[byte]: byte + 3 for byte in range(256)}
        words |= {token: 259 + i for i, token in enumerate(sentinels)}
        made = tokenizers.Tokenizer(models.BPE(words, []))
        made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        made.decoder = decoders.ByteLevel()
        made.add_special_tokens([AddedToken(t, lstrip=True, rstrip=True) for t in named])
        made.add_special_tokens(sentinels)
        super().__init__(made, eos_ids=eos_ids)

    def encode(self, text: str) -> list[int]:
        ids = self.pieces(text)
        return ids if ids[-1:] == [1] else [*ids, 1]


class NumberedPieces(SentencePieceTokenizer):
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

    Attributes:
      source: None, or the tokenizer that ``encode`` uses, of the inputs of a Marian with separate
        vocabularies. The other methods are those of the outputs' vocabulary.

    Raises:
      TokenizerError: in one line, if the model cannot be read.
    """

    source: NumberedPieces | None = None

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
        names = {i: piece for piece, i in numbers.items()}
        tokens = {i: AddedToken(names[i], special=True, normalized=False) for i in special}
        super().__init__(
            path,
            prefix=prefix,
            suffix=suffix,
            eos_ids=eos_ids,
            added=tokens,
            numbers=numbers,
            unknown=names[unknown_id],
            decoder=decoders.Metaspace(),
        )
        self._codes = re.compile(codes)
        within = {i: token for i, token in tokens.items() if not self._codes.match(token.content)}
        self._sections = _with_tokens({}, within, "")

    def encode(self, text: str) -> list[int]:
        return super().encode(text) if self.source is None else self.source.encode(text)

    def pieces(self, text: str) -> list[int]:
        """The token ids without special tokens, but for a code at the beginning."""
        code = self._codes.match(as_text(text))
        if code is None:
            return super().pieces(text)
        number = (self._numbers or {}).get(code[0], self._unknown_id)
        return [number, *super().pieces(text[code.end() :])]


class WrappedTokenizer(NamesMethods):
    """A wrapper of a tokenizer; a subclass defines ``encode``.

    Args:
      tokenizer: the other tokenizer.

    Attributes:
      passed_on: the names of optional attributes that are those of the other tokenizer.
    """

    passed_on: ClassVar[tuple[str, ...]] = (
        "base_vocab_size",
        "network_size",
        "settled",
        "source",
        "token_texts",
        "vocab_size",
    )

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
        pieces = (getattr(self._tokenizer, "source", None) or self).pieces(text)
        return [*self._prefix, *pieces, *self._suffix]
