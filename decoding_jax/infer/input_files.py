"""Finds the files of inputs that a path, a pattern or a list names, and reads their lines.

Files may be in a bucket, and compressed by gzip.
"""

from __future__ import annotations

import codecs
import contextlib
import glob
import gzip
import shutil
import sys
import tempfile
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple

from decoding_jax import fields, gin_path
from decoding_jax.storage import CloudPath, StoragePath, storage_path
from decoding_jax.text.inputs import unicode_fault

Paths = str | StoragePath | Sequence[str | StoragePath]
"""A path, a URL, a pattern of either, or a list of these."""

_SHOWN = 3  # names in an error
_STANDARD_INPUT = ("-", "/dev/stdin")
_COPIES: dict[str, Any] = {}  # The open temporary files, by the pipes that they were read from.


class InputFile(NamedTuple):
    """A file of inputs.

    Attributes:
      path: where it is.
      name: its name in records; None for the one file of a job whose path is no pattern.
    """

    path: StoragePath
    name: str | None


def find(paths: Paths) -> list[InputFile]:
    """Returns files of inputs: those of a list in its order, and those of a pattern sorted.

    A path that exists is no pattern, whatever characters it has.

    Raises:
      ValueError: if a path is not that of a file, a pattern matches none, a list is empty, or a
        file is named twice; the message is one line.

    Example:
      >>> folder = CloudPath("memory://examples/found")
      >>> for name in ("b.txt", "a.txt", "c.csv"):
      ...     (folder / name).write_bytes(b"Hello.")
      >>> [file.name for file in find("memory://examples/found/*.txt")]
      ['memory://examples/found/a.txt', 'memory://examples/found/b.txt']
    """
    if isinstance(paths, (str, Path, CloudPath)):
        matching = _matching(paths)
        if matching is None:
            return [InputFile(find_inputs(paths), None)]
        return [InputFile(path, _checked(str(path))) for path in matching]
    if not isinstance(paths, Sequence) or not all(
        isinstance(path, (str, Path, CloudPath)) for path in paths
    ):
        raise fields.error("path", "a path, a pattern, or a list of these", paths)
    found: dict[str, StoragePath] = {}
    for path in paths:
        matching = _matching(path)
        of_path = [(str(path), find_inputs(path))] if matching is None else []
        for name, file in of_path or [(str(file), file) for file in matching or ()]:
            if name in found:
                raise ValueError(f"path: expected each file once, got {name!r} twice")
            found[_checked(name)] = file
    if not found:
        raise ValueError("path: expected at least one file, got an empty list")
    return [InputFile(file, name) for name, file in found.items()]


def _checked(name: str) -> str:
    """Checks that the name of a file can be written to records, and returns it."""
    if unicode_fault(name) is not None:
        raise ValueError(f"path: expected names of files in UTF-8, got {name!r}")
    return name


def _matching(pattern: str | StoragePath) -> Sequence[StoragePath] | None:
    """The files that match a pattern, sorted; None for a path that is no pattern."""
    text = str(pattern)
    if not glob.has_magic(text):
        return None
    path = storage_path("path", pattern)
    if path.is_file():
        return None
    if isinstance(path, CloudPath):
        found: Sequence[StoragePath] = path.matches()
    else:
        found = sorted(p for name in glob.glob(text, recursive=True) if (p := Path(name)).is_file())
    if not found:
        raise ValueError(
            f"path: expected a pattern of files, got {text!r}, which matches none{_beside(path)}"
        )
    return found


def _beside(pattern: StoragePath) -> str:
    """What is in the folder of a pattern, for the error if nothing matches."""
    folder = pattern.parent
    while glob.has_magic(str(folder)):
        if isinstance(folder, CloudPath) and "/" not in folder.key.strip("/"):
            return ""  # A pattern of buckets.
        folder = folder.parent
    names = sorted(p.name for p in folder.iterdir()) if folder.is_dir() else []
    if not names:
        return f"; the folder {str(folder)!r} is empty or missing"
    more = f" and {len(names) - _SHOWN:,} more" if len(names) > _SHOWN else ""
    return f"; the folder {str(folder)!r} has {', '.join(names[:_SHOWN])}{more}"


def find_inputs(name: str | StoragePath) -> StoragePath:
    """Returns the path of a file of inputs, which ``gin_files.find`` searches for.

    A job reads its inputs twice. Standard input (``-``) or another pipe is therefore copied to a
    temporary file when it is first asked for, and that file is its path from then on.

    Raises:
      ValueError: if there is no such file, or it is a folder.

    Example:
      >>> find_inputs("runs/demo_sentences.txt").name
      'demo_sentences.txt'
    """
    path = storage_path("path", name)
    if isinstance(path, CloudPath) and path.is_file():
        return path
    if path.is_dir():
        raise ValueError(
            f"path: expected a file, or a pattern such as '{path}/*.txt', got the folder "
            f"{str(name)!r}"
        )
    if isinstance(path, CloudPath):
        raise ValueError(f"{path}: no such file")
    is_pipe = path.is_fifo() or path.is_char_device() or path.is_socket()
    if str(name) in (*_STANDARD_INPUT, *_COPIES) or is_pipe:
        return _copy_of(str(name))
    return gin_path.find(path)


def _copy_of(pipe: str) -> Path:
    """A temporary file with what a pipe gives, until this process ends."""
    if pipe not in _COPIES:
        file = tempfile.NamedTemporaryFile(prefix="decoding_jax_inputs_")  # noqa: SIM115 (kept)
        with contextlib.ExitStack() as stack:
            if pipe in _STANDARD_INPUT:
                given: IO[bytes] = sys.stdin.buffer
            else:
                given = stack.enter_context(Path(pipe).open("rb"))
            shutil.copyfileobj(given, file)
        file.flush()
        _COPIES[pipe] = file
    return Path(_COPIES[pipe].name)


def lines(path: StoragePath) -> Iterator[bytes]:
    """Yields the lines of a file with their ends, but without a byte order mark.

    Raises:
      ValueError: if the file's name ends in ``.gz`` and it is not whole gzip.
    """
    try:
        with path.open("rb") as raw:
            file = gzip.GzipFile(fileobj=raw) if path.suffix == ".gz" else raw
            for number, line in enumerate(file):
                yield line.removeprefix(codecs.BOM_UTF8) if number == 0 else line
    except (gzip.BadGzipFile, EOFError, zlib.error) as e:
        raise ValueError(f"path: expected a whole gzip file, got {str(path)!r} ({e})") from e


def without_end(line: bytes) -> bytes:
    r"""Returns a line without its end.

    Example:
      >>> without_end(b"one\r\n")
      b'one'
    """
    return line.removesuffix(b"\n").removesuffix(b"\r")
