"""Token lists as the arrays of a batch, and models and drafters that are bound to them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from decoding_jax.base import LanguageModel, Prompt
from decoding_jax.models.encoder_decoder import EncoderDecoder
from decoding_jax.strategies.speculative.drafters import bind_to_inputs


def encode_batch(
    model: EncoderDecoder | LanguageModel, ids: Sequence[Sequence[int]], width: int
) -> tuple[LanguageModel, Prompt]:
    """Pads B token lists, and makes the language model and the prompts to decode from.

    Args:
      model: an encoder-decoder, which is bound to the lists as its inputs; or a language model,
        whose prompts they are.
      ids: B non-empty token lists of at most ``width`` tokens.
      width: the length that all lists are padded to.

    Returns:
      The language model, and a prompt of B rows.

    Raises:
      ValueError: if a list is empty or longer than ``width``.
    """
    if isinstance(model, EncoderDecoder):
        # The ids are checked where they are, before they are moved: reading them back would wait
        # for what the device is busy with.
        on_host = _padded(ids, width)
        source, length = (jnp.asarray(x) for x in on_host)
        bound = dataclasses.replace(model.bind(*on_host), source=source, source_length=length)
        return bound, bound.start_prompt()
    return model, pad_tokens(ids, width)


def pad_tokens(ids: Sequence[Sequence[int]], width: int) -> Prompt:
    """Token lists as arrays: tokens int32 ``[B, width]``, right-padded, and lengths int32 ``[B]``.

    Raises:
      ValueError: if a list is empty or longer than ``width``.

    Example:
      >>> pad_tokens([[5, 6], [7]], 3).tokens.tolist()
      [[5, 6, 0], [7, 0, 0]]
    """
    return Prompt(*(jnp.asarray(x) for x in _padded(ids, width)))


def _padded(ids: Sequence[Sequence[int]], width: int) -> tuple[Any, Any]:
    """``pad_tokens``, as NumPy arrays."""
    tokens = np.zeros((len(ids), width), np.int32)
    length = np.asarray([len(x) for x in ids], np.int32)
    for i, row in enumerate(ids):
        if not 1 <= len(row) <= width:
            raise ValueError(f"ids: expected 1 to {width} tokens, got {len(row)} in row {i}")
        tokens[i, : len(row)] = row
    return tokens, length


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
