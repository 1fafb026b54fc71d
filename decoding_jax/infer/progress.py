"""A progress bar on standard error, and log lines that do not tear it."""

from __future__ import annotations

import contextlib
import logging
import sys
import time
from collections.abc import Iterator
from typing import Any, TextIO

from tqdm import tqdm

_LOGGER = logging.getLogger("decoding_jax")


class Stopwatch:
    """Adds up the time that is spent inside ``with`` blocks.

    Example:
      >>> watch = Stopwatch()
      >>> with watch:
      ...     pass
      >>> watch.seconds() >= 0
      True
    """

    def __init__(self) -> None:
        self._total = 0.0
        self._began: float | None = None

    def __enter__(self) -> Stopwatch:
        self._began = time.monotonic()
        return self

    def __exit__(self, *error: object) -> None:
        self._total, self._began = self.seconds(), None

    def seconds(self) -> float:
        """The time so far, that of a block still running included."""
        running = 0.0 if self._began is None else time.monotonic() - self._began
        return self._total + running


class Bar(tqdm):
    """A progress bar over inputs whose rate is that of decoding alone.

    On a terminal the bar is one line that changes. Elsewhere the bar prints a line every ten
    seconds.

    Args:
      total: the number of inputs.
      compiling: measures compilation, which neither the rate nor the time left includes.
    """

    def __init__(self, total: int, compiling: Stopwatch | None = None):
        self.working = Stopwatch()
        self._compiling = Stopwatch() if compiling is None else compiling
        terminal = sys.stderr.isatty()
        interval = 0.2 if terminal else 10.0
        super().__init__(
            total=total,
            desc="decoding",
            unit="input",
            mininterval=interval,
            maxinterval=interval,
            dynamic_ncols=True,
            file=sys.stderr if terminal else _WholeLines(sys.stderr),
        )

    def skip(self, count: int) -> None:
        """Counts inputs that an earlier run decoded as done, and leaves them out of the rate.

        Args:
          count: of inputs; negative for those that have to be decoded again after all.
        """
        self.initial += count
        self.n += count
        self.last_print_n += count

    @property
    def format_dict(self) -> dict[str, Any]:
        """What the bar shows. The rate is over the time inside ``with bar.working``."""
        decoded = self.n - self.initial
        seconds = self.working.seconds() - self._compiling.seconds()
        rate = decoded / seconds if decoded and seconds > 0 else None
        # Where the rate is None, tqdm divides n - initial by the elapsed time; zero gives no rate.
        return {**super().format_dict, "rate": rate, **({} if rate else {"initial": self.n})}


class _WholeLines:
    """A text file that ends each of tqdm's reports with a newline."""

    def __init__(self, file: TextIO):
        self._file = file

    def write(self, text: str) -> None:
        if line := text.strip():
            self._file.write(f"{line}\n")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


def say(text: str, file: TextIO) -> None:
    """Prints a line, above the bar where there is one on the screen."""
    if sys.stderr.isatty():
        tqdm.write(text, file=file)
    else:
        print(text, file=file, flush=True)


class _Lines(logging.Handler):
    """Log messages, bare, on standard error."""

    def emit(self, record: logging.LogRecord) -> None:
        say(self.format(record), sys.stderr)


@contextlib.contextmanager
def log_lines() -> Iterator[None]:
    """Shows the library's log lines, from INFO on, on standard error."""
    handler = _Lines()
    level = _LOGGER.level
    _LOGGER.addHandler(handler)
    _LOGGER.setLevel(logging.INFO)
    try:
        yield
    finally:
        _LOGGER.removeHandler(handler)
        _LOGGER.setLevel(level)
