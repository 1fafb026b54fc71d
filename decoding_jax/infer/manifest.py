"""Records in ``job.json`` what a job depends on, so that another job does not mix its output."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import jax
import jaxlib

import decoding_jax
from decoding_jax.infer import locks
from decoding_jax.infer.sources import Item, schema_text
from decoding_jax.storage import StoragePath, create
from decoding_jax.text import Tokenizer

FILE = "job.json"
_PROBE = "The quick brown fox, 0123456789! Größe, ça où; Привет, 你好, مرحبا.\n\t<pad></s>"
# The settings of JAX that affect the rounding of results or the random numbers.
_JAX_SETTINGS = (
    "jax_default_matmul_precision",
    "jax_enable_x64",
    "jax_threefry_partitionable",
)


@dataclasses.dataclass(frozen=True)
class Inputs:
    """Counts and digests of a job's inputs, computed when the job begins.

    Attributes:
      count: the number of inputs.
      digest: a digest of all inputs in their order.
      of_shards: one digest for the inputs of each shard.
      shard_size: the number of inputs of every shard except the last, which may have fewer.
      stop_strings: the stop strings of each input, or None where it has those of the job.
      json_schemas: the schema of each input, as JSON, or None where it has that of the job.
      files: the names of the files that the inputs are from, if there are several.
    """

    count: int
    digest: str
    of_shards: list[str]
    shard_size: int
    stop_strings: list[tuple[str, ...] | None]
    json_schemas: list[str | None]
    files: list[str]

    def size_of(self, shard: int) -> int:
        """Returns the number of inputs of a shard."""
        return min(self.shard_size, self.count - shard * self.shard_size)


def survey(source: Iterable[Item], shard_size: int) -> Inputs:
    """Counts the items of a source and computes their digests.

    Example:
      >>> inputs = survey([Item("one"), Item("", "empty")], shard_size=1)
      >>> inputs.count, len(inputs.of_shards)
      (2, 2)
    """
    count, of_shards = 0, []
    stop_strings: list[tuple[str, ...] | None] = []
    files: dict[str, None] = {}
    json_schemas: list[str | None] = []
    different: dict[Any, Any] = {}  # each value once
    for items in chunks(source, shard_size):
        count += len(items)
        of_shards.append(_digest_of(items))
        for item in items:
            own = None if item.stop_strings is None else tuple(item.stop_strings)
            stop_strings.append(different.setdefault(own, own))
            schema = schema_text(item)
            json_schemas.append(different.setdefault(schema, schema))
            if item.file is not None:
                files[item.file] = None
    whole = hashlib.sha256("".join(of_shards).encode()).hexdigest()
    return Inputs(count, whole, of_shards, shard_size, stop_strings, json_schemas, list(files))


def unchanged(source: Iterable[Item], inputs: Inputs) -> Iterator[list[Item]]:
    """Yields the items of each shard, after a check that they have not changed.

    Args:
      source: the source that ``survey`` has counted.
      inputs: the result of ``survey``.

    Raises:
      ValueError: if the items of a shard differ from those that ``survey`` has read, or are
        missing; the message is one line.
    """
    count = 0
    for shard, items in enumerate(chunks(source, inputs.shard_size)):
        if shard >= len(inputs.of_shards) or _digest_of(items) != inputs.of_shards[shard]:
            raise _changed(shard * inputs.shard_size, inputs)
        count += len(items)
        yield items
    if count != inputs.count:
        raise _changed(count, inputs)


def chunks(source: Iterable[Item], size: int) -> Iterator[list[Item]]:
    """Yields the items of a source in lists of ``size``; the last may be shorter."""
    chunk: list[Item] = []
    for item in source:
        chunk.append(item)
        if len(chunk) == size:
            yield chunk
            chunk = []
    if chunk:
        yield chunk


def environment() -> dict[str, Any]:
    """Returns what results depend on beside the job's settings: versions, device, JAX settings."""
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
    """Returns a digest of a tokenizer's end tokens and of the tokens of a varied test sentence."""
    try:
        tokens: list[Any] = [int(i) for i in tokenizer.encode(_PROBE)]
    except Exception as e:  # A tokenizer that refuses the sentence is identified by its error.
        tokens = [str(e)]
    ends = [int(i) for i in tokenizer.eos_ids]
    return hashlib.sha256(json.dumps([tokens, ends]).encode()).hexdigest()


def claim(directory: StoragePath, manifest: dict[str, Any]) -> None:
    """Assigns a directory to this job, or checks that it already belongs to the job.

    If several processes claim a new directory at the same time, one of them writes its manifest,
    and the others compare their manifests with it.

    Args:
      directory: an existing directory that ``locks.hold`` has locked.
      manifest: everything that the job's results depend on, as JSON values.

    Raises:
      ValueError: if the directory belongs to another job or contains other files; the message is
        one line.
    """
    path = directory / FILE
    manifest = json.loads(json.dumps(manifest))
    if not path.exists():
        others = sorted(p.name for p in directory.iterdir() if not _is_transient(p.name))
        if others and not path.exists():
            raise ValueError(
                "output_dir: expected an empty directory or this job's own, got "
                f"{directory}, which holds {others[0]} but no {FILE}"
            )
        if create(path, [json.dumps(manifest, indent=2, ensure_ascii=False) + "\n"]):
            return
    found = _read(path)
    different = [k for k in {**manifest, **found} if manifest.get(k) != found.get(k)]
    if different:
        raise ValueError(
            f"output_dir: expected an empty directory or this job's own, got {directory}, which "
            f"belongs to another job (not the same: {', '.join(different)})"
        )


def _is_transient(name: str) -> bool:
    """Whether a file is a lock or temporary, as a job that is killed early may leave behind."""
    return bool(re.fullmatch(r"\..*\.tmp", name)) or name.startswith(locks.FILE)


def _digest_of(items: Sequence[Item]) -> str:
    text = "".join(f"{json.dumps(_given(item))}\n" for item in items)
    return hashlib.sha256(text.encode()).hexdigest()


def _given(item: Item) -> tuple[Any, ...]:
    """The fields of an item up to the last one that is set, so that digests of old jobs hold."""
    if item.json_schema is not None:
        return item
    if item.file is not None:
        return item[:5]
    return item[:3] if item.stop_strings is None else item[:4]


def _changed(index: int, inputs: Inputs) -> ValueError:
    return ValueError(
        "source: expected the same items each time, and files that are not edited, got others from "
        f"index {index} on than the {inputs.count} that the job began with"
    )


def _read(path: StoragePath) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as e:
        raise ValueError(f"output_dir: {path} is not JSON: {e}") from e
    return found if isinstance(found, dict) else {"": found}
