"""Groups inputs into buckets of padded lengths, so that few shapes are compiled."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

NARROWEST = 16


class Batch(NamedTuple):
    """Inputs that are decoded together.

    Attributes:
      width: the length in tokens that the inputs are padded to.
      members: the indices of the inputs in the list of lengths that ``plan`` was given.
    """

    width: int
    members: tuple[int, ...]


def widths(max_input_length: int, buckets: Sequence[int] | None = None) -> tuple[int, ...]:
    """Returns the widths that inputs are padded to, in ascending order.

    Args:
      max_input_length: the maximum number of tokens of an input. It is always the last width.
      buckets: the widths to use, in any order. Those of ``max_input_length`` and above are ignored.
        The default is the powers of two from 16.

    Returns:
      A tuple of different widths in tokens.

    Raises:
      ValueError: if a bucket is not an integer of at least 1.

    Example:
      >>> widths(100)
      (16, 32, 64, 100)
      >>> widths(100, buckets=[20, 60, 200])
      (20, 60, 100)
    """
    if buckets is None:
        buckets = [NARROWEST << i for i in range(max_input_length.bit_length())]
    if not all(isinstance(width, int) and width >= 1 for width in buckets):
        raise ValueError(f"buckets: got {buckets}; takes lengths of 1 and above")
    return (*sorted({w for w in buckets if w < max_input_length}), max_input_length)


def plan(lengths: Sequence[int], widths: Sequence[int], batch_size: int) -> list[Batch]:
    """Assigns every input to one batch of the narrowest bucket that holds it.

    The widest bucket comes first, so that a batch that does not fit into the device's memory fails
    at the start of a job.

    Args:
      lengths: the length of each input in tokens; none exceeds the largest width.
      widths: the widths of the buckets, in ascending order.
      batch_size: the maximum number of inputs of a batch.

    Returns:
      The batches, in the order in which they are decoded.

    Example:
      >>> for batch in plan([3, 20, 5, 4], widths=(16, 32), batch_size=2):
      ...     print(batch)
      Batch(width=32, members=(1,))
      Batch(width=16, members=(0, 2))
      Batch(width=16, members=(3,))
    """
    members_of_width: dict[int, list[int]] = {}
    for i, length in enumerate(lengths):
        members_of_width.setdefault(min(w for w in widths if w >= length), []).append(i)
    return [
        Batch(width, tuple(members_of_width[width][start : start + batch_size]))
        for width in sorted(members_of_width, reverse=True)
        for start in range(0, len(members_of_width[width]), batch_size)
    ]
