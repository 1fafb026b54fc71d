"""Checks of models that speculate together."""

from __future__ import annotations

from decoding_jax.base import LanguageModel
from decoding_jax.strategies.speculative.drafters import Drafter, Guesser


def check_models(model: LanguageModel, drafter: Drafter | Guesser) -> None:
    """Refuses models that cannot work together.

    Raises:
      ValueError: for a target that is not ragged, or vocabularies that differ.
    """
    if not model.ragged:
        raise ValueError("model: expected one with ragged=True, got one whose rows advance in step")
    size = getattr(drafter, "vocab_size", model.vocab_size)
    if size != model.vocab_size:
        raise ValueError(
            f"drafter: expected the model's vocabulary of {model.vocab_size}, got one of {size}"
        )
