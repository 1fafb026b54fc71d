"""A process that measures, which can be ended, and whose memory is free once it has ended."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from typing import Any


class EndedError(Exception):
    """The process ended before it answered."""


class Worker:
    """A process that calls functions of modules, one at a time, for as long as it is in use."""

    def __enter__(self) -> Worker:
        context = multiprocessing.get_context("spawn")
        self._ours, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs,), daemon=True)
        self._process.start()
        theirs.close()
        return self

    def __exit__(self, *_: Any) -> None:
        self._ours.close()
        self._process.kill()
        self._process.join()

    def ask(self, function: Callable[..., Any], *args: Any, seconds: float) -> Any:
        """The result of a call, or what ``attempt`` returns in place of one.

        Args:
          function: a function of a module.
          args: its arguments.
          seconds: how long to wait for the result.

        Raises:
          TimeoutError: if there is none after these seconds; the process has to be ended then.
          EndedError: if the process ended.
        """
        self._ours.send((function, args))
        if not self._ours.poll(seconds):
            raise TimeoutError
        try:
            return self._ours.recv()
        except EOFError:
            self._process.join()
            raise EndedError(f"its process ended with code {self._process.exitcode}") from None


def _serve(connection: Any) -> None:
    while True:
        try:
            function, args = connection.recv()
        except EOFError:
            return
        connection.send(attempt(function, *args))


def attempt(function: Callable[..., Any], *args: Any) -> Any:
    """The result of a call, or ``{"error": ...}``, one line, where it raised."""
    try:
        return function(*args)
    except Exception as error:
        text = str(error)
        if "RESOURCE_EXHAUSTED" in text or "out of memory" in text.lower():
            return {"error": "does not fit in the memory of the device"}
        return {"error": f"{type(error).__name__}: {text.splitlines()[0] if text else ''}"[:300]}
