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
        raise ValueError(
            "model: got one whose rows advance in step (ragged=False); takes one with ragged=True"
        )
    size = getattr(drafter, "vocab_size", model.vocab_size)
    if size != model.vocab_size:
        raise ValueError(
            f"drafter: got a vocabulary of {size}; takes the model's, {model.vocab_size}"
        )
