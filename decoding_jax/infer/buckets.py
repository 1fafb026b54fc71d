"""Buckets of input lengths: many inputs, few shapes to compile."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

NARROWEST = 16


class Batch(NamedTuple):
    """Inputs that are decoded together.

    Attributes:
      width: what their tokens are padded to.
      members: their places in the list of lengths.
    """

    width: int
    members: tuple[int, ...]


def widths(max_input_length: int, buckets: Sequence[int] | None = None) -> tuple[int, ...]:
    """The widths that inputs are padded to, ascending.

    Args:
      max_input_length: the most tokens of an input.
      buckets: widths of one's own, of which those below ``max_input_length`` are used; by
        default the powers of two from 16.

    Raises:
      ValueError: for a number below 1.

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
    """Every input in one batch of its bucket; the widest bucket first.

    Widest first, so that what does not fit into memory shows at once.

    Args:
      lengths: of the inputs, in tokens, none above the widest bucket.
      widths: of the buckets, ascending.
      batch_size: the most inputs of a batch.

    Example:
      >>> for batch in plan([3, 20, 5, 4], widths=(16, 32), batch_size=2):
      ...     print(batch)
      Batch(width=32, members=(1,))
      Batch(width=16, members=(0, 2))
      Batch(width=16, members=(3,))
    """
    by_width: dict[int, list[int]] = {}
    for i, length in enumerate(lengths):
        by_width.setdefault(min(w for w in widths if w >= length), []).append(i)
    return [
        Batch(width, tuple(by_width[width][first : first + batch_size]))
        for width in sorted(by_width, reverse=True)
        for first in range(0, len(by_width[width]), batch_size)
    ]
