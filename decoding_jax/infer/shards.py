"""The directory that a job writes to: its lock, its shards, and its summary."""

from __future__ import annotations

import contextlib
import json
import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from decoding_jax.infer import locks, manifest, records, summaries
from decoding_jax.infer.processes import Processes
from decoding_jax.infer.sources import Item
from decoding_jax.storage import StoragePath, write

_LOGGER = logging.getLogger(__name__)


class Output:
    """The directory of a job, or None for a job that only reports.

    Where several processes run one program, process 0 alone reads and writes the directory.
    ``assigned`` are the shards of this
    process, and ``name`` is the prefix of their names.

    Attributes:
      existing: the shards of this process whose files exist when the directory is claimed. They may
        turn out not to be whole.
    """

    def __init__(
        self,
        directory: StoragePath | None,
        name: str,
        inputs: manifest.Inputs,
        processes: Processes,
        assigned: Sequence[int],
    ):
        self._directory = directory
        self._processes = processes
        count = len(inputs.of_shards)
        self._names = {shard: shard_name(name, shard, count) for shard in assigned}
        self.existing: frozenset[int] = frozenset()

    @contextlib.contextmanager
    def claimed(self, settings: dict[str, Any]) -> Iterator[None]:
        """Keeps other jobs out of the directory while the block runs (see ``manifest.claim``).

        Raises:
          ValueError: if the directory cannot be used; the message is one line.
        """
        directory = self._directory
        if directory is None:
            yield
            return
        with contextlib.ExitStack() as stack:

            def claim() -> list[int]:
                if directory.is_file():
                    raise ValueError(f"output_dir: expected a directory, got the file {directory}")
                directory.mkdir(parents=True, exist_ok=True)
                stack.enter_context(locks.hold(directory, *self._processes.writer))
                manifest.claim(directory, settings)
                names = {path.name for path in directory.iterdir()}
                return [shard for shard, name in self._names.items() if name in names]

            self.existing = frozenset(self._processes.agreed(claim))
            yield

    def faults_of_finished(
        self, shard: int, items: Sequence[Item], first: int
    ) -> Counter[str] | None:
        """The faults in a shard that an earlier run has finished; None if it is decoded again."""

        def read() -> dict[str, int] | None:
            try:
                found = read_records(self._path(shard), items, first)
            except FileNotFoundError:
                return None
            except ValueError as e:
                _LOGGER.warning("%s; the shard is decoded again", e)
                return None
            return records.count_faults(found)

        faults = self._processes.agreed(read)
        return None if faults is None else Counter(faults)

    def write(self, shard: int, of_shard: Sequence[records.Record]) -> None:
        """Writes the records of a shard.

        Raises:
          OSError: if the file cannot be written.
        """

        if self._directory is not None:
            self._processes.first(lambda: write_records(self._path(shard), of_shard))

    def write_summary(self, summary: summaries.Summary) -> None:
        """Writes the summary of this process.

        Raises:
          OSError: if the file cannot be written.
        """
        directory, writer = self._directory, self._processes.writer
        if directory is not None:
            self._processes.first(lambda: summaries.write(directory, summary, *writer))

    def _path(self, shard: int) -> StoragePath:
        assert self._directory is not None
        return self._directory / self._names[shard]


def shard_name(name: str, index: int, count: int) -> str:
    """Returns the file name of shard ``index`` of ``count`` shards.

    Example:
      >>> shard_name("decodes", 3, 12)
      'decodes-00003-of-00012.jsonl'
    """
    return f"{name}-{index:05d}-of-{count:05d}.jsonl"


def write_records(path: StoragePath, of_shard: Iterable[records.Record]) -> None:
    """Writes one record per line with ``storage.write``."""
    write(path, (records.to_checked_line(record) for record in of_shard))


def read_records(path: StoragePath, items: Sequence[Item], first: int) -> list[records.Record]:
    """Reads the records of a finished shard, whose items begin at index ``first`` of the job.

    Raises:
      ValueError: if the file does not contain one record for each input, in order; the message is
        one line.
    """
    found = [record for _, record in read_lines(path, first)]
    if len(found) != len(items):
        raise ValueError(f"{path}: has {len(found)} records of {len(items)}")
    for record, item in zip(found, items, strict=True):
        start = record["inputs"] if "inputs_length" in record else None
        if record["inputs"] != item.inputs and (start is None or not item.inputs.startswith(start)):
            raise ValueError(f"{path}: record {record['index']} has a different input")
    return found


def read_lines(path: StoragePath, first: int) -> Iterator[tuple[bytes, records.Record]]:
    """Yields each line of a shard and its record without the checksum, from index ``first`` on.

    Raises:
      ValueError: if a line is not the record whose turn it is, or was changed after it was written;
        the message is one line.
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
            checksum = record.pop("crc32", None)  # Earlier versions wrote none.
            if checksum is not None and not records.has_own_checksum(line):
                raise ValueError(f"{path}: line {number} was changed: its crc32 is of another text")
            yield line, record
