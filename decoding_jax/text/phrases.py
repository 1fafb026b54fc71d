"""What a text must contain, as strings or tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from decoding_jax.strategies.beam.constraints import Constraints
from decoding_jax.text.tokenizers import Tokenizer


def constraints(
    tokenizer: Tokenizer,
    phrases: Sequence[str | Sequence[int]] = (),
    alternatives: Sequence[Sequence[str | Sequence[int]]] = (),
) -> Constraints:
    """Constraints for ``constrained_beam_search``, from strings and token sequences.

    A phrase is tokenised as a text of its own, and looked for token by token: a text that spells it
    with other tokens, such as a word that goes on, does not count. Where that matters, give the
    spellings as alternatives: ``alternatives=[["house", " house"]]``.

    Args:
      tokenizer: from ``load``.
      phrases: all must appear: strings, or sequences of token ids, which are taken as they are.
      alternatives: of each set of such, one at least must appear.

    Raises:
      ValueError: for one string where several are due, a phrase without a token, and a negative id.

    Example:
      >>> from decoding_jax.text import ByteTokenizer
      >>> constraints(ByteTokenizer(), ["hi"]).phrases
      array([[107, 108]], dtype=int32)
      >>> constraints(ByteTokenizer(), ["hi", (5,)]).phrases
      array([[107, 108],
             [ -1,   5]], dtype=int32)
    """
    sets = [("phrases", phrases), *(("alternatives", some) for some in alternatives)]
    ids = [
        tuple(_pieces(name, phrase, tokenizer) for phrase in _several(name, some))
        for name, some in sets
    ]
    return Constraints(ids[0], tuple(ids[1:]))


def _several(name: str, some: Any) -> Sequence[Any]:
    if isinstance(some, str) or not isinstance(some, Sequence):
        raise ValueError(f"{name}: got {some!r}; takes a list of strings or of token sequences")
    return some


def _pieces(name: str, phrase: Any, tokenizer: Tokenizer) -> tuple[int, ...]:
    if not isinstance(phrase, str):
        if not isinstance(phrase, Sequence):
            raise ValueError(f"{name}: got {phrase!r}; takes strings or token sequences")
        return tuple(phrase)
    ids = tokenizer.pieces(phrase) if phrase else []
    if not ids:
        raise ValueError(f"{name}: got {phrase!r}; takes texts with a token")
    return tuple(ids)
