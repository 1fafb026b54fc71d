"""A few sizes that shapes are rounded up to, so that few programs are compiled."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

import numpy as np

from decoding_jax.base import Stop

NARROWEST = 16


def round_up(size: int, least: int = 1) -> int:
    """The next of ``least`` times 1, 2, 3, 4, 6, 8, 12, 16, 24, ...: at most half as much again.

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


def padded_width(longest: int, max_new_tokens: int, max_positions: int | None) -> int:
    """What texts of at most ``longest`` tokens are padded to: one of a few sizes, or all the room.

    Example:
      >>> padded_width(20, 8, None), padded_width(20, 8, 30)
      (32, 23)
    """
    width = round_up(longest, NARROWEST)
    if max_positions is None:
        return width
    return max(longest, min(width, max_positions - max_new_tokens + 1))


def buffer_length(max_new_tokens: int, prompt_size: int, models: Iterable[Any]) -> int:
    """The ``max_new_tokens`` that a program is compiled for: one of a few sizes that fit.

    ``limited`` keeps the texts to the number that was asked for, which need not be compiled.

    Args:
      max_new_tokens: what was asked for.
      prompt_size: P.
      models: those that have ``max_positions`` hold no more than these.
    """
    if max_new_tokens < 1:  # the strategy says what is wrong with it
        return max_new_tokens
    length = round_up(max_new_tokens, NARROWEST)
    for model in models:
        most = getattr(model, "max_positions", None)
        if most is not None:
            length = min(length, most - prompt_size + 1)
    return max(max_new_tokens, length)


def limited(stop: Stop, max_new_tokens: int) -> Stop:
    """The stop conditions, with ``max_new_tokens`` at most as given.

    Example:
      >>> limited(Stop(max_new_tokens=[2, 9]), 5).max_new_tokens
      array([2, 5], dtype=int32)
    """
    most = max_new_tokens if stop.max_new_tokens is None else stop.max_new_tokens
    most = np.minimum(np.asarray(most), max_new_tokens).astype(np.int32)
    return dataclasses.replace(stop, max_new_tokens=most)
