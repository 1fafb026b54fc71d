"""A batch whose rows begin and end one by one, whenever an input comes or is taken back."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from decoding_jax.base import DecodeOutput
from decoding_jax.batches.compilations import Compilations
from decoding_jax.batches.refilled import Programs
from decoding_jax.batches.row_inputs import SplitInputs
from decoding_jax.loop.refill import AdvanceResult
from decoding_jax.sharding.meshes import to_host


@dataclasses.dataclass(frozen=True)
class RowOutput:
    """What a row has decoded so far, on the host.

    Attributes:
      output: the sequences of this row alone.
      settled: int32 ``[1, N]``, the number of leading tokens of each that are final.
      ended: whether the row has ended; then its place is free.
    """

    output: DecodeOutput
    settled: np.ndarray
    ended: bool


class OpenRows:
    """B places for rows of one structure, all of which advance together.

    Each row is prefilled by itself, at its own width, while the others wait; then it takes a free
    place. Nothing else of a batch changes, so each program is compiled once, and the one that
    begins a row once for each width.

    Args:
      first: the arguments of any valid row, padded to the width of the batch.
      width: the width of the batch.
      size: B.
      name: the name of the strategy, for the names of the compiled programs.
    """

    def __init__(self, first: SplitInputs, width: int, size: int, name: str):
        self._programs = Programs(Compilations(), name)
        group = self._programs.begin(first, width)
        self._width = width
        # Once for all steps, NumPy's arrays are moved to the device.
        shared = [jnp.asarray(x) if isinstance(x, np.ndarray) else x for x in group.shared.shared]
        self._shared = dataclasses.replace(group.shared, shared=shared)
        self._rows = self._programs.repeat(group, size)
        self._used = [False] * size
        self._advanced(size, 0)  # Runs no step, but compiles it before a row waits for it.

    def insert(self, inputs: SplitInputs, width: int) -> int:
        """Begins a row in a free place, of which there has to be one.

        Args:
          inputs: the arguments of the row.
          width: the width that they are padded to, at most that of the batch.

        Returns:
          The number of its place.
        """
        group = self._programs.begin(inputs, width)
        place = self._used.index(False)
        self._rows = self._programs.insert(self._rows, len(self._used), self._width, group, [place])
        self._used[place] = True
        return place

    def remove(self, place: int) -> None:
        """Frees the place of a row that has not ended."""
        self._used[place] = False

    def advance(self, steps: int) -> dict[int, RowOutput]:
        """Runs up to so many steps, fewer if a row ends; at least one row has a place.

        Returns:
          What each row in a place has decoded so far, by its place.
        """
        result: Any = self._advanced(self._used.count(False) + 1, steps)
        found = {}
        for place in np.flatnonzero(self._used).tolist():
            row = slice(place, place + 1)
            output = jax.tree.map(lambda x: x[row] if x.ndim else x, result.output)  # noqa: B023
            found[place] = RowOutput(output, result.settled[row], bool(result.ended[place]))
            self._used[place] = not result.ended[place]
        return found

    def _advanced(self, wanted: int, steps: int) -> AdvanceResult:
        self._rows, result = self._programs.advance(
            self._rows, self._width, self._shared, self._used, wanted, steps
        )
        return to_host(result)
