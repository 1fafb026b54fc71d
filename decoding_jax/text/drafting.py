"""A drafter for a batch: bound to the same inputs as the model that it drafts for."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Sequence
from typing import Any

from decoding_jax.base import Prompt
from decoding_jax.loop.values import describe
from decoding_jax.models import T5
from decoding_jax.strategies.speculative import PromptLookup
from decoding_jax.text.batch import encode_batch


def check_drafter(strategy: Callable[..., Any], drafter: Any) -> Any:
    """The drafter, of ``(model, tokenizer)`` the model.

    Raises:
      ValueError: for a strategy that takes a drafter and has none, or the other way round.
    """
    wanted = "drafter" in inspect.signature(strategy).parameters
    if wanted and drafter is None:
        raise ValueError("drafter: got None; this strategy takes a model or a drafter")
    if not wanted and drafter is not None:
        raise ValueError(f"drafter: got a {type(drafter).__name__}; this strategy takes none")
    if isinstance(drafter, (str, type)):
        raise ValueError(f"drafter: got {describe(drafter)}; takes a model, such as load gives")
    return drafter[0] if isinstance(drafter, tuple) else drafter


def bind_drafter(drafter: Any, model: Any, ids: Sequence[Sequence[int]], width: int) -> Any:
    """The drafter for one batch.

    Args:
      drafter: a T5 is bound to the inputs; a prompt lookup without a source copies from the
        inputs of a T5 too; anything else, None among it, serves as it is.
      model: the target, from ``load``.
      ids: B token lists.
      width: what all are padded to.
    """
    if isinstance(drafter, T5):
        return encode_batch(drafter, ids, width)[0]
    if isinstance(drafter, PromptLookup) and drafter.source is None and isinstance(model, T5):
        bound: Any = encode_batch(model, ids, width)[0]
        return dataclasses.replace(drafter, source=Prompt(bound.source, bound.source_length))
    return drafter
