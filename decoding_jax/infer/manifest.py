"""What makes a job the same job: ``job.json`` in its output directory."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import jaxlib

import decoding_jax
from decoding_jax.infer import lock, shards
from decoding_jax.infer.sources import Item
from decoding_jax.text import Tokenizer

FILE = "job.json"
_PROBE = "The quick brown fox, 0123456789! Größe, ça où; Привет, 你好, مرحبا.\n\t<pad></s>"
# What changes the last bits of a result, or which numbers are drawn, in JAX's configuration.
_JAX_SETTINGS = (
    "jax_default_matmul_precision",
    "jax_enable_x64",
    "jax_threefry_partitionable",
)


@dataclasses.dataclass(frozen=True)
class Inputs:
    """The inputs of a job, as they were when it began.

    Attributes:
      count: how many there are.
      digest: of all of them in their order.
      of_shards: a digest of the inputs of each shard.
      shard_size: how many inputs a shard has, but for the last.
    """

    count: int
    digest: str
    of_shards: list[str]
    shard_size: int

    def size_of(self, shard: int) -> int:
        """How many inputs a shard has."""
        return min(self.shard_size, self.count - shard * self.shard_size)


def survey(source: Iterable[Item], shard_size: int) -> Inputs:
    """Counts the items of a source, and takes digests of them.

    Example:
      >>> inputs = survey([Item("one"), Item("", "empty")], shard_size=1)
      >>> inputs.count, len(inputs.of_shards)
      (2, 2)
    """
    count, of_shards = 0, []
    for items in chunks(source, shard_size):
        count += len(items)
        of_shards.append(_digest_of(items))
    whole = hashlib.sha256("".join(of_shards).encode()).hexdigest()
    return Inputs(count, whole, of_shards, shard_size)


def unchanged(source: Iterable[Item], inputs: Inputs) -> Iterator[list[Item]]:
    """The items of each shard, compared with what they were when the job began.

    Args:
      source: iterated over again.
      inputs: from ``survey``.

    Raises:
      ValueError: in one line, as soon as a shard's items differ or are missing.
    """
    found = 0
    for shard, items in enumerate(chunks(source, inputs.shard_size)):
        if shard >= len(inputs.of_shards) or _digest_of(items) != inputs.of_shards[shard]:
            raise _changed(shard * inputs.shard_size, inputs)
        found += len(items)
        yield items
    if found != inputs.count:
        raise _changed(found, inputs)


def chunks(source: Iterable[Item], size: int) -> Iterator[list[Item]]:
    """The items of a source, ``size`` at a time."""
    chunk: list[Item] = []
    for item in source:
        chunk.append(item)
        if len(chunk) == size:
            yield chunk
            chunk = []
    if chunk:
        yield chunk


def environment() -> dict[str, Any]:
    """What a job's results depend on beside its settings: versions, device and JAX's settings."""
    device = jax.local_devices()[0]
    return {
        "versions": {
            "decoding_jax": decoding_jax.__version__,
            "jax": jax.__version__,
            "jaxlib": jaxlib.__version__,
        },
        "device": f"{device.platform}: {device.device_kind}",
        "jax": {name: getattr(jax.config, name) for name in _JAX_SETTINGS},
    }


def tokenizer_digest(tokenizer: Tokenizer) -> str:
    """A digest of what a tokenizer makes of a line with some of everything."""
    try:
        seen: list[Any] = [int(i) for i in tokenizer.encode(_PROBE)]
    except Exception as e:  # one that takes no such text is told apart by what it says
        seen = [str(e)]
    ends = [int(i) for i in tokenizer.eos_ids]
    return hashlib.sha256(json.dumps([seen, ends]).encode()).hexdigest()


def claim(directory: Path, manifest: dict[str, Any]) -> None:
    """Makes the directory this job's, or sees that it already is.

    Of several processes that claim a new directory at once, one writes its manifest, and the others
    compare theirs with it.

    Args:
      directory: an existing directory, held by ``lock.hold``.
      manifest: whatever the job's results depend on.

    Raises:
      ValueError: in one line, if it belongs to another job or holds something else.
    """
    path = directory / FILE
    manifest = json.loads(json.dumps(manifest))
    if not path.exists():
        others = sorted(p.name for p in directory.iterdir() if not _is_passing(p.name))
        if others and not path.exists():
            raise ValueError(
                f"output_dir: {directory} holds {others[0]} but no {FILE}; takes an empty "
                "directory or this job's own"
            )
        if shards.create(path, [json.dumps(manifest, indent=2, ensure_ascii=False) + "\n"]):
            return
    found = _read(path)
    different = [k for k in {**manifest, **found} if manifest.get(k) != found.get(k)]
    if different:
        raise ValueError(
            f"output_dir: {directory} belongs to another job (not the same: "
            f"{', '.join(different)}); takes an empty directory or this job's own"
        )


def _is_passing(name: str) -> bool:
    """Whether a file is a lock, or temporary: what a job leaves behind that is killed early."""
    return bool(re.fullmatch(r"\..*\.tmp", name)) or name.startswith(lock.FILE)


def _digest_of(items: Sequence[Item]) -> str:
    text = "".join(f"{json.dumps(item)}\n" for item in items)
    return hashlib.sha256(text.encode()).hexdigest()


def _changed(index: int, inputs: Inputs) -> ValueError:
    return ValueError(
        f"source: the inputs from index {index} on are not the {inputs.count} that the job began "
        "with; takes a source that gives the same items each time, and a file that nobody edits"
    )


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as e:
        raise ValueError(f"output_dir: {path} is not JSON: {e}") from e
    return found if isinstance(found, dict) else {"": found}
