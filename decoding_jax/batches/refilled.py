"""A batch that is refilled: inputs take the places of those that have ended."""

from __future__ import annotations

import dataclasses
import functools
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from decoding_jax.base import Array, DecodeOutput
from decoding_jax.batches.compilations import Compilations
from decoding_jax.batches.row_inputs import MakeRows, RowInputs, SplitInputs
from decoding_jax.loop import refill
from decoding_jax.ops.jit import jit
from decoding_jax.sharding.meshes import spread_rows, to_host

_FEWEST_ROWS = 4  # A step of fewer hardly takes less time.


class RowSteps(NamedTuple):
    """Steps of a batch, and their sums over the rows that it has at each of them.

    Attributes:
      steps: the number of steps.
      taken: the steps of all rows, also of idle ones.
      used: those that a row took before its input had ended.
    """

    steps: int = 0
    taken: int = 0
    used: int = 0

    def plus(self, more: RowSteps) -> RowSteps:
        """The sum of two."""
        return RowSteps(*(a + b for a, b in zip(self, more, strict=True)))

    @property
    def waste(self) -> float | None:
        """The part in which a row had ended or held no input; None if no step was taken.

        This is the ``waste`` of ``summary.json`` and of the benchmark of the batch job.

        Example:
          >>> RowSteps(100, taken=8 * 100, used=700).waste
          0.125
        """
        return 1 - self.used / self.taken if self.taken else None


def row_counts(batch_size: int, spread: int, *, fewer: bool = True) -> list[int]:
    """The numbers of rows that a batch may have: all and, if ``fewer``, a half and a quarter.

    Each is a multiple of ``spread``, the number of devices that rows are spread over.

    Example:
      >>> row_counts(32, 1), row_counts(7, 1), row_counts(4, 1), row_counts(24, 8)
      ([32, 16, 8], [7, 4], [4], [24, 16, 8])
    """
    parts = {-(-batch_size // (n * spread)) * spread for n in (2, 4)}
    counts = {n for n in parts if fewer and _FEWEST_ROWS <= n < batch_size}
    return [batch_size, *sorted(counts, reverse=True)]


@dataclasses.dataclass
class _Batch:
    """The rows of a batch, and whose they are."""

    width: int  # The width that the rows are padded to.
    shared: SplitInputs  # The arguments without those of the rows.
    rows: refill.Rows
    places: list[int | None]  # The input of each row, by number, or None where the row is free.

    @property
    def used(self) -> list[bool]:
        return [member is not None for member in self.places]

    @property
    def free(self) -> list[int]:
        return [place for place, member in enumerate(self.places) if member is None]


class RefilledBatch:
    """B places for inputs, each of which is given to another input as soon as one has ended.

    Inputs are prefilled in groups of a fixed size, whose members are all of one width. As soon as a
    few places are free, members of a group are put there, and the others wait. Inputs of several
    widths can share the batch: the widest ones begin, and the batch is as wide as the widest input
    in it. Once no input waits, the batch gets fewer places as its last inputs end.

    Args:
      split: splits the arguments of rows.
      compilations: what has been compiled.
      sizes: B, the number of places, and smaller numbers of places, in descending order.
      group_size: the number of inputs that are prefilled together, at most B.
      least_free: the steps stop once so many places are free, or as many as the group has members
        left, and members of the group are put there.
      name: the name of the strategy, for the names of the compiled programs.

    Attributes:
      group_size: as above.
      batches: the number of groups so far.
      row_steps: the steps so far.
    """

    def __init__(
        self,
        split: Callable[[RowInputs], SplitInputs],
        compilations: Compilations,
        sizes: Sequence[int],
        group_size: int,
        least_free: int = 1,
        name: str = "rows",
    ):
        self._programs = Programs(compilations, name)
        self._split = split
        self._compilations = compilations
        self._sizes = sizes
        self.group_size = group_size
        self._least_free = least_free
        self.batches = 0
        self.row_steps = RowSteps()

    def decode(
        self, by_width: Mapping[int, Sequence[int]], make: MakeRows
    ) -> Iterator[tuple[Sequence[int], DecodeOutput]]:
        """Decodes inputs, which are begun in their order.

        Args:
          by_width: the inputs of each width, by number, the widest first.
          make: makes the arguments of inputs.

        Yields:
          The numbers of inputs that have ended, a few at a time, and their output.
        """

        def begin(members: Sequence[int], width: int) -> Group:
            self.batches += 1
            self._compilations.announce(size, width)
            return self._programs.begin(self._split(make(members, width, self.group_size)), width)

        size = self._fitting(sum(map(len, by_width.values())))
        width_of = {m: width for width, members in by_width.items() for m in members}
        newcomers = Newcomers(by_width, self.group_size, begin)
        batch = None
        ended = None
        while newcomers or (batch is not None and any(batch.used)):
            if batch is None or (not any(batch.used) and newcomers.width < batch.width):
                group = newcomers.prefill()
                rows = self._programs.repeat(group, size)
                batch = _Batch(group.width, group.shared, rows, [None] * size)
            self._fill(batch, newcomers)
            needed = size if newcomers else self._fitting(sum(batch.used))
            self._shrink(batch, needed, max(width_of[m] for m in batch.places if m is not None))
            wanted = self._wanted(newcomers) if newcomers else self._wanted_last(batch)
            batch.rows, result = self._programs.advance(
                batch.rows, batch.width, batch.shared, batch.used, wanted
            )
            # While the device decodes, the next group is made, and the caller uses what has ended.
            # Programs of several processes run one at a time (see ``sharding.meshes.put``).
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
        self._compilations.announce(size, width)
        used = [place for place, member in enumerate(batch.places) if member is not None]
        # Free places hold any valid row.
        sources = [*used, *[used[0]] * (size - len(used))]
        batch.rows = self._programs.move(batch.rows, sources, width)
        batch.places = [batch.places[i] for i in used] + [None] * (size - len(used))
        batch.width = width

    def _take(
        self, places: list[int | None], result: refill.AdvanceResult
    ) -> tuple[list[int], DecodeOutput]:
        """The inputs that have ended and their output; their places become free."""
        steps = int(result.steps)
        made = RowSteps(steps, len(places) * steps, int(result.used))
        self.row_steps = self.row_steps.plus(made)
        taken = [i for i, member in enumerate(places) if member is not None and result.ended[i]]
        members = [member for i in taken if (member := places[i]) is not None]
        for place in taken:
            places[place] = None
        return members, jax.tree.map(lambda x: x[taken] if x.ndim else x, result.output)


class Group(NamedTuple):
    """Inputs that have been prefilled together."""

    width: int  # The width that they are padded to.
    shared: SplitInputs  # The arguments without those of the rows.
    rows: refill.Rows  # The rows of the inputs, filled up with copies of the first one.


class Newcomers:
    """Inputs without a place, in groups of one width each.

    A group is prefilled when its first member gets a place, or earlier by ``prefill``. No more than
    one group is held at a time. ``bool()`` says whether any input is left, and the other methods
    need one.

    Args:
      by_width: the inputs of each width, by number, in the order in which they get their places.
      size: the number of inputs of a group; the last group of a width may have fewer.
      begin: ``(members, width) -> group``: prefills inputs, by number, at a width.

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

    def __init__(
        self,
        by_width: Mapping[int, Sequence[int]],
        size: int,
        begin: Callable[[Sequence[int], int], Group],
    ):
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
        """Gives places to ``count`` members of the next group, from 1 to ``left``.

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


class _Compiled(NamedTuple):
    """The functions of ``loop.refill``, compiled. The strategy is an argument of the programs."""

    begin: Any
    insert: Any
    advance: Any
    repeat: Any
    move: Any


@functools.cache
def _compiled(name: str) -> _Compiled:
    """The programs of strategies of a name, which profiles show."""
    return _Compiled(
        jit(refill.begin, (), name=f"begin_{name}"),
        jit(refill.insert, (), donated=("rows",), name=f"insert_{name}"),
        jit(refill.advance, (), donated=("rows",), name=f"advance_{name}"),
        jit(refill.repeat, ("count",), name=f"repeat_{name}"),
        jit(refill.moved, ("shape",), name=f"move_{name}", keep_all=True),
    )


class Programs:
    """The programs of a batch, and the shapes of its rows at each width.

    Args:
      compilations: what has been compiled.
      name: the name of the strategy.

    Rows are updated in place: those that a method takes are not used again.
    """

    def __init__(self, compilations: Compilations, name: str):
        self._first = compilations.first
        self._compiled = _compiled(name)
        self._begun_shapes: dict[int, Any] = {}

    def begin(self, inputs: SplitInputs, width: int) -> Group:
        with self._first("begin", width):
            rows = self._compiled.begin(inputs)
        if width not in self._begun_shapes:
            self._begun_shapes[width] = jax.eval_shape(lambda x: x, rows)
        return Group(width, dataclasses.replace(inputs, given=[]), rows)

    def repeat(self, group: Group, count: int) -> refill.Rows:
        return self._compiled.repeat(group.rows, count=count)

    def insert(
        self, rows: refill.Rows, count: int, width: int, group: Group, places: Sequence[int]
    ) -> refill.Rows:
        """Puts members of a group into ``count`` rows of a width, which is its own or a larger one.

        The place of a member that gets none is ``count``.
        """
        index: Any = np.asarray(places, np.int32)
        with self._first("insert", count, width, group.width):
            return self._compiled.insert(group.rows, index, rows=spread_rows(rows))

    def move(self, rows: refill.Rows, source: Sequence[int], width: int) -> refill.Rows:
        """Moves rows to a batch of fewer rows, or of a smaller width.

        The arrays are moved one after another, so that the memory of a device does not have to hold
        both batches. ``source`` has the row that each place of the new batch takes over.
        """
        index: Any = np.asarray(source, np.int32)

        def move(x: Array, like: Any) -> Array:
            # On CPUs, several programs of several processes at a time may wait for each other.
            moved = self._compiled.move(spread_rows(x), index, shape=like.shape)
            made = jax.block_until_ready(moved)
            x.delete()
            return made

        with self._first("move", len(source), width):
            return jax.tree.map(move, rows, self._begun_shapes[width])

    def advance(
        self,
        rows: refill.Rows,
        width: int,
        shared: SplitInputs,
        used: Sequence[bool],
        wanted: int,
        most: int | None = None,
    ) -> tuple[refill.Rows, refill.AdvanceResult]:
        """Runs steps until ``wanted`` rows have ended or are not in use; at most ``most`` steps."""
        # NumPy values are moved by the call itself, where `jnp.asarray` is a call of its own.
        mask: Any = np.asarray(used, bool)
        count: Any = np.int32(wanted)
        limit: Any = None if most is None else np.int32(most)
        with self._first("advance", len(used), width):
            return self._compiled.advance(shared, mask, count, limit, rows=spread_rows(rows))
