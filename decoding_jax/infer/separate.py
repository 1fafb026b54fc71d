"""Decodes inputs in batches, each of which lasts as long as its longest row."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence

from decoding_jax.base import DecodeOutput
from decoding_jax.infer.progress import Stopwatch
from decoding_jax.infer.row_inputs import RowInputs, RowSteps
from decoding_jax.ops.jit import jit


class SeparateBatches:
    """Batches of B rows, one after another.

    Args:
      decode: decodes rows; the compiled program has its name.
      size: B.

    Attributes:
      batches: the number of batches so far.
      row_steps: (0, 0), since the steps of separate batches are not counted.
    """

    def __init__(self, decode: Callable[[RowInputs], DecodeOutput], size: int):
        self._decode = jit(decode, ())
        self._size = size
        self.batches = 0
        self.row_steps = RowSteps(0, 0)

    @property
    def compilations(self) -> int:
        """The number of shapes that were compiled."""
        return self._decode.cache_size()  # type: ignore[attr-defined]

    def decode(
        self,
        count: int,
        make: Callable[[Sequence[int], int], RowInputs],
        compiling: Stopwatch | None,
    ) -> Iterator[tuple[Sequence[int], DecodeOutput]]:
        """Decodes inputs of one width.

        Args:
          count: the number of inputs.
          make: makes the arguments of the inputs with these numbers, in this number of rows.
          compiling: measures the time of compilation; None if the width has been compiled.

        Yields:
          The numbers of the inputs of a batch, and their output, after the next batch has been
          started.
        """
        started = None
        for first in range(0, count, self._size):
            members = range(first, min(first + self._size, count))
            inputs = make(members, self._size)
            with contextlib.nullcontext() if compiling is None else compiling:
                output = self._decode(inputs)
            compiling = None
            self.batches += 1
            if started is not None:
                yield started
            started = members, output
        if started is not None:
            yield started
