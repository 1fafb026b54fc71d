"""The transforms that keep texts to a pattern, a schema or a list."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from decoding_jax import fields
from decoding_jax.batches.widths import round_up
from decoding_jax.constraints import byte_automata, schemas
from decoding_jax.constraints.token_automata import over_tokens
from decoding_jax.text.stop_strings import texts_of
from decoding_jax.text.tokenizers import Tokenizer
from decoding_jax.transforms import CompressedAutomaton, PrefixAllowedTokens


def regex(
    pattern: str, tokenizer: Tokenizer, *, vocab_size: int | None = None
) -> PrefixAllowedTokens:
    r"""Keeps each text to a regular expression, which the whole text matches.

    The automaton is over bytes, so tokens may begin and end anywhere, within a character too. End
    tokens are allowed exactly where the text matches, and tokens without text nowhere. A text that
    ends with an end token therefore matches; one that the limit of tokens cuts is not ``finished``.
    Where nothing may follow a text and the tokenizer has no end tokens, the text ends there, and is
    not ``finished`` either.

    The transform comes before transforms that truncate: ``chain(regex(...), top_p(0.9))``.

    Args:
      pattern: in the syntax of the Rust crate ``regex``, which has neither look-around nor
        back-references.
      tokenizer: a tokenizer, from ``load``, or one of your own with ``token_texts`` and
        ``vocab_size``.
      vocab_size: the number of tokens that are considered; by default the tokenizer's.

    Raises:
      ValueError: in one line, for a pattern that cannot be compiled or that no text of the
        tokenizer matches, for a tokenizer that does not know the texts of its tokens, and without
        the extra ``constraints``.

    Example:
      >>> import decoding_jax
      >>> from decoding_jax import constraints
      >>> model, tokenizer = decoding_jax.load("translation-en-fr-draft")
      >>> question = constraints.regex("Où est [a-zé ]{1,20}[?]", tokenizer)
      >>> [[made]] = decoding_jax.generate(
      ...     model, tokenizer, ["Where is the station?"], transform=question, max_new_tokens=16)
      >>> made.text, made.finished
      ('Où est la gare ?', True)
    """
    made = byte_automata.of_pattern(pattern)
    return _over_tokens(made, tokenizer, vocab_size, "pattern", pattern)


def json_schema(
    schema: schemas.Schema, tokenizer: Tokenizer, *, vocab_size: int | None = None
) -> PrefixAllowedTokens:
    """Keeps each text to JSON that is valid by a schema; otherwise as ``regex``.

    Properties are in the order of the schema, with at most one space between the parts of the text.
    ``docs/constraints.md`` lists the keywords that are followed; any other one that restricts
    values is an error, as is a schema that refers to itself.

    Args:
      schema: a JSON Schema as a dict or a string, or a class of pydantic.
      tokenizer, vocab_size: as for ``regex``.

    Raises:
      ValueError: in one line, for a schema with a keyword that is not followed, and as ``regex``.

    Example:
      >>> from decoding_jax import constraints
      >>> from decoding_jax.text import ByteTokenizer
      >>> schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
      >>> made = constraints.json_schema(schema, ByteTokenizer())
      >>> made.language.transitions.shape
      (1, 16, 16)
    """
    made = byte_automata.of_pattern(schemas.pattern_of(schema), "schema")
    return _over_tokens(made, tokenizer, vocab_size, "schema", schema)


def choice(
    texts: Sequence[str], tokenizer: Tokenizer, *, vocab_size: int | None = None
) -> PrefixAllowedTokens:
    """Keeps each text to one of a list, however it is divided into tokens; otherwise as ``regex``.

    Needs no extra.

    Args:
      texts: one text or more, none of them empty.
      tokenizer, vocab_size: as for ``regex``.

    Raises:
      ValueError: in one line, for an empty list or text, and as ``regex``.

    Example:
      >>> from decoding_jax import constraints
      >>> from decoding_jax.text import ByteTokenizer
      >>> made = constraints.choice(["yes", "no"], ByteTokenizer())
      >>> bool((made.language.transitions[0, 0] >= 0).sum() == 2)
      True
    """
    expected = "a list of texts, none of them empty"
    if isinstance(texts, str) or not isinstance(texts, Sequence) or not texts:
        raise fields.error("texts", expected, texts)
    for text in texts:
        if not isinstance(text, str) or not text:
            raise fields.error("texts", expected, text)
    return _over_tokens(byte_automata.of_texts(texts), tokenizer, vocab_size, "texts", texts)


def by_row(constraints: Sequence[PrefixAllowedTokens]) -> PrefixAllowedTokens:
    """One transform of another constraint for each row or text; rows may share one.

    The arrays are padded to a few sizes: other constraints of the same padded sizes compile nothing
    again.

    Args:
      constraints: of ``regex``, ``json_schema`` or ``choice``, for one tokenizer. A row without a
        constraint takes ``regex("(?s:.*)", tokenizer)``.

    Raises:
      ValueError: for an empty list, other transforms, and constraints for other tokenizers.

    Example:
      >>> from decoding_jax import constraints
      >>> from decoding_jax.text import ByteTokenizer
      >>> answer = constraints.choice(["yes", "no"], ByteTokenizer())
      >>> city = constraints.choice(["Rome", "Lima"], ByteTokenizer())
      >>> constraints.by_row([answer, city, answer]).start.tolist()
      [0, 16, 0]
    """
    if not isinstance(constraints, Sequence):
        raise fields.error("constraints", "a list of constraints", constraints)
    different = list({id(made): made for made in constraints}.values())
    for made in different:
        known = isinstance(made, PrefixAllowedTokens)
        known = known and isinstance(made.language, CompressedAutomaton)
        if not known or np.ndim(made.start) or len(made.language.transitions) != 1:
            raise fields.error("constraints", "those of regex, json_schema or choice", made)
    kinds = {(made.language.token_class.shape[-1], made.first is None) for made in different}
    if len(kinds) != 1:
        raise fields.error("constraints", "one or more, for one tokenizer", sorted(kinds))
    padding = [different[0]] * (round_up(len(different)) - len(different))
    language = CompressedAutomaton.joined([made.language for made in [*different, *padding]])
    number = {id(made): g * language.transitions.shape[1] for g, made in enumerate(different)}

    def of_rows(name: str) -> np.ndarray:
        return np.array([number[id(made)] + getattr(made, name) for made in constraints], np.int32)

    first = None if different[0].first is None else of_rows("first")
    return PrefixAllowedTokens(language, start=of_rows("start"), first=first)


def _over_tokens(
    made: byte_automata.ByteAutomaton,
    tokenizer: Tokenizer,
    vocab_size: int | None,
    name: str,
    value: Any,
) -> PrefixAllowedTokens:
    """The transform of an automaton over bytes; ``name`` and ``value`` are those of an argument."""
    size = getattr(tokenizer, "vocab_size", None) if vocab_size is None else vocab_size
    if size is None:
        expected = "the number of tokens, for a tokenizer without vocab_size"
        raise fields.error("vocab_size", expected, None)
    texts = texts_of("constraints", tokenizer, fields.as_count("vocab_size", size))
    found = over_tokens(made, texts, tokenizer.eos_ids)
    if found is None:
        raise fields.error(name, "one that some text of the tokenizer's tokens matches", value)
    return found
