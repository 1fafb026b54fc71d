"""The time limit of a call: steps run a few at a time, and the clock is read between them."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

from decoding_jax import loop
from decoding_jax.base import DecodeOutput
from decoding_jax.fields import describe
from decoding_jax.ops.mesh import mesh_of

_CHUNK_SECONDS = 0.05  # that a chunk of steps should take


class Clock:
    """Decides when a call has to end, and how many steps to run until the next check of the time.

    Args:
      max_time: seconds from now on, or None for no limit.
      chunk: the number of steps between two checks, or None for as many as fit into 50 ms (on a
        mesh of several processes, for one).
      model: the model that is called.

    Raises:
      ValueError: for anything but None or a number above 0, and for a number with a model on a mesh
        of several processes, whose clocks differ.
    """

    def __init__(self, max_time: float | None, chunk: int | None = None, *, model: Any):
        is_number = isinstance(max_time, (int, float)) and not isinstance(max_time, bool)
        if max_time is not None and not (is_number and max_time > 0):
            raise ValueError(f"max_time: got {describe(max_time)}; takes seconds above 0")
        mesh = mesh_of(model)
        several = mesh is not None and len({d.process_index for d in mesh.devices.flat}) > 1
        if several and max_time is not None:
            raise ValueError(
                f"max_time: got {max_time} with a model on a mesh of several processes, whose "
                "clocks differ; takes None there"
            )
        self._last = time.monotonic()
        self._end = math.inf if max_time is None else self._last + max_time
        self._chunk, self._steps = 1 if several and chunk is None else chunk, 1

    def steps(self) -> int:
        """The number of steps to run next, from the time since the last call."""
        now = time.monotonic()
        elapsed, self._last = now - self._last, now
        if self._chunk is not None:
            return self._chunk
        if elapsed < _CHUNK_SECONDS / 2:
            self._steps *= 2
        elif elapsed > _CHUNK_SECONDS:
            self._steps = max(1, self._steps // 2)
        return self._steps

    def is_over(self, output: DecodeOutput) -> bool:
        """Whether the time is up, and the output has a token.

        Some strategies choose their first token in a step, not in the prefill.
        """
        return time.monotonic() >= self._end and bool(output.length.any())


def run_until(
    clock: Clock, strategy: Callable[..., Any], *args: Any, **settings: Any
) -> DecodeOutput:
    """Runs a strategy to its end, or until the time is up.

    Args:
      clock: the clock.
      strategy: a strategy that can be streamed.
      *args, **settings: as for ``loop.stream``.

    Raises:
      ValueError: for a function without ``Steps``, which cannot be interrupted.
    """
    if not hasattr(strategy, "strategy"):
        raise ValueError(
            f"max_time: got one with {getattr(strategy, '__name__', 'a function')}, which runs to "
            "its end; takes a strategy by name, or one made by loop.search or loop.sampler"
        )
    progress = loop.stream_progress(strategy, *args, chunk=clock.steps, **settings)
    so_far = next(progress)
    while not so_far.last and not clock.is_over(so_far.output):
        so_far = next(progress)
    return so_far.output
