"""Reads the lines of input files, which may be in a bucket, and compressed by gzip."""

from __future__ import annotations

import codecs
import contextlib
import gzip
import shutil
import sys
import tempfile
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any

from decoding_jax.infer import gin_files
from decoding_jax.storage import CloudPath, StoragePath, storage_path

_STANDARD_INPUT = ("-", "/dev/stdin")
_COPIES: dict[str, Any] = {}  # The open temporary files, by the pipes that they were read from.


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
            f"path: got the folder {str(name)!r}; takes a file, or a pattern such as '{path}/*.txt'"
        )
    if isinstance(path, CloudPath):
        raise ValueError(f"{path}: no such file")
    is_pipe = path.is_fifo() or path.is_char_device() or path.is_socket()
    if str(name) in (*_STANDARD_INPUT, *_COPIES) or is_pipe:
        return _copy_of(str(name))
    return gin_files.find(path)


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
            for number, line in enumerate(_decompressed(raw, path.suffix)):
                yield line.removeprefix(codecs.BOM_UTF8) if number == 0 else line
    except (gzip.BadGzipFile, EOFError, zlib.error) as e:
        raise ValueError(f"path: got {str(path)!r} ({e}); takes a whole gzip file") from e


def _decompressed(file: IO[bytes], suffix: str) -> Iterable[bytes]:
    return gzip.GzipFile(fileobj=file) if suffix == ".gz" else file


def without_end(line: bytes) -> bytes:
    r"""Returns a line without its end.

    Example:
      >>> without_end(b"one\r\n")
      b'one'
    """
    return line.removesuffix(b"\n").removesuffix(b"\r")
