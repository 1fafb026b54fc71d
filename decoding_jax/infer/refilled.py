"""A batch that is refilled: inputs take the places of those that have ended."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp

from decoding_jax.base import Array, DecodeOutput
from decoding_jax.infer.progress import Stopwatch
from decoding_jax.infer.row_inputs import RowInputs, RowSteps, SplitInputs, keep_info
from decoding_jax.loop import refill
from decoding_jax.loop.refill import Call, Progress, Rows
from decoding_jax.ops.jit import jit
from decoding_jax.ops.mesh import spread_rows, to_host


class Group(NamedTuple):
    """Inputs that have been prefilled together.

    Attributes:
      members: the inputs, by number; at most as many as there are rows.
      shared: the arguments without those of the rows.
      rows: the rows of the inputs, filled up with copies of the first one.
    """

    members: Sequence[int]
    shared: SplitInputs
    rows: Rows


class RefilledBatch:
    """B places for inputs, each of which is given to another input as soon as one has ended.

    Inputs are prefilled in groups of a fixed size. A group waits until as many places are free.

    Args:
      call: makes the call of the strategy.
      split: splits the arguments of rows.
      size: B, the number of places.
      group_size: the number of inputs that are prefilled together, at most B.
      info: the names of the values of ``info`` that the output keeps.
      name: the name of the strategy, for the names of the compiled programs.

    Attributes:
      group_size: as above.
      batches: the number of groups so far.
      compilations: the number of widths that were compiled.
      row_steps: the steps so far.
    """

    def __init__(
        self,
        call: Callable[[RowInputs], Call],
        split: Callable[[RowInputs], SplitInputs],
        size: int,
        group_size: int,
        info: Sequence[str] = (),
        name: str = "rows",
    ):
        self._split = split
        self._size = size
        self.group_size = group_size
        self.batches = 0
        self.compilations = 0
        self.row_steps = RowSteps(0, 0)

        def begin(inputs: SplitInputs) -> Rows:
            return refill.begin(lambda given: call(inputs.of(given)), inputs.given)

        def insert(new: Rows, places: Array, *, rows: Rows) -> Rows:
            return refill.insert(rows, new, places)

        def advance(
            inputs: SplitInputs, used: Array, wanted: Array, *, rows: Rows
        ) -> tuple[Rows, Progress]:
            rows, progress = refill.advance(
                lambda given: call(inputs.of(given)), rows, used, wanted
            )
            return rows, progress._replace(output=keep_info(progress.output, info))

        def repeat(new: Rows) -> Rows:
            return refill.repeat(new, size)

        for function in (begin, insert, advance, repeat):
            function.__name__ = f"{function.__name__}_{name}"
        # The rows are updated in place.
        self._insert = jit(insert, (), donated=("rows",))
        self._advance = jit(advance, (), donated=("rows",))
        self._begin, self._repeat = jit(begin, ()), jit(repeat, ())

    def decode(
        self,
        count: int,
        make: Callable[[Sequence[int], int], RowInputs],
        compiling: Stopwatch | None,
    ) -> Iterator[tuple[Sequence[int], DecodeOutput]]:
        """Decodes inputs of one width, which are begun in their order.

        Args:
          count: the number of inputs.
          make: makes the arguments of the inputs with these numbers, in this number of rows.
          compiling: measures the time of compilation; None if the width has been compiled.

        Yields:
          The numbers of inputs that have ended, a few at a time, and their output.
        """
        if compiling is not None:
            with compiling:
                self._compile(self._split(make([0], self.group_size)))
        groups = self._begun(count, make)
        group = next(groups, None)
        if group is None:
            return
        shared, rows = group.shared, self._repeat(group.rows)
        places: list[int | None] = [None] * self._size
        ended = None
        while group is not None or any(member is not None for member in places):
            free = [place for place, member in enumerate(places) if member is None]
            while group is not None and len(group.members) <= len(free):
                taken, free = free[: len(group.members)], free[len(group.members) :]
                for place, member in zip(taken, group.members, strict=True):
                    places[place] = member
                rows = self._put(rows, group, taken)
                group = next(groups, None)
            # The steps go on until the next group has places. After the last group, they stop now
            # and then, so that what has ended is not held back.
            wanted = len(group.members) if group is not None else len(free) + self.group_size
            used = jnp.asarray([member is not None for member in places])
            rows, progress = self._advance(
                shared, used, jnp.int32(min(wanted, self._size)), rows=spread_rows(rows)
            )
            if ended is not None:  # While the device decodes, the caller uses what has ended.
                yield ended
            ended = self._take(places, to_host(progress))
        if ended is not None:
            yield ended

    def _compile(self, inputs: SplitInputs) -> None:
        """Compiles the programs for a group of inputs, and computes nothing that is kept."""
        self.compilations += 1
        new = self._begin(inputs)
        rows = self._put(self._repeat(new), Group([], inputs.without_rows(), new), [])
        unused = jnp.zeros(self._size, bool)
        self._advance(inputs.without_rows(), unused, jnp.int32(0), rows=spread_rows(rows))

    def _begun(
        self, count: int, make: Callable[[Sequence[int], int], RowInputs]
    ) -> Iterator[Group]:
        """Prefills inputs, one group after another."""
        for first in range(0, count, self.group_size):
            members = range(first, min(first + self.group_size, count))
            inputs = self._split(make(members, self.group_size))
            self.batches += 1
            yield Group(members, inputs.without_rows(), self._begin(inputs))

    def _put(self, rows: Rows, group: Group, places: Sequence[int]) -> Rows:
        """Inserts a group. Copies that fill it up have no place, and are dropped."""
        padding = [self._size] * (self.group_size - len(places))
        indices = jnp.asarray([*places, *padding], jnp.int32)
        return self._insert(group.rows, indices, rows=spread_rows(rows))

    def _take(self, places: list[int | None], progress: Progress) -> tuple[list[int], DecodeOutput]:
        """The inputs that have ended and their output; their places become free."""
        self.row_steps = RowSteps(
            self.row_steps.taken + self._size * int(progress.steps),
            self.row_steps.used + int(progress.used),
        )
        taken = [i for i, member in enumerate(places) if member is not None and progress.ended[i]]
        members = [member for i in taken if (member := places[i]) is not None]
        for place in taken:
            places[place] = None
        return members, jax.tree.map(lambda x: x[taken], progress.output)
