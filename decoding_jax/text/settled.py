"""The part of a growing text that no further token changes.

A tokenizer's text of some tokens is not always the beginning of its text of more tokens: its last
character may be incomplete, and decoders change spaces and bytes at the end. A tokenizer that knows
which part is final has a method ``settled``, which this module computes for ``tokenizers``.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import tokenizers

REPLACEMENT = "\ufffd"
"""The character that decoders put in the place of invalid or incomplete characters."""

BYTE = re.compile("<0x[0-9a-fA-F]{2}>")


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
    """``settled`` of a ``tokenizers.Tokenizer``, whose special tokens are left out."""
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
