"""Pieces of text, and streamers that take them."""

from __future__ import annotations

import sys
from typing import IO, Any, Protocol


class Piece(str):
    """A piece of text that is final: a string with the place of its completion.

    Attributes:
      row: the index of its input among the texts.
      sample: its place among the completions of that input.
      last: whether its completion ends with it. A last piece may be empty.

    Example:
      >>> piece = Piece(" gare", row=0, sample=2)
      >>> piece.strip(), piece.sample
      ('gare', 2)
    """

    row: int
    sample: int
    last: bool

    def __new__(cls, text: str, row: int = 0, sample: int = 0, last: bool = False) -> Piece:
        piece = super().__new__(cls, text)
        piece.row, piece.sample, piece.last = row, sample, last
        return piece


class Streamer(Protocol):
    """The two methods of a streamer, named as in ``transformers``."""

    def put(self, value: Any) -> None:
        """Takes the next value: a ``Piece``, or token ids (see ``TextStream.to``)."""
        ...

    def end(self) -> None:
        """Is called once, after the last value."""
        ...


class TextStreamer:
    """Prints pieces as they come, and a line break after each completion.

    Of several completions, one grows on the screen, and the pieces of the others wait until it is
    done.

    Args:
      file: where to print, ``sys.stdout`` by default.
      labels: whether each completion is printed after its row and sample, as ``[0.2]``.

    Example:
      >>> streamer = TextStreamer(labels=True)
      >>> for piece in Piece("Bon"), Piece("Salut", row=1, last=True), Piece("jour", last=True):
      ...     streamer.put(piece)
      [0.0] Bonjour
      [1.0] Salut
    """

    def __init__(self, file: IO[str] | None = None, *, labels: bool = False):
        self._file, self._labels = file, labels
        self._current: tuple[int, int] | None = None
        self._waiting: dict[tuple[int, int], list[Piece]] = {}

    def put(self, value: Piece) -> None:
        """Prints a piece, or keeps it until its completion's turn."""
        place = (value.row, value.sample)
        if self._current not in (None, place):
            self._waiting.setdefault(place, []).append(value)
            return
        self._print(value)
        while self._current is None and self._waiting:
            for piece in self._waiting.pop(min(self._waiting)):
                self._print(piece)

    def end(self) -> None:
        """Ends a line that is still open."""
        if self._current is not None:
            self._write("\n")
            self._current = None

    def _print(self, piece: Piece) -> None:
        begins = self._current is None
        self._current = None if piece.last else (piece.row, piece.sample)
        label = f"[{piece.row}.{piece.sample}] " if self._labels and begins else ""
        self._write(label + piece + ("\n" if piece.last else ""))

    def _write(self, text: str) -> None:
        file = sys.stdout if self._file is None else self._file
        file.write(text)
        file.flush()
