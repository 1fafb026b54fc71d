"""The sizes that shapes are rounded up to, so that few programs are compiled."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

import numpy as np

from decoding_jax.base import Stop
from decoding_jax.models.shared_prefix import SharedPrefixModel

MIN_WIDTH = 16


def round_up(size: int, least: int = 1) -> int:
    """The smallest of ``least`` times 1, 2, 3, 4, 6, 8, 12, 16, ... that is at least ``size``.

    Above ``2 * least``, the result is less than 1.5 times ``size``.

    Example:
      >>> [round_up(size) for size in (1, 3, 5, 9, 13)]
      [1, 3, 6, 12, 16]
      >>> [round_up(size, least=16) for size in (1, 17, 33)]
      [16, 32, 48]
    """
    power = least
    while 2 * power <= size:
        power *= 2
    if size <= power:
        return power
    middle = 3 * power // 2
    return middle if power > least and size <= middle else 2 * power


def shared_size(model: Any) -> int:
    """F, the number of tokens that all prompts of a model begin with."""
    return model.tokens.shape[0] if isinstance(model, SharedPrefixModel) else 0


def padded_width(
    longest: int, max_new_tokens: int, max_positions: int | None, shared: int = 0
) -> int:
    """The width that texts of at most ``longest`` tokens are padded to.

    It is rounded up, but to no more than ``max_positions`` leaves room for. If texts begin with the
    same ``shared`` tokens, only the number of the other tokens is rounded.

    Args:
      longest: the number of tokens of the longest text.
      max_new_tokens: the maximum number of new tokens.
      max_positions: the maximum length of the model, or None.
      shared: the number of shared tokens, ``shared_size`` of the model.

    Example:
      >>> padded_width(20, 8, None), padded_width(20, 8, 30), padded_width(1020, 8, None, 1000)
      (32, 22, 1032)
    """
    width = shared + round_up(longest - shared, MIN_WIDTH)
    if max_positions is None:
        return width
    return max(longest, min(width, max_positions - max_new_tokens))


def rounded_length(max_new_tokens: int, prompt_size: int, models: Iterable[Any]) -> int:
    """The ``max_new_tokens`` that a program is compiled for, rounded up.

    ``limited`` limits the texts to the exact number, which is not part of the program.

    Args:
      max_new_tokens: the maximum number of new tokens, before rounding.
      prompt_size: P, the padded length of the prompts.
      models: the models and drafters. If one has ``max_positions``, the result is not rounded
        beyond it.
    """
    if max_new_tokens < 1:  # the strategy raises the error
        return max_new_tokens
    length = round_up(max_new_tokens, MIN_WIDTH)
    for model in models:
        max_positions = getattr(model, "max_positions", None)
        if max_positions is not None:
            length = min(length, max_positions - prompt_size)
    return max(max_new_tokens, length)


def limited(stop: Stop, max_new_tokens: Any) -> Stop:
    """The stop conditions, with their ``max_new_tokens`` limited to this one, or one for each text.

    Example:
      >>> limited(Stop(max_new_tokens=[2, 9]), 5).max_new_tokens
      array([2, 5], dtype=int32)
    """
    if len(set(np.ravel(max_new_tokens).tolist())) == 1:
        max_new_tokens = np.ravel(max_new_tokens)[0]
    limit = max_new_tokens if stop.max_new_tokens is None else stop.max_new_tokens
    limit = np.minimum(np.asarray(limit), max_new_tokens).astype(np.int32)
    return dataclasses.replace(stop, max_new_tokens=limit)
