"""The directory that a job writes to: its lock, its finished shards, and its summary."""

from __future__ import annotations

import contextlib
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from decoding_jax.infer import lock, manifest, records, shards, summaries
from decoding_jax.infer.manifest import Inputs
from decoding_jax.infer.processes import Processes
from decoding_jax.infer.records import Record
from decoding_jax.infer.sources import Item
from decoding_jax.infer.summaries import Summary
from decoding_jax.storage import StoragePath

_LOGGER = logging.getLogger(__name__)


class Output:
    """The directory of a job. Of processes that run one program, process 0 writes and reads it.

    Args:
      directory: the directory.
      name: the prefix of the names of shards.
      inputs: the inputs of the job.
      processes: the processes of the job.
      assigned: the shards of this process.

    Attributes:
      existing: the shards of this process whose files exist when the directory is claimed. They may
        turn out not to be whole.
    """

    def __init__(
        self,
        directory: StoragePath,
        name: str,
        inputs: Inputs,
        processes: Processes,
        assigned: Sequence[int],
    ):
        self._directory = directory
        self._processes = processes
        count = len(inputs.of_shards)
        self._paths = {
            shard: directory / shards.shard_name(name, shard, count) for shard in assigned
        }
        self._check_lock: Callable[[], None] | None = None
        self.existing: frozenset[int] = frozenset()

    @contextlib.contextmanager
    def claimed(self, settings: dict[str, Any], lock_seconds: float) -> Iterator[None]:
        """Keeps other jobs out of the directory while the block runs.

        Args:
          settings: what the job depends on, for ``manifest.claim``.
          lock_seconds: as in ``infer.run``.

        Raises:
          ValueError: if the directory cannot be used; the message is one line.
        """
        with contextlib.ExitStack() as stack:

            def claim() -> list[int]:
                _make_directory(self._directory)
                self._check_lock = stack.enter_context(
                    lock.hold(self._directory, *self._processes.writer, lock_seconds)
                )
                manifest.claim(self._directory, settings)
                names = {path.name for path in self._directory.iterdir()}
                return [shard for shard, path in self._paths.items() if path.name in names]

            self.existing = frozenset(self._processes.agreed(claim))
            yield

    def faults_of_finished(
        self, shard: int, items: Sequence[Item], first: int
    ) -> Counter[str] | None:
        """The faults in a shard that an earlier run has finished; None if it is decoded again.

        Args:
          shard: the number of the shard.
          items: its inputs.
          first: the index of the first input in the job.
        """

        def read() -> dict[str, int] | None:
            try:
                found = shards.read_records(self._paths[shard], items, first)
            except FileNotFoundError:
                return None
            except ValueError as e:
                _LOGGER.warning("%s; the shard is decoded again", e)
                return None
            return records.count_faults(found)

        faults = self._processes.agreed(read)
        return None if faults is None else Counter(faults)

    def write(self, shard: int, of_shard: Sequence[Record]) -> None:
        """Writes the records of a shard.

        Raises:
          ValueError: if another job has taken the directory over.
          OSError: if the file cannot be written.
        """

        def write() -> None:
            if self._check_lock is not None:
                self._check_lock()
            shards.write_records(self._paths[shard], of_shard)

        self._processes.first(write)

    def write_summary(self, summary: Summary) -> None:
        """Writes the summary of this process.

        Raises:
          OSError: if the file cannot be written.
        """
        self._processes.first(
            lambda: summaries.write(self._directory, summary, *self._processes.writer)
        )


def _make_directory(directory: StoragePath) -> None:
    if directory.is_file():
        raise ValueError(f"output_dir: {directory} is a file; takes a directory")
    directory.mkdir(parents=True, exist_ok=True)
