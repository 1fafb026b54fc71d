"""Decodes inputs in batches, each of which lasts as long as its longest row."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence

from decoding_jax.base import DecodeOutput
from decoding_jax.infer.progress import Stopwatch
from decoding_jax.infer.row_inputs import MakeRows, RowInputs, RowSteps
from decoding_jax.ops.jit import jit


class SeparateBatches:
    """Batches of B rows, one after another.

    Args:
      decode: decodes rows; the compiled program has its name.
      size: B.
      announce: called with the number of rows and the width of each program, before its first use.

    Attributes:
      batches: the number of batches so far.
      row_steps: none, since the steps of separate batches are not counted.
    """

    def __init__(
        self,
        decode: Callable[[RowInputs], DecodeOutput],
        size: int,
        announce: Callable[[int, int], None],
    ):
        self._decode = jit(decode, ())
        self._size = size
        self._announce = announce
        self._widths: set[int] = set()
        self.batches = 0
        self.row_steps = RowSteps()

    def decode(
        self, by_width: Mapping[int, Sequence[int]], make: MakeRows, compiling: Stopwatch
    ) -> Iterator[tuple[Sequence[int], DecodeOutput]]:
        """Decodes inputs, in batches of one width.

        Args:
          by_width: the inputs of each width, by number.
          make: makes the arguments of inputs.
          compiling: measures the time of compilation.

        Yields:
          The numbers of the inputs of a batch, and their output, after the next batch has been
          started.
        """
        started = None
        for width, of_width in by_width.items():
            for first in range(0, len(of_width), self._size):
                members = of_width[first : first + self._size]
                inputs = make(members, width, self._size)
                is_new = width not in self._widths
                self._announce(self._size, width)
                self._widths.add(width)
                with compiling if is_new else contextlib.nullcontext():
                    output = self._decode(inputs)
                self.batches += 1
                if started is not None:
                    yield started
                started = members, output
        if started is not None:
            yield started
