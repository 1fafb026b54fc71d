"""What answers look like: ``response_format`` and ``tools`` of a call, made by the layer above.

Schemas become constraints by ``decoding_jax.constraints``, which is built on this package, and says
here how a format is made.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from decoding_jax import fields
from decoding_jax.base import Transform
from decoding_jax.text.tokenizers import Tokenizer

MAX_DEPTH = 8
"""How many values of one schema may be within each other."""


class Tools(NamedTuple):
    """Functions that an answer may call.

    Attributes:
      tools: as clients of chat services write them, each
        ``{"type": "function", "function": {"name": ..., "parameters": SCHEMA}}``.
      choice: ``"auto"``, ``"required"``, ``"none"``, or one of the functions, as
        ``{"type": "function", "function": {"name": ...}}``.
    """

    tools: Any
    choice: Any


class ResponseFormat(NamedTuple):
    """A format of answers.

    Attributes:
      constraint: keeps every text to it; None for any text.
      parsed: the value of a whole text and its tokens, or None where a class refuses it or an
        answer calls nothing.
    """

    constraint: Transform | None
    parsed: Callable[[str, Sequence[int]], Any]


Maker = Callable[[Any, Tokenizer, int], ResponseFormat]
"""A function of a ``response_format`` or ``Tools``, a tokenizer and the number of tokens."""

Joiner = Callable[[Sequence[ResponseFormat], Tokenizer, int], list[ResponseFormat]]
"""A function that makes formats of others, one for each, whose constraints have the same tables."""

_MAKERS: list[Maker] = []
_JOINERS: list[Joiner] = []


def made_by(maker: Maker) -> Maker:
    """Says which function makes formats."""
    _MAKERS[:] = [maker]
    return maker


def joined_by(joiner: Joiner) -> Joiner:
    """Says which function joins the tables of formats."""
    _JOINERS[:] = [joiner]
    return joiner


def of(
    asked: Any, tokenizer: Tokenizer, vocab_size: int, tools: Any = None, choice: Any = None
) -> ResponseFormat | None:
    """The format of a call, or None for one without any.

    Args:
      asked: its ``response_format``, which may be made already.
      tokenizer, vocab_size: those of its model.
      tools, choice: those of ``Tools``, or None; ``"auto"`` is then the choice.

    Raises:
      ValueError: in one line, for tools beside another format, a choice without tools, and for a
        format that cannot be made.
    """
    if tools is None and choice is not None:
        raise fields.error("tool_choice", "None without tools", choice)
    if tools is not None:
        if asked is not None:
            raise fields.error("response_format", "None beside tools", asked)
        asked = Tools(tools, "auto" if choice is None else choice)
    if asked is None or isinstance(asked, ResponseFormat):
        return asked
    return _MAKERS[-1](asked, tokenizer, vocab_size)


def joined(asked: Sequence[Any], tokenizer: Tokenizer, vocab_size: int) -> list[ResponseFormat]:
    """The formats of several calls, whose rows may run in one batch.

    Args:
      asked: the ``response_format`` of each, or None.
      tokenizer, vocab_size: as for ``of``.

    Raises:
      ValueError: as ``of``.
    """
    text: Any = {"type": "text"}
    made = [of(text if x is None else x, tokenizer, vocab_size) for x in asked]
    return _JOINERS[-1]([x for x in made if x is not None], tokenizer, vocab_size)
