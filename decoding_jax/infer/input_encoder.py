"""The tokens of inputs, and what is cut off those that are too long."""

from __future__ import annotations

from typing import Any

from decoding_jax.models.encoder_decoder import EncoderDecoder
from decoding_jax.text import Tokenizer
from decoding_jax.text.inputs import cut
from decoding_jax.text.sizes import shared_size


class InputEncoder:
    """Encodes the inputs of a job.

    Args:
      model: the model. Inputs of an encoder-decoder keep their beginning, and prompts of another
        model their end.
      tokenizer: the tokenizer of the model.
      size: the largest number of tokens of an input, those of a shared prefix included.
      truncate: whether inputs that are longer are cut.
    """

    def __init__(self, model: Any, tokenizer: Tokenizer, size: int, *, truncate: bool):
        self._tokenizer = tokenizer
        self._size = size
        self._truncate = truncate
        self._shared = shared_size(model)
        self._keep_last = not isinstance(model, EncoderDecoder)

    def __call__(self, text: str) -> tuple[list[int], int]:
        """The tokens of an input, and the number of tokens that were cut off.

        Raises:
          ValueError: if the input cannot be tokenized, has no tokens, or is too long and not cut.
        """
        try:
            tokens = self._tokenizer.encode(text)
        except Exception as e:  # Tokenizers raise exceptions of many types; the job goes on.
            raise ValueError(f"cannot be tokenized: {e}") from e
        if not tokens:
            raise ValueError("empty: no tokens")
        if len(tokens) <= self._size:
            return tokens, 0
        if not self._truncate:
            raise ValueError(f"too long: {len(tokens)} tokens, of at most {self._size}")
        kept = cut(self._tokenizer, tokens, self._size, self._shared, keep_last=self._keep_last)
        return kept, len(tokens) - len(kept)
