"""The text that each token adds to a text, and the part of a text that no further token changes.

Stop strings are matched against the texts of tokens. A tokenizer's text of some tokens is not
always the beginning of its text of more tokens: its last character may be incomplete, and decoders
change spaces and bytes at the end. A tokenizer that knows which part is settled has a method
``settled``, which this module computes for ``tokenizers``.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tokenizers

REPLACEMENT = "\ufffd"
"""The character that decoders put in the place of invalid or incomplete characters."""

BYTE = re.compile("<0x[0-9a-fA-F]{2}>")


class TokenTexts(NamedTuple):
    """The text that each token adds, in UTF-8.

    The text of a list of tokens has to be the concatenation of the texts that they add, apart from
    bytes that are not characters.

    Attributes:
      begun: for each token, the text that it adds after others; empty for a special token.
      first: the text that it adds as the first one, or None if the token after it is still the
        first.
      byte: the byte that each token represents, or -1 for other tokens, if the tokenizer decodes a
        run of such tokens as a whole: an invalid run has no text. None for other tokenizers.
      special: the special tokens, which have no text, by their ids: what stands for them in an
        input. None if they are not known.
    """

    begun: Sequence[bytes]
    first: Sequence[bytes | None]
    byte: Sequence[int] | None = None
    special: Mapping[int, bytes] | None = None

    def digest(self) -> str:
        """A digest of what the tokens add, after others and as the first ones.

        Example:
          >>> concatenated([b"a", b"b"]).digest() == concatenated([b"ab", b""]).digest()
          False
        """
        made = hashlib.blake2b(digest_size=8)
        for texts in (self.begun, self.first):
            lengths = [-1 if text is None else len(text) for text in texts]
            made.update(np.array([len(texts), *lengths], "<i4").tobytes())
            made.update(b"".join(text or b"" for text in texts))
        return made.hexdigest()


def concatenated(texts: Sequence[bytes]) -> TokenTexts:
    """The texts of a tokenizer whose tokens add the same text wherever they are.

    Example:
      >>> concatenated([b"", b"hi"]).first
      [None, b'hi']
    """
    return TokenTexts(texts, [text or None for text in texts])


def texts_of_decoder(tokenizer: tokenizers.Tokenizer, size: int) -> TokenTexts:
    """The texts of the first ``size`` ids of a ``tokenizers.Tokenizer``.

    Raises:
      ValueError: for a decoder that lets a token's text depend on later tokens.
    """
    decoder = tokenizer.decoder
    steps = [] if decoder is None else decoder_steps(decoder)
    types = [] if steps is None else [step["type"] for step in steps]
    bad = [kind for kind in types if kind in ("BPEDecoder", "CTC")]
    bad += [
        "Strip" for s in steps or () if s["type"] == "Strip" and (s["start"] > 1 or s["stop"] > 0)
    ]
    if steps is None or bad:
        raise ValueError(
            "expected a tokenizer whose text is the concatenation of its tokens' texts, got one"
            f" with the decoder {bad[0] if bad else type(decoder)}"
        )
    added = tokenizer.get_added_tokens_decoder()
    special = {i: t.content.encode() for i, t in added.items() if t.special and i < size}
    tokens = [None if i in special else tokenizer.id_to_token(i) for i in range(size)]
    if "ByteLevel" in types:
        texts = concatenated([b"" if t is None else _bytes_of(t) for t in tokens])
        return texts._replace(special=special)
    runs = "ByteFallback" in types
    byte = [int(t[3:5], 16) if runs and t and BYTE.fullmatch(t) else -1 for t in tokens]
    texts = texts_by_decoding(tokenizer.decode, [t is None for t in tokens], byte)
    return texts._replace(byte=byte if runs else None, special=special)


_PRINTABLE = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
_OTHERS = [number for number in range(256) if number not in _PRINTABLE]
CHARACTER_OF = {number: chr(number) for number in _PRINTABLE}
CHARACTER_OF |= {number: chr(256 + index) for index, number in enumerate(_OTHERS)}
"""The alphabet of GPT-2's byte-level tokens: printable bytes are themselves."""
_BYTE_OF = {character: number for number, character in CHARACTER_OF.items()}


def _bytes_of(token: str) -> bytes:
    """The bytes of a token in the alphabet of GPT-2, or its own in any other characters."""
    try:
        return bytes(_BYTE_OF[c] for c in token)
    except KeyError:
        return token.encode()


def texts_by_decoding(
    decode: Callable[[list[int]], str], is_empty: Sequence[bool], byte: Sequence[int]
) -> TokenTexts:
    """The texts of tokens by decoding each alone, and after another one.

    Args:
      decode: the text of ids.
      is_empty: for each token, whether it is left out of texts.
      byte: for each token, the byte that it stands for, or -1.

    Raises:
      ValueError: if no token has a text of its own, as among too few tokens of a vocabulary.
    """
    ids = [i for i, empty in enumerate(is_empty) if not empty and byte[i] < 0]
    whole = (i for i in ids if decode([i]).strip() and decode([i, i]).startswith(decode([i])))
    before = next(whole, None)
    if before is None:
        raise ValueError(f"expected tokens with texts, got none among the first {len(is_empty)}")
    skipped = len(decode([before]))
    begun: list[bytes] = [b""] * len(is_empty)
    first: list[bytes | None] = [None] * len(is_empty)
    for i in ids:
        begun[i], first[i] = decode([before, i])[skipped:].encode(), decode([i]).encode()
    # A token that is dropped at the beginning may leave the next one first.
    spaced = next((i for i in ids if first[i] and first[i] != begun[i]), None)
    for i in ids:
        if not first[i] and spaced is not None:
            first[i] = None if decode([i, spaced]).encode() == first[spaced] else b""
    for i, value in enumerate(byte):
        if value >= 0:
            begun[i] = bytes([value])
            first[i] = decode([i]).encode() if value < 0x80 else begun[i]
    return TokenTexts(begun, first)


class Decoding(NamedTuple):
    """How the decoder of a ``tokenizers.Tokenizer`` treats the end of a text.

    Attributes:
      byte_runs: whether tokens such as ``<0x0A>`` are decoded as bytes. While a run of them
        continues, another byte may turn all of its text into replacement characters.
      last_differs: whether the last token is decoded differently from the tokens before it.
      known: whether only an incomplete character at the end may change.
    """

    byte_runs: bool
    last_differs: bool
    known: bool


def decoding_of(tokenizer: tokenizers.Tokenizer) -> Decoding:
    """How the decoder of a tokenizer treats the end of a text.

    Example:
      >>> llama = tokenizers.Tokenizer(tokenizers.models.BPE())
      >>> llama.decoder = tokenizers.decoders.Sequence(
      ...     [tokenizers.decoders.ByteFallback(), tokenizers.decoders.Fuse()]
      ... )
      >>> decoding_of(llama)
      Decoding(byte_runs=True, last_differs=False, known=True)
    """
    decoder = tokenizer.decoder
    if decoder is None:
        return Decoding(False, False, True)
    steps = decoder_steps(decoder)
    if steps is None:
        return Decoding(False, False, False)
    types = [step["type"] for step in steps]
    known, is_fused = True, False
    for step, kind in zip(steps, types, strict=True):
        if kind in ("WordPiece", "BPEDecoder", "CTC", "ByteLevel", "ByteFallback"):
            known &= not is_fused
        elif kind == "Replace":
            known &= not is_fused or len(step["pattern"].get("String", "  ")) == 1
        elif kind not in ("Metaspace", "Fuse", "Strip"):
            known = False
        is_fused |= kind in ("Fuse", "ByteLevel")
    return Decoding("ByteFallback" in types, "BPEDecoder" in types, known)


def decoder_steps(decoder: Any) -> list[dict[str, Any]] | None:
    """The settings of each part of a decoder; None for one that is written in Python."""
    try:
        return list(_steps(json.loads(decoder.__getstate__())))
    except Exception:
        return None


def _steps(decoder: dict[str, Any]) -> Any:
    if decoder["type"] != "Sequence":
        yield decoder
        return
    for part in decoder["decoders"]:
        yield from _steps(part)


def settled_by_decoder(
    tokenizer: tokenizers.Tokenizer, decoding: Decoding, ids: Sequence[int]
) -> str:
    """The settled text of a ``tokenizers.Tokenizer``, whose special tokens are left out."""
    ids = [int(i) for i in ids]
    if decoding.byte_runs:
        ids = _without_last_run(tokenizer, ids)
    text = tokenizer.decode(ids)
    if not decoding.known:
        return text.rstrip(REPLACEMENT)
    if decoding.last_differs and ids:
        more = tokenizer.decode([*ids, *ids])
        same = (a == b for a, b in zip(text, more, strict=False))
        text = text[: sum(itertools.takewhile(bool, same))]
    return without_incomplete(text, 1)


def _without_last_run(tokenizer: tokenizers.Tokenizer, ids: list[int]) -> list[int]:
    """The tokens before the bytes at the end, between which there may be special tokens."""
    special = {i for i, token in tokenizer.get_added_tokens_decoder().items() if token.special}
    end = position = len(ids)
    while position > 0:
        position -= 1
        token = tokenizer.id_to_token(ids[position])
        if token is None or ids[position] in special:
            continue
        if not BYTE.fullmatch(token):
            break
        end = position
    return ids[:end]


_SPACED = (" .", " ?", " !", " ,", " ' ", " n't", " 'm", " 's", " 've", " 're")
_OPEN = " 'nvr"  # The last characters of all beginnings of these.


def without_spaces(text: str) -> str:
    """A text without the spaces before its punctuation, as ``transformers`` removes them.

    This is ``clean_up_tokenization_spaces``, one replacement after another.

    Example:
      >>> without_spaces("I 'm here , you do n't")
      "I'm here, you don't"
    """
    for spaced in _SPACED:
        text = text.replace(spaced, spaced.strip())
    return text


def settled_without_spaces(text: str) -> str:
    """The beginning of ``without_spaces(text + more)`` for every ``more``.

    Example:
      >>> settled_without_spaces("He is here , he do n'")
      'He is here, he do'
    """
    return without_spaces(text.rstrip(_OPEN))


def without_incomplete(text: str, count: int) -> str:
    """A text without up to ``count`` replacement characters at its end.

    An incomplete character is one replacement character, or one for each of its up to three bytes.

    Example:
      >>> without_incomplete("a\ufffd\ufffd", 1) == "a\ufffd"
      True
    """
    for _ in range(count):
        text = text.removesuffix(REPLACEMENT)
    return text
