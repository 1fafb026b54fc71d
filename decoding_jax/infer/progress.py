"""A progress bar on standard error, and log lines that do not interrupt it."""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Iterator
from typing import Any, TextIO

from tqdm import tqdm

from decoding_jax.batches.compilations import Stopwatch

_LOGGER = logging.getLogger("decoding_jax")


class Bar(tqdm):
    """A progress bar over inputs, whose rate is the rate of decoding without compilation.

    On a terminal the bar is one line that is updated. Otherwise the bar prints a line every ten
    seconds.

    Args:
      total: the number of inputs.
      compiling: measures the time of compilation, which is left out of the rate and of the
        estimate of the time left.
      shown: whether the bar is printed.
    """

    def __init__(self, total: int, compiling: Stopwatch | None = None, *, shown: bool = True):
        self.working = Stopwatch()
        self._compiling = Stopwatch() if compiling is None else compiling
        disable = not shown
        super().__init__(total=total, desc="decoding", unit="input", disable=disable, **on_stderr())

    def skip(self, count: int) -> None:
        """Counts inputs that an earlier run has decoded as done, but not for the rate.

        Args:
          count: the number of inputs. It is negative for inputs that were skipped before but have
            to be decoded again.
        """
        if self.disable:
            return
        self.initial += count
        self.n += count
        self.last_print_n += count

    @property
    def format_dict(self) -> dict[str, Any]:
        """The values that the bar shows; the rate is over the time inside ``with bar.working``."""
        decoded = self.n - self.initial
        seconds = self.working.seconds() - self._compiling.seconds()
        rate = decoded / seconds if decoded and seconds > 0 else None
        # If the rate is None, tqdm divides n - initial by the elapsed time. Zero gives no rate.
        return {**super().format_dict, "rate": rate, **({} if rate else {"initial": self.n})}


def on_stderr() -> dict[str, Any]:
    """Returns the arguments of a ``tqdm`` that reports on standard error as ``Bar`` does."""
    terminal = sys.stderr.isatty()
    interval = 0.2 if terminal else 10.0
    return {
        "mininterval": interval,
        "maxinterval": interval,
        "dynamic_ncols": True,
        "file": sys.stderr if terminal else _WholeLines(sys.stderr),
    }


class _WholeLines:
    """Writes each of tqdm's reports to a file as a line of its own."""

    def __init__(self, file: TextIO):
        self._file = file

    def write(self, text: str) -> None:
        if line := text.strip():
            self._file.write(f"{line}\n")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


def print_line(text: str, file: TextIO) -> None:
    """Prints a line; on a terminal it appears above the progress bar."""
    if sys.stderr.isatty():
        tqdm.write(text, file=file)
    else:
        print(text, file=file, flush=True)


class _LineHandler(logging.Handler):
    """Prints log messages without a prefix on standard error."""

    def emit(self, record: logging.LogRecord) -> None:
        print_line(self.format(record), sys.stderr)


@contextlib.contextmanager
def log_lines() -> Iterator[None]:
    """Prints the library's log messages of level INFO and above on standard error."""
    handler = _LineHandler()
    level = _LOGGER.level
    _LOGGER.addHandler(handler)
    _LOGGER.setLevel(logging.INFO)
    try:
        yield
    finally:
        _LOGGER.removeHandler(handler)
        _LOGGER.setLevel(level)
