"""The processes of a job: each decodes shards of its own, or all run one program."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import jax
import numpy as np
from jax.experimental import multihost_utils

from decoding_jax.sharding.meshes import mesh_of

T = TypeVar("T")


class SharedError(ValueError):
    """An error that all processes of one program raise, with the same message in one line."""


@dataclasses.dataclass(frozen=True)
class Processes:
    """The processes of a job, of which this is one.

    Where a mesh spans them, they run one program: all of them decode the same inputs in the same
    order, and process 0 alone writes. What depends on more than the job's settings, such as which
    files exist, is decided by process 0, which sends it to the others. The methods are then called
    by all processes, in the same order; where each process decodes shards of its own, they only
    call what they are given.

    Attributes:
      index: the index of this process.
      count: the number of processes.
      one_program: whether they run one program.
    """

    index: int
    count: int
    one_program: bool

    @property
    def writes(self) -> bool:
        """Whether this process writes shards."""
        return self.index == 0 or not self.one_program

    @property
    def writer(self) -> tuple[int, int]:
        """The index of this process among those that write, and their number."""
        return (0, 1) if self.one_program else (self.index, self.count)

    def assigned(self, num_shards: int, together: int = 1) -> list[int]:
        """The shards that this process decodes.

        Args:
          num_shards: the number of shards of the job.
          together: the number of shards, one after another, that go to the same process.
        """
        index, count = self.writer
        return [shard for shard in range(num_shards) if shard // together % count == index]

    def first(self, function: Callable[[], T]) -> T | None:
        """Calls a function on process 0, and raises its error on all processes.

        Returns:
          The result on process 0, and None on the others.

        Raises:
          SharedError: for a ValueError or an OSError of the function.
        """
        return self.each(function if self.writes else lambda: None)

    def each(self, function: Callable[[], T]) -> T:
        """Calls a function on every process, and raises the error of any of them on all.

        Raises:
          SharedError: as ``first``.
        """
        if not self.one_program:
            return function()
        result: Any = None
        error = ""
        try:
            result = function()
        except (ValueError, OSError) as e:
            error = str(e).partition("\n")[0] or type(e).__name__
        if errors := [text for text in _exchanged(error) if text]:
            raise SharedError(errors[0])
        return result

    def agreed(self, function: Callable[[], T]) -> T:
        """Calls a function on process 0, and returns its result, a JSON value, on all of them.

        Raises:
          SharedError: as ``first``.
        """
        result: Any = self.first(function)
        return json.loads(_exchanged(json.dumps(result))[0]) if self.one_program else result

    def check_same(self, settings: Mapping[str, Any]) -> None:
        """Checks that all processes have the same JSON values.

        Raises:
          SharedError: if not; the message names the values that differ.
        """
        if not self.one_program:
            return
        lines = {name: json.dumps(value, sort_keys=True) for name, value in settings.items()}
        digests = {n: hashlib.sha256(text.encode()).hexdigest() for n, text in lines.items()}
        of_all = [json.loads(text) for text in _exchanged(json.dumps(digests))]
        for index, of_process in enumerate(of_all):
            names = {**of_all[0], **of_process}
            different = [n for n in names if of_process.get(n) != of_all[0].get(n)]
            if different:
                raise SharedError(
                    f"process {index}: expected the same files, settings and inputs on all "
                    "processes of a mesh, got another job than process 0 (not the same: "
                    f"{', '.join(different)})"
                )


def processes_of(model: Any) -> Processes:
    """The processes of a job with this model.

    Raises:
      ValueError: if the model is on a mesh of some of the other processes, but not of all.
    """
    index, count = jax.process_index(), jax.process_count()
    mesh = mesh_of(model)
    owners = {index} if mesh is None else {device.process_index for device in mesh.devices.flat}
    if owners == {index}:
        return Processes(index, count, one_program=False)
    if mesh is not None and len(owners) < count:
        raise ValueError(
            f"model: expected a mesh of at most {jax.local_device_count()} devices, which each "
            f"process has of its own, or one of {jax.device_count()}, which all processes share, "
            f"got one on {mesh.devices.size} devices of {len(owners)} of {count} processes"
        )
    return Processes(index, count, one_program=True)


def pieces_digest(array: jax.Array) -> str:
    """A digest of an array that processes share, each of which reads pieces that it holds.

    It depends on how the array is laid out. All processes call this.
    """
    shape = array.shape
    places: dict[Any, jax.Device] = {}
    for device, index in array.sharding.devices_indices_map(shape).items():
        piece = tuple(x.indices(n)[:2] for x, n in zip(index or (), shape, strict=True))
        places[piece] = min(places.get(piece, device), device, key=lambda d: d.id)
    local = {shard.device: shard.data for shard in array.addressable_shards}
    digests = np.zeros((len(places), hashlib.sha256().digest_size), np.uint8)
    for i, piece in enumerate(sorted(places)):
        if places[piece] in local:
            data = np.ascontiguousarray(local[places[piece]]).reshape(-1).view(np.uint8)
            digests[i] = np.frombuffer(hashlib.sha256(data.data).digest(), np.uint8)
    whole = multihost_utils.process_allgather(digests).sum(0, dtype=np.uint8)
    return hashlib.sha256(whole.tobytes()).hexdigest()


def _exchanged(text: str) -> list[str]:
    """The texts of all processes."""
    data = np.frombuffer(text.encode(), np.uint8)
    sizes = multihost_utils.process_allgather(np.int32(data.size)).tolist()
    size = 256  # A few sizes, so that few programs are compiled.
    while size < max(sizes):
        size *= 2
    padded = np.zeros(size, np.uint8)
    padded[: data.size] = data
    gathered = multihost_utils.process_allgather(padded)
    return [row[:n].tobytes().decode() for row, n in zip(gathered, sizes, strict=True)]
