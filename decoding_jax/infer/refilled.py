"""A batch that is refilled: inputs take the places of those that have ended."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence

import jax

from decoding_jax.base import DecodeOutput
from decoding_jax.infer.newcomers import Group, Newcomers
from decoding_jax.infer.progress import Stopwatch
from decoding_jax.infer.refill_programs import RefillPrograms
from decoding_jax.infer.row_inputs import MakeRows, RowInputs, RowSteps, SplitInputs
from decoding_jax.loop.refill import AdvanceResult, Call, Rows
from decoding_jax.ops.mesh import to_host

_FEWEST_ROWS = 4  # A step of fewer hardly takes less time.


def row_counts(batch_size: int, spread: int, *, fewer: bool = True) -> list[int]:
    """The numbers of rows that a batch may have: all, a half and a quarter, in descending order.

    Args:
      batch_size: the number of rows of a whole batch.
      spread: the number of devices that rows are spread over, of which each number is a multiple.
      fewer: whether there are others than the whole.

    Example:
      >>> row_counts(32, 1), row_counts(7, 1), row_counts(4, 1), row_counts(24, 8)
      ([32, 16, 8], [7, 4], [4], [24, 16, 8])
    """
    parts = {-(-batch_size // (n * spread)) * spread for n in (2, 4)}
    counts = {n for n in parts if fewer and _FEWEST_ROWS <= n < batch_size}
    return [batch_size, *sorted(counts, reverse=True)]


@dataclasses.dataclass
class _Batch:
    """The rows of a batch, and whose they are.

    Attributes:
      width: the width that the rows are padded to.
      shared: the arguments without those of the rows.
      rows: the rows.
      places: the input of each row, by number, or None where the row is free.
    """

    width: int
    shared: SplitInputs
    rows: Rows
    places: list[int | None]

    @property
    def used(self) -> list[bool]:
        """Which rows are in use."""
        return [member is not None for member in self.places]

    @property
    def free(self) -> list[int]:
        """The rows that are not in use."""
        return [place for place, member in enumerate(self.places) if member is None]


class RefilledBatch:
    """B places for inputs, each of which is given to another input as soon as one has ended.

    Inputs are prefilled in groups of a fixed size, whose members are all of one width. As soon as a
    few places are free, members of a group are put there, and the others wait. Inputs of several
    widths can share the batch: the widest ones begin, and the batch is as wide as the widest input
    in it. Once no input waits, the batch gets fewer places as its last inputs end.

    Args:
      call: makes the call of the strategy.
      split: splits the arguments of rows.
      announce: called with the number of rows and the width of each program, before its first use.
      sizes: B, the number of places, and smaller numbers of places, in descending order.
      group_size: the number of inputs that are prefilled together, at most B.
      least_free: the number of free places that the steps go on until, before members of a group
        are put there; or the number of members left, if that is smaller.
      info: the names of the values of ``info`` that the output keeps.
      name: the name of the strategy, for the names of the compiled programs.

    Attributes:
      group_size: as above.
      batches: the number of groups so far.
      row_steps: the steps so far.
    """

    def __init__(
        self,
        call: Callable[[RowInputs], Call],
        split: Callable[[RowInputs], SplitInputs],
        announce: Callable[[int, int], None],
        sizes: Sequence[int],
        group_size: int,
        least_free: int = 1,
        info: Sequence[str] = (),
        name: str = "rows",
    ):
        self._programs = RefillPrograms(call, info, name)
        self._split = split
        self._announce = announce
        self._sizes = sizes
        self.group_size = group_size
        self._least_free = least_free
        self.batches = 0
        self.row_steps = RowSteps()

    def decode(
        self, by_width: Mapping[int, Sequence[int]], make: MakeRows, compiling: Stopwatch
    ) -> Iterator[tuple[Sequence[int], DecodeOutput]]:
        """Decodes inputs, which are begun in their order.

        Args:
          by_width: the inputs of each width, by number, the widest first.
          make: makes the arguments of inputs.
          compiling: measures the time of compilation.

        Yields:
          The numbers of inputs that have ended, a few at a time, and their output.
        """

        def begin(members: Sequence[int], width: int) -> Group:
            self.batches += 1
            self._announce(size, width)
            return self._programs.begin(self._split(make(members, width, self.group_size)), width)

        self._programs.compiling = compiling
        size = self._fitting(sum(map(len, by_width.values())))
        width_of = {m: width for width, members in by_width.items() for m in members}
        newcomers = Newcomers(by_width, self.group_size, begin)
        batch = None
        ended = None
        while newcomers or (batch is not None and any(batch.used)):
            if batch is None or (not any(batch.used) and newcomers.width < batch.width):
                batch = self._started(newcomers.prefill(), size)
            self._fill(batch, newcomers)
            needed = size if newcomers else self._fitting(sum(batch.used))
            self._shrink(batch, needed, max(width_of[m] for m in batch.places if m is not None))
            wanted = self._wanted(newcomers) if newcomers else self._wanted_last(batch)
            batch.rows, result = self._programs.advance(
                batch.rows, batch.width, batch.shared, batch.used, wanted
            )
            # While the device decodes, the next group is made, and the caller uses what has ended.
            # Programs of several processes run one at a time (see ``ops.mesh.put``).
            if newcomers and result.steps.is_fully_addressable:
                newcomers.prefill()
            if ended is not None:
                yield ended
            ended = self._take(batch.places, to_host(result))
        if ended is not None:
            yield ended

    def _fitting(self, count: int) -> int:
        """The smallest number of places for so many inputs; B if there are more."""
        return min((n for n in self._sizes if n >= count), default=self._sizes[0])

    def _started(self, group: Group, size: int) -> _Batch:
        """A batch of the width of a group, in which all places are free."""
        rows = self._programs.repeat(group, size)
        return _Batch(group.width, group.shared, rows, [None] * size)

    def _wanted(self, newcomers: Newcomers) -> int:
        """The number of free places at which the next newcomers are put into them."""
        return min(self._least_free, newcomers.left)

    def _wanted_last(self, batch: _Batch) -> int:
        """The number of free places at which the steps stop once no input waits.

        They stop where a smaller batch is enough, and now and then, so that what has ended is not
        held back.
        """
        smaller = max((n for n in self._sizes if n < len(batch.places)), default=0)
        return min(len(batch.free) + self.group_size, len(batch.places) - smaller)

    def _fill(self, batch: _Batch, newcomers: Newcomers) -> None:
        """Puts newcomers into free places.

        The other members of their groups, and the copies that fill a group up, have no place.
        """
        free = batch.free
        while newcomers and len(free) >= self._wanted(newcomers):
            group, first, members = newcomers.take(min(len(free), newcomers.left))
            of_group = [len(batch.places)] * self.group_size
            for i, member in enumerate(members):
                batch.places[free[i]] = member
                of_group[first + i] = free[i]
            batch.rows = self._programs.insert(
                batch.rows, len(batch.places), batch.width, group, of_group
            )
            free = free[len(members) :]

    def _shrink(self, batch: _Batch, size: int, width: int) -> None:
        """Cuts a batch to the number of places and to the width that its inputs need."""
        if size == len(batch.places) and width == batch.width:
            return
        self._announce(size, width)
        used = [place for place, member in enumerate(batch.places) if member is not None]
        # Free places hold any valid row.
        sources = [*used, *[used[0]] * (size - len(used))]
        batch.rows = self._programs.move(batch.rows, sources, width)
        batch.places = [batch.places[i] for i in used] + [None] * (size - len(used))
        batch.width = width

    def _take(
        self, places: list[int | None], result: AdvanceResult
    ) -> tuple[list[int], DecodeOutput]:
        """The inputs that have ended and their output; their places become free."""
        steps = int(result.steps)
        made = RowSteps(steps, len(places) * steps, int(result.used))
        self.row_steps = self.row_steps.plus(made)
        taken = [i for i, member in enumerate(places) if member is not None and result.ended[i]]
        members = [member for i in taken if (member := places[i]) is not None]
        for place in taken:
            places[place] = None
        return members, jax.tree.map(lambda x: x[taken], result.output)
