"""What has been compiled so far, and how long it took."""

from __future__ import annotations

import contextlib
import logging
import time
from typing import Any

_LOGGER = logging.getLogger(__name__)


class Stopwatch:
    """Measures the total time inside ``with`` blocks.

    Example:
      >>> watch = Stopwatch()
      >>> with watch:
      ...     pass
      >>> watch.seconds() >= 0
      True
    """

    def __init__(self) -> None:
        self._total = 0.0
        self._start: float | None = None

    def __enter__(self) -> Stopwatch:
        self._start = time.monotonic()
        return self

    def __exit__(self, *error: object) -> None:
        self._total, self._start = self.seconds(), None

    def seconds(self) -> float:
        """The time in seconds, including that of a block that is still running."""
        running = 0.0 if self._start is None else time.monotonic() - self._start
        return self._total + running


class Compilations:
    """Which shapes of batches have been compiled, and how long that took; each is logged.

    Attributes:
      note: what is logged before the first shape, or None.
      watch: measures the time.
    """

    def __init__(self) -> None:
        self.note: str | None = None
        self.watch = Stopwatch()
        self._shapes: set[tuple[int, int]] = set()
        self._programs: set[tuple[Any, ...]] = set()

    def __len__(self) -> int:
        """The number of shapes, rows times width."""
        return len(self._shapes)

    def announce(self, rows: int, width: int) -> None:
        """Logs a shape before its first use."""
        if (rows, width) in self._shapes:
            return
        if not self._shapes and self.note is not None:
            _LOGGER.info("%s", self.note)
        self._shapes.add((rows, width))
        _LOGGER.info("compilation %d: %d inputs of up to %d tokens", len(self), rows, width)

    def first(self, *program: Any) -> contextlib.AbstractContextManager:
        """Measures the first call of a program for its shapes, which compiles it."""
        if program in self._programs:
            return contextlib.nullcontext()
        self._programs.add(program)
        return self.watch
