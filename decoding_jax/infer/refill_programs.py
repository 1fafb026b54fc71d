"""The compiled programs of a batch that is refilled."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from decoding_jax.base import Array
from decoding_jax.infer.newcomers import Group
from decoding_jax.infer.progress import Stopwatch
from decoding_jax.infer.row_inputs import RowInputs, SplitInputs, keep_info
from decoding_jax.loop import refill
from decoding_jax.loop.refill import AdvanceResult, Call, Rows
from decoding_jax.ops.jit import jit
from decoding_jax.ops.mesh import spread_rows


class RefillPrograms:
    """The functions of ``loop.refill``, compiled once for each width.

    Rows are updated in place: those that a method takes are not used again. A program is compiled
    once for each number of rows and each width.

    Args:
      call: makes the call of the strategy.
      info: the names of the values of ``info`` that the output keeps.
      name: the name of the strategy, for the names of the programs.

    Attributes:
      compiling: measures the time of compilation.
    """

    def __init__(
        self,
        call: Callable[[RowInputs], Call],
        info: Sequence[str] = (),
        name: str = "rows",
    ):
        self.compiling = Stopwatch()
        self._begun_shapes: dict[int, Any] = {}
        self._called: set[tuple[Any, ...]] = set()

        def begin(inputs: SplitInputs) -> Rows:
            return refill.begin(lambda given: call(inputs.of(given)), inputs.given)

        def insert(new: Rows, places: Array, *, rows: Rows) -> Rows:
            return refill.insert(rows, new, places)

        def advance(
            inputs: SplitInputs, used: Array, wanted: Array, *, rows: Rows
        ) -> tuple[Rows, AdvanceResult]:
            rows, result = refill.advance(lambda given: call(inputs.of(given)), rows, used, wanted)
            return rows, result._replace(output=keep_info(result.output, info))

        def repeat(new: Rows, *, count: int) -> Rows:
            return refill.repeat(new, count)

        def move(x: Array, source: Array, *, shape: tuple[int, ...]) -> Array:
            return refill.moved(x, source, shape)

        for function in (begin, insert, advance, repeat, move):
            function.__name__ = f"{function.__name__}_{name}"
        self._insert = jit(insert, (), donated=("rows",))
        self._advance = jit(advance, (), donated=("rows",))
        self._begin, self._repeat = jit(begin, ()), jit(repeat, ("count",))
        self._move = jit(move, ("shape",))

    def begin(self, inputs: SplitInputs, width: int) -> Group:
        """Prefills inputs that are padded to ``width``."""
        with self._first("begin", width):
            rows = self._begin(inputs)
        if width not in self._begun_shapes:
            self._begun_shapes[width] = jax.eval_shape(lambda x: x, rows)
        return Group(width, inputs.without_rows(), rows)

    def repeat(self, group: Group, count: int) -> Rows:
        """A number of rows, which are those of a group, repeated."""
        return self._repeat(group.rows, count=count)

    def insert(
        self, rows: Rows, count: int, width: int, group: Group, places: Sequence[int]
    ) -> Rows:
        """Puts members of a group into rows of a width.

        Args:
          rows: the rows of the batch.
          count: their number.
          width: their width.
          group: the group, of this width or a smaller one.
          places: the place of each member; ``count`` for those that have none.
        """
        index: Any = np.asarray(places, np.int32)
        with self._first("insert", count, width, group.width):
            return self._insert(group.rows, index, rows=spread_rows(rows))

    def move(self, rows: Rows, source: Sequence[int], width: int) -> Rows:
        """Moves rows to a batch of fewer rows, or of a smaller width.

        The arrays are moved one after another, so that the memory of a device does not have to hold
        both batches.

        Args:
          rows: the rows of the batch.
          source: the row that each place of the new batch takes over.
          width: the new width.
        """
        index: Any = np.asarray(source, np.int32)

        def move(x: Array, like: Any) -> Array:
            # On CPUs, several programs of several processes at a time may wait for each other.
            made = jax.block_until_ready(self._move(spread_rows(x), index, shape=like.shape))
            x.delete()
            return made

        with self._first("move", len(source), width):
            return jax.tree.map(move, rows, self._begun_shapes[width])

    def advance(
        self, rows: Rows, width: int, shared: SplitInputs, used: Sequence[bool], wanted: int
    ) -> tuple[Rows, AdvanceResult]:
        """Runs steps until ``wanted`` rows have ended or are not in use.

        Args:
          rows: the rows of the batch.
          width: their width.
          shared: the arguments without those of the rows.
          used: which rows are in use.
          wanted: from 1 to the number of rows.
        """
        # NumPy values are moved by the call itself, where `jnp.asarray` is a call of its own.
        mask: Any = np.asarray(used, bool)
        count: Any = np.int32(wanted)
        with self._first("advance", len(used), width):
            return self._advance(shared, mask, count, rows=spread_rows(rows))

    def _first(self, *program: Any) -> contextlib.AbstractContextManager:
        """Measures the first call of a program for its shapes, which compiles it."""
        if program in self._called:
            return contextlib.nullcontext()
        self._called.add(program)
        return self.compiling
