"""Output shards: files that are there in full or not at all."""

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
    """The file name of shard ``index`` of ``count``.

    Example:
      >>> shard_name("decodes", 3, 12)
      'decodes-00003-of-00012.jsonl'
    """
    return f"{name}-{index:05d}-of-{count:05d}.jsonl"


def write(path: Path, text: Iterable[str]) -> None:
    """Writes a file through a temporary one, so that a reader or a restart sees all or nothing.

    The temporary file is beside it, under a name that no other process or call uses.

    Raises:
      OSError: as the system raises it, with the file's name.
    """
    with _written(path, text) as temporary:
        temporary.replace(path)


def create(path: Path, text: Iterable[str]) -> bool:
    """Writes a file as ``write`` does, unless there is one by that name.

    Of several processes that create the same file at once, one does, and the others find it.

    Returns:
      Whether the file was created.

    Raises:
      OSError: as the system raises it, with the file's name.
    """
    with _written(path, text) as temporary:
        try:
            os.link(temporary, path)
        except FileExistsError:
            return False
        except OSError:  # a file system without hard links
            if path.exists():
                return False
            temporary.replace(path)
    return True


def write_records(path: Path, records: Iterable[Record]) -> None:
    """Writes one record a line; see ``write``."""
    write(path, (to_line(record) for record in records))


def read_records(path: Path, items: Sequence[Item], first: int) -> list[Record]:
    """The records of a finished shard.

    Args:
      path: of the shard.
      items: the inputs of the shard.
      first: the index of the first of them in the job.

    Raises:
      ValueError: in one line, for a file that does not hold one record for each input, in order.
    """
    records: list[Record] = []
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            try:
                record = json.loads(line.decode("utf-8"))
            except (ValueError, RecursionError):
                raise ValueError(f"{path}: line {number} is not JSON") from None
            if not isinstance(record, dict) or not {"inputs", "outputs", "seed"} <= record.keys():
                raise ValueError(f"{path}: line {number} is not a record")
            if not line.endswith(b"\n"):
                raise ValueError(f"{path}: line {number} has no end")
            if record.get("index") != first + number - 1:
                raise ValueError(f"{path}: line {number} is not record {first + number - 1}")
            records.append(record)
    if len(records) != len(items):
        raise ValueError(f"{path}: has {len(records)} records of {len(items)}")
    for record, item in zip(records, items, strict=True):
        cut = record["inputs"] if "inputs_length" in record else None
        if record["inputs"] != item.inputs and (cut is None or not item.inputs.startswith(cut)):
            raise ValueError(f"{path}: record {record['index']} has another input")
    return records


@contextlib.contextmanager
def _written(path: Path, text: Iterable[str]) -> Iterator[Path]:
    """A temporary file that holds the text; afterwards it is gone from its temporary name."""
    host = re.sub(r"[^\w.-]", "_", socket.gethostname())
    unique = f"{host}-{os.getpid()}-{secrets.token_hex(8)}"
    temporary = path.with_name(f".{path.name}.{unique}.tmp")
    try:
        with temporary.open("x", encoding="utf-8", newline="") as file:
            file.writelines(text)
            file.flush()
            os.fsync(file.fileno())
        yield temporary
        temporary.unlink(missing_ok=True)
        _sync(path.parent)
    except OSError as e:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        if e.filename is None:  # the system names no file when the disk is full
            raise OSError(e.errno, e.strerror, str(path)) from e
        raise


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
