"""The widths and lengths that inputs are padded to: a few, so that few shapes are compiled."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from typing import Any

import numpy as np

from decoding_jax import fields
from decoding_jax.models.shared_prefix import prefix_of

_NARROWEST = 16


def widths(
    max_input_length: int, buckets: Sequence[int] | None = None, shared: int = 0
) -> tuple[int, ...]:
    """Returns the widths that inputs are padded to, in ascending order.

    Args:
      max_input_length: the maximum number of tokens of an input. It is always the last width.
      buckets: the widths to use, in any order. Those of ``max_input_length`` and above are ignored.
        The default is the powers of two from 16.
      shared: the number of tokens that every input begins with, which is added to all widths.

    Returns:
      A tuple of different widths in tokens.

    Raises:
      ValueError: if a bucket is not an integer of at least 1.

    Example:
      >>> widths(100)
      (16, 32, 64, 100)
      >>> widths(100, buckets=[20, 60, 200])
      (20, 60, 100)
      >>> widths(100, shared=1000)
      (1016, 1032, 1064, 1100)
    """
    if buckets is None:
        buckets = [_NARROWEST << i for i in range(max_input_length.bit_length())]
    if not all(isinstance(width, int) and width >= 1 for width in buckets):
        raise fields.error("buckets", "widths of 1 and above", list(buckets))
    of_input = (*sorted({w for w in buckets if w < max_input_length}), max_input_length)
    return tuple(shared + width for width in of_input)


def by_width(lengths: Sequence[int], widths: Sequence[int]) -> dict[int, list[int]]:
    """Assigns every input to the narrowest bucket that holds it.

    The widest bucket comes first, so that a batch that does not fit into the device's memory fails
    at the start of a job. In a bucket the longest inputs come first: long inputs often have long
    outputs, and the last ones to begin should be short.

    Args:
      lengths: the length of each input in tokens; none exceeds the largest width.
      widths: the widths of the buckets, in ascending order.

    Returns:
      The numbers of the inputs by width.

    Example:
      >>> by_width([3, 20, 5, 4], widths=(16, 32))
      {32: [1], 16: [2, 3, 0]}
    """
    members: dict[int, list[int]] = {}
    for i in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        members.setdefault(min(w for w in widths if w >= lengths[i]), []).append(i)
    return members


def cheapest(
    longest: Sequence[int], widest: int, *, most: int, extra: int = 0, shared: int = 0
) -> tuple[int, ...]:
    """Chooses the widths with which batches of equal size have the fewest tokens, with padding.

    The choice is among rounded lengths, as of ``padded_width``. Each further width has to save a
    tenth of the tokens, since it is a further program.

    Args:
      longest: the length of the longest input of each batch, in tokens.
      widest: the largest width, which holds all inputs.
      most: the maximum number of widths.
      extra: the number of tokens that each input has besides.
      shared: the number of tokens that every input begins with; they are not counted.

    Returns:
      The widths in ascending order.

    Example:
      >>> cheapest([140, 90, 28, 25], widest=192, most=2)
      (32, 192)
      >>> cheapest([140, 130, 120, 20], widest=192, most=2, extra=500)
      (192,)
    """
    rounded = {shared + round_up(max(size - shared, 1), _NARROWEST) for size in longest}
    below = sorted(width for width in rounded if width < widest)
    choices = [(*some, widest) for number in range(most) for some in combinations(below, number)]

    def cost(widths: Sequence[int]) -> float:
        of_batches = np.array(widths)[np.searchsorted(widths, longest)]
        return float((extra + of_batches - shared).sum() / 0.9 ** len(widths))

    return min(choices, key=cost)


def finer(
    by_width: Mapping[int, Sequence[int]], lengths: Sequence[int], least: int
) -> dict[int, list[int]]:
    """Assigns inputs to narrower buckets where many of them fit.

    A bucket is divided at half of its width and at three quarters of it, if at least as many inputs
    as ``least`` are then of the narrower width.

    Args:
      by_width: the inputs of each width, by number, the widest first.
      lengths: the length of each input in tokens.
      least: the smallest number of inputs for which a narrower width is added.

    Returns:
      The numbers of the inputs by width, the widest first, each in the order of before.

    Example:
      >>> finer({16: [0, 1, 2, 3, 4]}, lengths=[14, 12, 8, 7, 3], least=2)
      {16: [0, 1], 8: [2, 3, 4]}
    """
    members: dict[int, list[int]] = {}
    for width, of_width in by_width.items():
        left, narrow = list(of_width), []
        for narrower in (-(-width // 2), -(-3 * width // 4)):
            fitting = [i for i in left if lengths[i] <= narrower < width]
            if len(fitting) >= least:
                narrow.append((narrower, fitting))
                left = [i for i in left if lengths[i] > narrower]
        for each, of_each in [(width, left), *reversed(narrow)]:
            members.setdefault(each, []).extend(of_each)
    return {width: members[width] for width in sorted(members, reverse=True) if members[width]}


def fewer(by_width: Mapping[int, Sequence[int]], least: int) -> dict[int, list[int]]:
    """Gives the inputs of a width that has fewer than ``least`` to the next larger width.

    Args:
      by_width: the inputs of each width, by number, the widest first.
      least: the smallest number of inputs for which a width below the largest is kept.

    Example:
      >>> fewer({64: [0], 32: [1, 2], 16: [3, 4, 5]}, least=3)
      {64: [0, 1, 2], 16: [3, 4, 5]}
    """
    members: dict[int, list[int]] = {}
    for width, of_width in by_width.items():
        if not members or len(of_width) >= least:
            members[width] = []
        members[min(members)].extend(of_width)
    return members


def round_up(size: int, least: int = 1) -> int:
    """The smallest of ``least`` times 1, 2, 3, 4, 6, 8, 12, 16, ... that is at least ``size``.

    Above ``2 * least``, the result is less than 1.5 times ``size``. Powers of two alone would be
    fewer shapes, but a step reads all slots of a cache: 129 new tokens of 16 rows took half as long
    again with 256 slots as with 192, on a CPU.

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
    tokens = prefix_of(model)
    return 0 if tokens is None else tokens.shape[0]


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
    width = shared + round_up(longest - shared, _NARROWEST)
    if max_positions is None:
        return width
    return max(longest, min(width, max_positions - max_new_tokens))


def rounded_length(max_new_tokens: int, prompt_size: int, models: Iterable[Any]) -> int:
    """The ``max_new_tokens`` that a program is compiled for, rounded up.

    ``stop.max_new_tokens`` limits rows to the exact number, which is not part of the program.

    Args:
      max_new_tokens: the maximum number of new tokens, before rounding.
      prompt_size: P, the padded length of the prompts.
      models: the models and drafters. If one has ``max_positions``, the result is not rounded
        beyond it.
    """
    if max_new_tokens < 1:  # the strategy raises the error
        return max_new_tokens
    length = round_up(max_new_tokens, _NARROWEST)
    for model in models:
        max_positions = getattr(model, "max_positions", None)
        if max_positions is not None:
            length = min(length, max_positions - prompt_size)
    return max(max_new_tokens, length)
