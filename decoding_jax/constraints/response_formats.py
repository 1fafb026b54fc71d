"""The formats of answers that clients of chat services ask for, as constraints."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any

from decoding_jax import fields
from decoding_jax.constraints import tool_calls
from decoding_jax.constraints.made import by_row, free, json_schema
from decoding_jax.text.response_formats import (
    MAX_DEPTH,
    ResponseFormat,
    Tools,
    joined_by,
    made_by,
)
from decoding_jax.text.tokenizers import Tokenizer
from decoding_jax.transforms import PrefixAllowedTokens

_EXPECTED = (
    'a class of pydantic, a JSON Schema, a dict of the "type" json_schema, json_object or text, or'
    " a constraint"
)


@made_by
def response_format(asked: Any, tokenizer: Tokenizer, vocab_size: int) -> ResponseFormat:
    """The format of answers, for ``generate``.

    Args:
      asked: a class with ``model_json_schema`` and ``model_validate_json``, such as those of
        pydantic; a JSON Schema as a dict; or, as clients of chat services write it,
        ``{"type": "json_schema", "json_schema": {"name": ..., "schema": ...}}``,
        ``{"type": "json_object"}`` or ``{"type": "text"}``; or ``Tools``; or a constraint, whose
        texts have no other value.
      tokenizer, vocab_size: as for ``json_schema``.

    Raises:
      ValueError: in one line, for anything else, and as ``json_schema``.

    Example:
      >>> from decoding_jax.text import ByteTokenizer
      >>> schema = {"type": "json_schema", "json_schema": {"schema": {"type": "integer"}}}
      >>> made = response_format(schema, ByteTokenizer(), 259)
      >>> made.parsed("12")
      12
    """
    if isinstance(asked, Tools):
        return tool_calls.response_format(asked, tokenizer, vocab_size)
    if isinstance(asked, PrefixAllowedTokens):
        return ResponseFormat(asked, _nothing)
    if isinstance(asked, type) and hasattr(asked, "model_validate_json"):
        return ResponseFormat(_constraint(asked, tokenizer, vocab_size), _reader(asked))
    if not isinstance(asked, Mapping):
        raise fields.error("response_format", _EXPECTED, asked)
    kind, known = asked.get("type"), {"type"}
    schema: Any = asked
    if kind == "text":
        schema = None
    elif kind == "json_object":
        schema = {"type": "object"}
    elif kind == "json_schema":
        known.add("json_schema")
        schema = _inner(asked.get("json_schema"))
    else:
        known.update(asked)
    if others := sorted(asked.keys() - known, key=str):
        raise fields.error("response_format", f"nothing beside {', '.join(sorted(known))}", others)
    if schema is None:
        return ResponseFormat(None, _nothing)
    return ResponseFormat(_constraint(schema, tokenizer, vocab_size), _value)


@joined_by
def with_joined_tables(
    formats: Sequence[ResponseFormat], tokenizer: Tokenizer, vocab_size: int
) -> list[ResponseFormat]:
    """The formats, each with its own start in the tables of all; any text is one of them too.

    Args:
      formats: any number of formats, of constraints of this package.
      tokenizer, vocab_size: as for ``json_schema``.

    Raises:
      ValueError: as ``by_row``.
    """
    anything = free(tokenizer, vocab_size)
    kept: list[Any] = [made.constraint or anything for made in formats]
    joined = by_row(kept)

    def of(i: int) -> Any:
        first = None if joined.first is None else int(joined.first[i])
        return dataclasses.replace(joined, start=int(joined.start[i]), first=first)

    return [made._replace(constraint=of(i)) for i, made in enumerate(formats)]


def _inner(asked: Any) -> Any:
    """The schema of ``json_schema``; its name, description and strictness say nothing more."""
    name = "response_format.json_schema"
    if not isinstance(asked, Mapping) or "schema" not in asked:
        raise fields.error(name, "an object with a schema", asked)
    if others := sorted(asked.keys() - {"name", "description", "schema", "strict"}, key=str):
        raise fields.error(name, "a name, a description, a schema and strict alone", others)
    return asked["schema"]


def _constraint(schema: Any, tokenizer: Tokenizer, vocab_size: int) -> Any:
    return json_schema(schema, tokenizer, max_depth=MAX_DEPTH, vocab_size=vocab_size)


def _nothing(text: str, tokens: Sequence[int] = ()) -> None:
    return None


def _value(text: str, tokens: Sequence[int] = ()) -> Any:
    return json.loads(text)


def _reader(kind: Any) -> Any:
    def parsed(text: str, tokens: Sequence[int] = ()) -> Any:
        try:
            return kind.model_validate_json(text)
        except ValueError:  # A validator that the schema does not tell of.
            return None

    return parsed
