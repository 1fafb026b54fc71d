"""Reads and writes output shards; a shard is written completely or not at all."""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import socket
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from decoding_jax.infer.records import Record, to_line
from decoding_jax.infer.sources import Item


def shard_name(name: str, index: int, count: int) -> str:
    """Returns the file name of shard ``index`` of ``count`` shards.

    Example:
      >>> shard_name("decodes", 3, 12)
      'decodes-00003-of-00012.jsonl'
    """
    return f"{name}-{index:05d}-of-{count:05d}.jsonl"


def write(path: Path, text: Iterable[str]) -> None:
    """Writes a file atomically: it gets its name only when its contents are complete.

    The text is first written to a temporary file in the same directory, under a name that no other
    process or call uses.

    Raises:
      OSError: if the system cannot write the file; the error names the file.
    """
    write_bytes(path, (part.encode("utf-8") for part in text))


def write_bytes(path: Path, parts: Iterable[bytes]) -> None:
    """Writes the parts of a file as ``write`` does."""
    with _written(path, parts) as temporary:
        temporary.replace(path)


def create(path: Path, text: Iterable[str]) -> bool:
    """Writes a file atomically, unless a file of that name exists.

    If several processes create the same file at the same time, exactly one of them succeeds.

    Returns:
      Whether the file was created by this call.

    Raises:
      OSError: if the system cannot write the file; the error names the file.
    """
    with _written(path, (part.encode("utf-8") for part in text)) as temporary:
        try:
            os.link(temporary, path)
        except FileExistsError:
            return False
        except OSError:  # The file system has no hard links.
            if path.exists():
                return False
            temporary.replace(path)
    return True


def write_records(path: Path, records: Iterable[Record]) -> None:
    """Writes one record per line with ``write``."""
    write(path, (to_line(record) for record in records))


def read_records(path: Path, items: Sequence[Item], first: int) -> list[Record]:
    """Reads the records of a finished shard.

    Args:
      path: the file of the shard.
      items: the inputs of the shard.
      first: the index of the first input in the job.

    Raises:
      ValueError: if the file does not contain one record for each input, in order; the message is
        one line.
    """
    records = [record for _, record in read_lines(path, first)]
    if len(records) != len(items):
        raise ValueError(f"{path}: has {len(records)} records of {len(items)}")
    for record, item in zip(records, items, strict=True):
        start = record["inputs"] if "inputs_length" in record else None
        if record["inputs"] != item.inputs and (start is None or not item.inputs.startswith(start)):
            raise ValueError(f"{path}: record {record['index']} has a different input")
    return records


def read_lines(path: Path, first: int) -> Iterator[tuple[bytes, Record]]:
    """Yields each line of a shard with its record.

    Args:
      path: the file of the shard.
      first: the index of the first input in the job.

    Raises:
      ValueError: if a line is not the record whose turn it is; the message is one line.
    """
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            try:
                record = json.loads(line.decode("utf-8"))
            except (ValueError, RecursionError):
                raise ValueError(f"{path}: line {number} is not JSON") from None
            if not isinstance(record, dict) or not {"inputs", "outputs", "seed"} <= record.keys():
                raise ValueError(f"{path}: line {number} is not a record")
            if not line.endswith(b"\n"):
                raise ValueError(f"{path}: line {number} does not end in a newline")
            if record.get("index") != first + number - 1:
                raise ValueError(
                    f"{path}: line {number} is not record {first + number - 1}, but has index "
                    f"{record.get('index')!r}"
                )
            yield line, record


@contextlib.contextmanager
def _written(path: Path, parts: Iterable[bytes]) -> Iterator[Path]:
    """Writes a temporary file and yields its path; the file is removed afterwards if it remains."""
    host = re.sub(r"[^\w.-]", "_", socket.gethostname())
    unique = f"{host}-{os.getpid()}-{secrets.token_hex(8)}"
    temporary = path.with_name(f".{path.name}.{unique}.tmp")
    try:
        with temporary.open("xb") as file:
            file.writelines(parts)
            file.flush()
            os.fsync(file.fileno())
        yield temporary
        temporary.unlink(missing_ok=True)
        _sync(path.parent)
    except OSError as e:
        if e.filename is None:  # The error of a full disk names no file.
            raise OSError(e.errno, e.strerror, str(path)) from e
        raise
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def _sync(folder: Path) -> None:
    """Makes a rename durable in case of a power failure, if the system supports it."""
    try:
        handle = os.open(folder, os.O_RDONLY)
    except OSError:  # Windows cannot open folders.
        return
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
