"""Inputs that wait for a place in a batch, and are prefilled in groups."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from decoding_jax.infer.row_inputs import SplitInputs
from decoding_jax.loop.refill import Rows


class Group(NamedTuple):
    """Inputs that have been prefilled together.

    Attributes:
      width: the width that they are padded to.
      shared: the arguments without those of the rows.
      rows: the rows of the inputs, filled up with copies of the first one.
    """

    width: int
    shared: SplitInputs
    rows: Rows


Begin = Callable[[Sequence[int], int], Group]
"""``(members, width) -> group``: prefills inputs, by number, at a width."""


class Newcomers:
    """Inputs without a place, in groups of one width each.

    A group is prefilled when its first member gets a place, or earlier by ``prefill``. No more than
    one group is held at a time. ``bool()`` says whether any input is left, and the other methods
    need one.

    Args:
      by_width: the inputs of each width, by number, in the order in which they get their places.
      size: the number of inputs of a group; the last group of a width may have fewer.
      begin: prefills a group.

    Example:
      >>> def begin(members, width):
      ...     return Group(width, (), ())
      >>> waiting = Newcomers({8: [4, 5, 6], 4: [7]}, 2, begin)
      >>> waiting.width, waiting.left
      (8, 2)
      >>> waiting.take(1)
      (Group(width=8, shared=(), rows=()), 0, [4])
      >>> [waiting.take(waiting.left)[2] for _ in range(3)], bool(waiting)
      ([[5], [6], [7]], False)
    """

    def __init__(self, by_width: Mapping[int, Sequence[int]], size: int, begin: Begin):
        self._waiting = deque(
            (width, members[first : first + size])
            for width, members in by_width.items()
            for first in range(0, len(members), size)
        )
        self._begin = begin
        self._group: Group | None = None
        self._taken = 0  # the number of members of the first group that have places

    def __bool__(self) -> bool:
        return bool(self._waiting)

    @property
    def width(self) -> int:
        """The width of the next group."""
        return self._waiting[0][0]

    @property
    def left(self) -> int:
        """The number of members of the next group that have no place yet."""
        return len(self._waiting[0][1]) - self._taken

    def prefill(self) -> Group:
        """Prefills the next group, unless it has been before."""
        if self._group is None:
            width, members = self._waiting[0]
            self._group = self._begin(members, width)
        return self._group

    def take(self, count: int) -> tuple[Group, int, Sequence[int]]:
        """Gives places to members of the next group.

        Args:
          count: their number, from 1 to ``left``.

        Returns:
          The group, the number of its members before these, and these.
        """
        group, first = self.prefill(), self._taken
        taken = self._waiting[0][1][first : first + count]
        self._taken += count
        if self.left == 0:
            self._waiting.popleft()
            self._group, self._taken = None, 0
        return group, first, taken
