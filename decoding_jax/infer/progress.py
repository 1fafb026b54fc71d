"""A progress bar on standard error, and log lines that do not tear it."""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Iterator
from typing import TextIO

from tqdm import tqdm

_LOGGER = logging.getLogger("decoding_jax")


def bar(total: int, done: int = 0) -> tqdm:
    """A bar that counts inputs; where standard error is a file, a line every ten seconds."""
    interval = 0.2 if sys.stderr.isatty() else 10.0
    return tqdm(
        total=total,
        initial=done,
        desc="decoding",
        unit="input",
        mininterval=interval,
        maxinterval=interval,
        dynamic_ncols=True,
        file=sys.stderr,
    )


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
