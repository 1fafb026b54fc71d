"""Drafters, which propose tokens for the target to verify."""

from __future__ import annotations

from typing import Any

from decoding_jax.base import Array, LanguageModel
from decoding_jax.strategies.speculative.drafters.assistant import Assistant, AssistantHead
from decoding_jax.strategies.speculative.drafters.base import (
    Drafter,
    FeatureDrafter,
    Guesser,
    KeyDrafter,
    Path,
    SupportsBind,
    TreeDrafter,
)
from decoding_jax.strategies.speculative.drafters.bigram import Bigram, NextToken
from decoding_jax.strategies.speculative.drafters.dflash import BlockHead, DFlash
from decoding_jax.strategies.speculative.drafters.eagle import DraftHead, Eagle
from decoding_jax.strategies.speculative.drafters.language_model import ModelDrafter
from decoding_jax.strategies.speculative.drafters.multi_token import (
    MultiTokenPrediction,
    PredictionBlock,
)
from decoding_jax.strategies.speculative.drafters.prompt_lookup import PromptLookup
from decoding_jax.strategies.speculative.drafters.suffix import Corpus, SuffixDrafter


def as_drafter(drafter: LanguageModel | Drafter | Guesser) -> Drafter | Guesser:
    """Wraps a language model as a drafter; a drafter is returned unchanged.

    Raises:
      ValueError: for anything else.
    """
    if isinstance(drafter, (Drafter, Guesser)):
        return drafter
    if hasattr(drafter, "prefill") and hasattr(drafter, "extend"):
        return ModelDrafter(drafter)
    raise ValueError(
        f"drafter: expected a language model or a drafter, got a {type(drafter).__name__}"
    )


def bind_to_inputs(drafter: Any, tokens: Array, length: Array) -> Any:
    """Binds a drafter to encoder inputs; one that does not use them is returned unchanged.

    Drafters with ``bind`` use them, such as T5 and ``PromptLookup``; see ``SupportsBind``.

    Args:
      drafter: a drafter, a language model or a T5.
      tokens: int32 ``[B, P]``, right-padded.
      length: int32 ``[B]``.

    Example:
      >>> import jax.numpy as jnp
      >>> tokens, length = jnp.array([[7, 8, 9]]), jnp.array([3])
      >>> bind_to_inputs(PromptLookup(), tokens, length).source.length
      Array([3], dtype=int32)
      >>> bind_to_inputs("draft", tokens, length)
      'draft'
    """
    return drafter.bind(tokens, length) if isinstance(drafter, SupportsBind) else drafter


__all__ = [
    "Assistant",
    "AssistantHead",
    "Bigram",
    "BlockHead",
    "Corpus",
    "DFlash",
    "DraftHead",
    "Drafter",
    "Eagle",
    "FeatureDrafter",
    "Guesser",
    "KeyDrafter",
    "ModelDrafter",
    "MultiTokenPrediction",
    "NextToken",
    "Path",
    "PredictionBlock",
    "PromptLookup",
    "SuffixDrafter",
    "SupportsBind",
    "TreeDrafter",
    "as_drafter",
    "bind_to_inputs",
]
