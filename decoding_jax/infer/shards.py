"""Reads and writes output shards; a shard is written completely or not at all."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence

from decoding_jax.infer.records import Record, to_line
from decoding_jax.infer.sources import Item
from decoding_jax.storage import StoragePath, write


def shard_name(name: str, index: int, count: int) -> str:
    """Returns the file name of shard ``index`` of ``count`` shards.

    Example:
      >>> shard_name("decodes", 3, 12)
      'decodes-00003-of-00012.jsonl'
    """
    return f"{name}-{index:05d}-of-{count:05d}.jsonl"


def write_records(path: StoragePath, records: Iterable[Record]) -> None:
    """Writes one record per line with ``storage.write``."""
    write(path, (to_line(record) for record in records))


def read_records(path: StoragePath, items: Sequence[Item], first: int) -> list[Record]:
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


def read_lines(path: StoragePath, first: int) -> Iterator[tuple[bytes, Record]]:
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
