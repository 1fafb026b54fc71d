"""The text that each token of a tokenizer adds, which stop strings are matched against."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import tokenizers

from decoding_jax.text.settled import BYTE, decoder_steps


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
    """

    begun: Sequence[bytes]
    first: Sequence[bytes | None]
    byte: Sequence[int] | None = None


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
            f"stop_strings: got a tokenizer with the decoder {bad[0] if bad else type(decoder)}; "
            "takes one whose text is the concatenation of its tokens' texts"
        )
    special = {i for i, token in tokenizer.get_added_tokens_decoder().items() if token.special}
    tokens = [None if i in special else tokenizer.id_to_token(i) for i in range(size)]
    if "ByteLevel" in types:
        return concatenated([b"" if t is None else _bytes_of(t) for t in tokens])
    runs = "ByteFallback" in types
    byte = [int(t[3:5], 16) if runs and t and BYTE.fullmatch(t) else -1 for t in tokens]
    texts = texts_by_decoding(tokenizer.decode, [t is None for t in tokens], byte)
    return texts._replace(byte=byte if runs else None)


_PRINTABLE = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
_OTHERS = [number for number in range(256) if number not in _PRINTABLE]
_BYTE_OF = {chr(number): number for number in _PRINTABLE}
_BYTE_OF |= {chr(256 + index): number for index, number in enumerate(_OTHERS)}
"""The alphabet of GPT-2's byte-level tokens: printable bytes are themselves."""


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
    """
    ids = [i for i, empty in enumerate(is_empty) if not empty and byte[i] < 0]
    before = next(i for i in ids if decode([i]).strip() and decode([i, i]).startswith(decode([i])))
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
