"""A batch that is refilled: inputs take the places of those that have ended."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from decoding_jax.base import Array, DecodeOutput
from decoding_jax.infer.progress import Stopwatch
from decoding_jax.infer.row_inputs import MakeRows, RowInputs, RowSteps, SplitInputs, keep_info
from decoding_jax.loop import refill
from decoding_jax.loop.refill import Call, Progress, Rows
from decoding_jax.ops.jit import jit
from decoding_jax.ops.mesh import spread_rows, to_host


class Group(NamedTuple):
    """Inputs that have been prefilled together.

    Attributes:
      width: the width that they are padded to.
      members: the inputs, by number; at most as many as there are rows.
      shared: the arguments without those of the rows.
      rows: the rows of the inputs, filled up with copies of the first one.
    """

    width: int
    members: Sequence[int]
    shared: SplitInputs
    rows: Rows


class RefilledBatch:
    """B places for inputs, each of which is given to another input as soon as one has ended.

    Inputs are prefilled in groups of a fixed size, whose members are all of one width. They are put
    into free places as soon as half a group fits in. Inputs of several widths can share the batch:
    the widest ones begin, and the batch is as wide as the widest input in it.

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
        self._least_free = max(1, group_size // 2)
        self.batches = 0
        self.row_steps = RowSteps(0, 0)
        self._begun_shapes: dict[int, Any] = {}
        self._called: set[tuple[Any, ...]] = set()

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

        def narrow(rows: Rows, source: Array, *, width: int) -> Rows:
            return refill.narrow(rows, source, self._begun_shapes[width])

        for function in (begin, insert, advance, repeat, narrow):
            function.__name__ = f"{function.__name__}_{name}"
        # The rows are updated in place.
        self._insert = jit(insert, (), donated=("rows",))
        self._advance = jit(advance, (), donated=("rows",))
        self._begin, self._repeat = jit(begin, ()), jit(repeat, ())
        self._narrow = jit(narrow, ("width",))

    @property
    def compilations(self) -> int:
        """The number of widths that were compiled."""
        return len(self._begun_shapes)

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
        width_of = {m: width for width, members in by_width.items() for m in members}
        groups = self._begun(by_width, make, compiling)
        group = next(groups, None)
        if group is None:
            return
        width, shared, rows = group.width, group.shared, self._repeat(group.rows)
        taken = 0  # the number of members of the group that have places
        places: list[int | None] = [None] * self._size
        ended = None
        while group is not None or any(member is not None for member in places):
            free = [place for place, member in enumerate(places) if member is None]
            if group is not None and len(free) == self._size and group.width < width:
                width, shared, rows = group.width, group.shared, self._repeat(group.rows)
            while group is not None and len(free) >= self._wanted(group, taken):
                count = min(len(free), len(group.members) - taken)
                for i, place in enumerate(free[:count]):
                    places[place] = group.members[taken + i]
                with self._first(compiling, "insert", width, group.width):
                    rows = self._put(rows, group, taken, free[:count])
                taken, free = taken + count, free[count:]
                if taken == len(group.members):
                    group, taken = next(groups, None), 0
            needed = max(width_of[member] for member in places if member is not None)
            if needed < width:
                source = jnp.asarray(_sources(places), jnp.int32)
                with self._first(compiling, "narrow", width, needed):
                    rows = self._narrow(spread_rows(rows), source, width=needed)
                width = needed
            # The steps go on until the next inputs have places. After the last group, they stop
            # now and then, so that what has ended is not held back.
            wanted = len(free) + self.group_size
            if group is not None:
                wanted = self._wanted(group, taken)
            used = jnp.asarray([member is not None for member in places])
            with self._first(compiling, "advance", width):
                rows, progress = self._advance(
                    shared, used, jnp.int32(min(wanted, self._size)), rows=spread_rows(rows)
                )
            if ended is not None:  # While the device decodes, the caller uses what has ended.
                yield ended
            ended = self._take(places, to_host(progress))
        if ended is not None:
            yield ended

    def _wanted(self, group: Group, taken: int) -> int:
        """The number of free places at which the next members of a group are put into them."""
        return min(self._least_free, len(group.members) - taken)

    def _first(self, compiling: Stopwatch, *program: Any) -> contextlib.AbstractContextManager:
        """Measures the first call of a program for its shapes, which compiles it."""
        if program in self._called:
            return contextlib.nullcontext()
        self._called.add(program)
        return compiling

    def _begun(
        self, by_width: Mapping[int, Sequence[int]], make: MakeRows, compiling: Stopwatch
    ) -> Iterator[Group]:
        """Prefills inputs, one group after another."""
        for width, members in by_width.items():
            for first in range(0, len(members), self.group_size):
                of_group = members[first : first + self.group_size]
                inputs = self._split(make(of_group, width, self.group_size))
                with self._first(compiling, "begin", width):
                    rows = self._begin(inputs)
                if width not in self._begun_shapes:
                    self._begun_shapes[width] = jax.eval_shape(lambda x: x, rows)
                self.batches += 1
                yield Group(width, of_group, inputs.without_rows(), rows)

    def _put(self, rows: Rows, group: Group, first: int, places: Sequence[int]) -> Rows:
        """Puts the members of a group from number ``first`` on into places.

        The other members, and the copies that fill the group up, have no place and are dropped.
        """
        indices = [self._size] * self.group_size
        indices[first : first + len(places)] = places
        return self._insert(group.rows, jnp.asarray(indices, jnp.int32), rows=spread_rows(rows))

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


def _sources(places: Sequence[int | None]) -> list[int]:
    """The row that each place takes over: its own, or where it is free, that of an input."""
    used = next(place for place, member in enumerate(places) if member is not None)
    return [used if member is None else place for place, member in enumerate(places)]
