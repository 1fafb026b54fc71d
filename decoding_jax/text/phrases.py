"""Constraints of ``constrained_beam_search`` from strings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from decoding_jax import fields
from decoding_jax.strategies.beam.constraints import Constraints
from decoding_jax.text.tokenizers import Tokenizer


def constraints(
    tokenizer: Tokenizer,
    phrases: Sequence[str | Sequence[int]] = (),
    alternatives: Sequence[Sequence[str | Sequence[int]]] = (),
) -> Constraints:
    """Constraints for ``constrained_beam_search``, from strings and token sequences.

    A phrase is tokenized on its own and matched token by token. A text that contains the phrase in
    other tokens, for example as the start of a longer word, does not match. If this matters, list
    the spellings as alternatives: ``alternatives=[["house", " house"]]``.

    Args:
      tokenizer: a tokenizer, from ``load``.
      phrases: strings or sequences of token ids. All of them must appear.
      alternatives: sets of strings or sequences of token ids. At least one of each set must appear.

    Raises:
      ValueError: for a string in place of a list, a phrase without tokens, or a negative id.

    Example:
      >>> from decoding_jax.text import ByteTokenizer
      >>> constraints(ByteTokenizer(), ["hi"]).phrases
      array([[107, 108]], dtype=int32)
      >>> constraints(ByteTokenizer(), ["hi", (5,)]).phrases
      array([[107, 108],
             [ -1,   5]], dtype=int32)
    """
    sets = [("phrases", phrases), *(("alternatives", members) for members in alternatives)]
    ids = [
        tuple(_pieces(name, phrase, tokenizer) for phrase in _checked_list(name, members))
        for name, members in sets
    ]
    return Constraints(ids[0], tuple(ids[1:]))


def _checked_list(name: str, phrases: Any) -> Sequence[Any]:
    if isinstance(phrases, str) or not isinstance(phrases, Sequence):
        raise fields.error(name, "a list of strings or of token sequences", phrases)
    return phrases


def _pieces(name: str, phrase: Any, tokenizer: Tokenizer) -> tuple[int, ...]:
    if not isinstance(phrase, str):
        if not isinstance(phrase, Sequence):
            raise fields.error(name, "strings or token sequences", phrase)
        return tuple(phrase)
    ids = tokenizer.pieces(phrase) if phrase else []
    if not ids:
        raise fields.error(name, "texts with a token", phrase)
    return tuple(ids)
