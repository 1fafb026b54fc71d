"""The text that new tokens add to that of their prompt: all of it, or its final part so far."""

from __future__ import annotations

from collections.abc import Sequence

from decoding_jax.text.token_texts import REPLACEMENT
from decoding_jax.text.tokenizers import Tokenizer


def continuation(tokenizer: Tokenizer, context: list[int], new: list[int]) -> str:
    """The text that ``new`` adds to ``context``."""
    if not context:
        return tokenizer.decode(new)
    prefix = tokenizer.decode(context)
    whole = tokenizer.decode(context + new)
    # A context that ends inside a character has another text once the character is complete.
    return whole[len(prefix) :] if whole.startswith(prefix) else tokenizer.decode(new)


class GrowingText:
    """The text of one sequence, given out in final pieces.

    Args:
      tokenizer: decodes the tokens.
      context: the tokens of the prompt that the text continues; empty where it continues none.

    Attributes:
      given: the text that has been given out.
    """

    def __init__(self, tokenizer: Tokenizer, context: Sequence[int]):
        self._tokenizer, self._context = tokenizer, list(context)
        self._prefix = tokenizer.decode(self._context) if context else ""
        self.given = ""

    def grow(self, tokens: Sequence[int]) -> str:
        """The text that these tokens, which are all new tokens so far, have made final."""
        return self._give(self._settled(list(tokens)))

    def close(self, text: str) -> str:
        """The rest of the whole text.

        Raises:
          ValueError: if the text does not begin with the text that has been given out.
        """
        if not text.startswith(self.given):
            raise ValueError(
                "tokenizer: expected one whose method settled gives text that does not change, got "
                f"a {type(self._tokenizer).__name__} that changed {self.given!r} to {text!r}"
            )
        return self._give(text)

    def _give(self, text: str) -> str:
        if not text.startswith(self.given):
            return ""
        piece = text[len(self.given) :]
        self.given = text
        return piece

    def _settled(self, new: list[int]) -> str:
        """The final part of ``continuation``."""
        if not self._context:
            return settled_text(self._tokenizer, new)
        whole = settled_text(self._tokenizer, self._context + new)
        if whole.startswith(self._prefix):
            return whole[len(self._prefix) :]
        if self._prefix.startswith(whole):  # The end of the prompt's text may still change.
            return ""
        return settled_text(self._tokenizer, new)


def settled_text(tokenizer: Tokenizer, ids: Sequence[int]) -> str:
    """The beginning of the text of ``ids`` that no further token changes.

    A tokenizer without a method ``settled`` is assumed to decode every prefix of a token list to a
    prefix of its text, apart from replacement characters at the end.

    Example:
      >>> from decoding_jax.text import ByteTokenizer
      >>> tokenizer = ByteTokenizer()
      >>> settled_text(tokenizer, tokenizer.pieces("caf\u00e9")[:-1])
      'caf'
    """
    if hasattr(tokenizer, "settled"):
        return tokenizer.settled(ids)
    return tokenizer.decode(ids).rstrip(REPLACEMENT)
