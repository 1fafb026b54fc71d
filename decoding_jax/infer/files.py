"""Reads the lines of input files, which may be in a bucket, and compressed by gzip."""

from __future__ import annotations

import codecs
import gzip
import zlib
from collections.abc import Iterable, Iterator
from typing import IO

from decoding_jax.infer import gin_files
from decoding_jax.storage import CloudPath, StoragePath, storage_path


def find_inputs(name: str | StoragePath) -> StoragePath:
    """Returns the path of a file of inputs, which ``gin_files.find`` searches for.

    Raises:
      ValueError: if there is no such file, or if it is standard input or another pipe.

    Example:
      >>> find_inputs("-")
      Traceback (most recent call last):
      ValueError: path: got '-'; takes a file, as a job reads its inputs twice, so put them into one
    """
    path = storage_path("path", name)
    if isinstance(path, CloudPath):
        if not path.is_file():
            raise ValueError(f"{path}: no such file")
        return path
    is_pipe = path.is_fifo() or path.is_char_device() or path.is_socket()
    if str(name) in ("-", "/dev/stdin") or is_pipe:
        raise ValueError(
            f"path: got {str(name)!r}; takes a file, as a job reads its inputs twice, so put them "
            "into one"
        )
    return gin_files.find(path)


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
