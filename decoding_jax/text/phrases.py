"""What a text must contain, as strings."""

from __future__ import annotations

from collections.abc import Sequence

from decoding_jax.strategies.beam.constraints import Constraints
from decoding_jax.text.tokenizers import Tokenizer


def constraints(
    tokenizer: Tokenizer,
    phrases: Sequence[str] = (),
    alternatives: Sequence[Sequence[str]] = (),
) -> Constraints:
    """Constraints for ``constrained_beam_search``, from strings.

    A phrase is tokenised as a text of its own, and looked for token by token: a text that spells it
    with other tokens, such as a word that goes on, does not count. Where that matters, give the
    spellings as alternatives: ``alternatives=[["house", " house"]]``.

    Args:
      tokenizer: from ``load``.
      phrases: all must appear.
      alternatives: of each set, one at least must appear.

    Raises:
      ValueError: for one string where several are due, and a phrase without a token.

    Example:
      >>> from decoding_jax.text import ByteTokenizer
      >>> constraints(ByteTokenizer(), ["hi"]).phrases
      array([[107, 108]], dtype=int32)
    """
    sets = [("phrases", phrases), *(("alternatives", some) for some in alternatives)]
    for name, some in sets:
        if isinstance(some, str):
            raise ValueError(f"{name}: got {some!r}; takes a list of strings")
        for text in some:
            if not text or not tokenizer.pieces(text):
                raise ValueError(f"{name}: got {text!r}; takes texts with a token")
    ids = [tuple(tuple(tokenizer.pieces(text)) for text in some) for _, some in sets]
    return Constraints(ids[0], tuple(ids[1:]))
