"""Output shards: files that are there in full or not at all."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from decoding_jax.infer.records import Record, to_line


def shard_name(name: str, index: int, count: int) -> str:
    """The file name of shard ``index`` of ``count``.

    Example:
      >>> shard_name("decodes", 3, 12)
      'decodes-00003-of-00012.jsonl'
    """
    return f"{name}-{index:05d}-of-{count:05d}.jsonl"


def write(path: Path, text: Iterable[str]) -> None:
    """Writes a file through a temporary one, so that a reader or a restart sees all or nothing.

    The temporary file has a fixed name beside it, so that a job killed here leaves nothing behind
    once it is started again.
    """
    temporary = path.with_name(f".{path.name}.tmp")
    with temporary.open("w", encoding="utf-8", newline="") as file:
        file.writelines(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    _sync(path.parent)


def write_records(path: Path, records: Iterable[Record]) -> None:
    """Writes one record a line; see ``write``."""
    write(path, (to_line(record) for record in records))


def read_records(path: Path) -> Iterator[Record]:
    """The records of a finished shard."""
    with path.open(encoding="utf-8", newline="\n") as file:
        for line in file:
            yield json.loads(line)


def _sync(folder: Path) -> None:
    """Makes a rename survive a power cut, where the system can."""
    try:
        handle = os.open(folder, os.O_RDONLY)
    except OSError:  # Windows opens no folders
        return
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
