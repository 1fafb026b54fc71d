"""What answers look like: ``response_format`` of a call, made by the layer above.

Schemas become constraints by ``decoding_jax.constraints``, which is built on this package, and says
here how a format is made.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from decoding_jax.base import Transform
from decoding_jax.text.tokenizers import Tokenizer


class ResponseFormat(NamedTuple):
    """A format of answers.

    Attributes:
      constraint: keeps every text to it; None for any text.
      parsed: the value of a whole text, or None where a class refuses it.
    """

    constraint: Transform | None
    parsed: Callable[[str], Any]


Maker = Callable[[Any, Tokenizer, int], ResponseFormat]
"""A function of a ``response_format``, a tokenizer and the number of tokens."""

_MAKERS: list[Maker] = []


def made_by(maker: Maker) -> Maker:
    """Says which function makes formats."""
    _MAKERS[:] = [maker]
    return maker


def of(asked: Any, tokenizer: Tokenizer, vocab_size: int) -> ResponseFormat | None:
    """The format of a call, or None for one without any."""
    return None if asked is None else _MAKERS[-1](asked, tokenizer, vocab_size)
