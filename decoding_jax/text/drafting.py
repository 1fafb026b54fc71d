"""The drafter of ``generate`` and ``stream``: its check, and its binding to a batch of texts."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from decoding_jax import fields
from decoding_jax.models.encoder_decoder import EncoderDecoder
from decoding_jax.strategies.speculative.drafters import bind_to_inputs
from decoding_jax.text.batch import pad_tokens


def check_drafter(strategy: Callable[..., Any], drafter: Any) -> Any:
    """Checks that a drafter was given if, and only if, the strategy takes one.

    Returns:
      The drafter; the model if ``drafter`` is a pair ``(model, tokenizer)``, as from ``load``.

    Raises:
      ValueError: if the strategy takes a drafter and got none, if it takes none and got one, or if
        the drafter is a string or a class.
    """
    takes_drafter = "drafter" in inspect.signature(strategy).parameters
    if takes_drafter and drafter is None:
        raise fields.error("drafter", "a model or a drafter for this strategy", None)
    if not takes_drafter and drafter is not None:
        raise ValueError(
            f"drafter: expected none for this strategy, got a {type(drafter).__name__}"
        )
    if isinstance(drafter, (str, type)):
        raise fields.error("drafter", "a model, such as load gives", drafter)
    return drafter[0] if isinstance(drafter, tuple) else drafter


def bind_drafter(drafter: Any, model: Any, ids: Sequence[Sequence[int]], width: int) -> Any:
    """The drafter for one batch of texts.

    An encoder-decoder is always bound to the texts, which are its inputs. Any other drafter that
    uses encoder inputs, such as a ``PromptLookup`` without a source, is bound to them if the target
    is an encoder-decoder. Other drafters, and None, are returned unchanged.

    Args:
      drafter: a drafter, a model from ``load``, or None.
      model: the target, from ``load``.
      ids: B token lists, none of them empty.
      width: the length that all lists are padded to.

    Raises:
      ValueError: if a list is empty or longer than ``width``.
    """
    if isinstance(drafter, EncoderDecoder) or (
        isinstance(model, EncoderDecoder) and drafter is not None
    ):
        return bind_to_inputs(drafter, *pad_tokens(ids, width))
    return drafter
