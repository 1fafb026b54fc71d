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


@dataclasses.dataclass
class _Batch:
    """The B rows of a batch, and whose they are.

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

    @property
    def sources(self) -> list[int]:
        """A row in use for each place: its own, or where it is free, another one."""
        used = self.used.index(True)
        return [used if member is None else place for place, member in enumerate(self.places)]


class RefilledBatch:
    """B places for inputs, each of which is given to another input as soon as one has ended.

    Inputs are prefilled in groups of a fixed size, whose members are all of one width. As soon as a
    few places are free, members of a group are put there, and the others wait. Inputs of several
    widths can share the batch: the widest ones begin, and the batch is as wide as the widest input
    in it.

    Args:
      call: makes the call of the strategy.
      split: splits the arguments of rows.
      size: B, the number of places.
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
        size: int,
        group_size: int,
        least_free: int = 1,
        info: Sequence[str] = (),
        name: str = "rows",
    ):
        self._programs = RefillPrograms(call, size, info, name)
        self._split = split
        self._size = size
        self.group_size = group_size
        self._least_free = least_free
        self.batches = 0
        self.row_steps = RowSteps(0, 0)

    @property
    def compilations(self) -> int:
        """The number of widths that were compiled."""
        return self._programs.widths

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
            return self._programs.begin(self._split(make(members, width, self.group_size)), width)

        self._programs.compiling = compiling
        width_of = {m: width for width, members in by_width.items() for m in members}
        newcomers = Newcomers(by_width, self.group_size, begin)
        batch = None
        ended = None
        while newcomers or (batch is not None and any(batch.used)):
            if batch is None or (not any(batch.used) and newcomers.width < batch.width):
                batch = self._started(newcomers.prefill())
            self._fill(batch, newcomers)
            self._narrow(batch, max(width_of[m] for m in batch.places if m is not None))
            # The steps go on until the next inputs have places. After the last group, they stop
            # now and then, so that what has ended is not held back.
            wanted = self._wanted(newcomers) if newcomers else len(batch.free) + self.group_size
            batch.rows, result = self._programs.advance(
                batch.rows, batch.width, batch.shared, batch.used, min(wanted, self._size)
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

    def _started(self, group: Group) -> _Batch:
        """A batch of the width of a group, in which all places are free."""
        rows = self._programs.repeat(group)
        return _Batch(group.width, group.shared, rows, [None] * self._size)

    def _wanted(self, newcomers: Newcomers) -> int:
        """The number of free places at which the next newcomers are put into them."""
        return min(self._least_free, newcomers.left)

    def _fill(self, batch: _Batch, newcomers: Newcomers) -> None:
        """Puts newcomers into free places.

        The other members of their groups, and the copies that fill a group up, have no place.
        """
        free = batch.free
        while newcomers and len(free) >= self._wanted(newcomers):
            group, first, members = newcomers.take(min(len(free), newcomers.left))
            of_group = [self._size] * self.group_size
            for i, member in enumerate(members):
                batch.places[free[i]] = member
                of_group[first + i] = free[i]
            batch.rows = self._programs.insert(batch.rows, batch.width, group, of_group)
            free = free[len(members) :]

    def _narrow(self, batch: _Batch, needed: int) -> None:
        """Cuts a batch to the width that its inputs need."""
        if needed < batch.width:
            batch.rows = self._programs.narrow(batch.rows, batch.width, needed, batch.sources)
            batch.width = needed

    def _take(
        self, places: list[int | None], result: AdvanceResult
    ) -> tuple[list[int], DecodeOutput]:
        """The inputs that have ended and their output; their places become free."""
        self.row_steps = RowSteps(
            self.row_steps.taken + self._size * int(result.steps),
            self.row_steps.used + int(result.used),
        )
        taken = [i for i, member in enumerate(places) if member is not None and result.ended[i]]
        members = [member for i in taken if (member := places[i]) is not None]
        for place in taken:
            places[place] = None
        return members, jax.tree.map(lambda x: x[taken], result.output)
