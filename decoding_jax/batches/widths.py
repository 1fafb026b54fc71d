"""The widths that inputs are padded to: a few, so that few shapes are compiled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from decoding_jax import fields

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


def finer(
    by_width: Mapping[int, Sequence[int]], lengths: Sequence[int], least: int
) -> dict[int, list[int]]:
    """Assigns inputs to narrower buckets where many of them fit.

    A bucket is divided at half of its width and at three quarters of it, if at least as many inputs
    as ``least`` are then of the narrower width.

    Args:
      by_width: the inputs of each width, by number, the widest first.
      lengths: the length of each input in tokens.
      least: the number of inputs that a further width is worth.

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
