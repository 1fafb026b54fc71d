"""Drafters, which propose tokens for the target to verify."""

from __future__ import annotations

from decoding_jax.base import LanguageModel
from decoding_jax.strategies.speculative.drafters.base import Drafter, Guesser, Path, SupportsBind
from decoding_jax.strategies.speculative.drafters.bigram import Bigram, NextToken
from decoding_jax.strategies.speculative.drafters.language_model import ModelDrafter
from decoding_jax.strategies.speculative.drafters.prompt_lookup import PromptLookup


def as_drafter(drafter: LanguageModel | Drafter | Guesser) -> Drafter | Guesser:
    """A language model as a drafter; drafters as they are.

    Raises:
      ValueError: for anything else.
    """
    if isinstance(drafter, (Drafter, Guesser)):
        return drafter
    if hasattr(drafter, "prefill") and hasattr(drafter, "extend"):
        return ModelDrafter(drafter)
    raise ValueError(
        f"drafter: got a {type(drafter).__name__}; takes a language model or a drafter"
    )


__all__ = [
    "Bigram",
    "Drafter",
    "Guesser",
    "ModelDrafter",
    "NextToken",
    "Path",
    "PromptLookup",
    "SupportsBind",
    "as_drafter",
]
