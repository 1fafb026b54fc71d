"""Arrays that ``tensorstore`` reads: zarr, and the checkpoints of Orbax, also as tensors."""

from __future__ import annotations

import copy
import dataclasses
import functools
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from decoding_jax.models.checkpoint.directory import FLOATS, CheckpointError, Tensors
from decoding_jax.storage import StoragePath, kvstore

METADATA = "_METADATA"
"""The file of a folder of Orbax's that says which arrays it has."""


@dataclasses.dataclass(frozen=True)
class StoredArray:
    """A zarr array, of which a tuple of slices and ints reads that part.

    Attributes:
      store: the open array.
      name: its name, for errors.
      where: the checkpoint, for errors.
    """

    store: Any
    name: str
    where: StoragePath

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.store.shape)

    def __getitem__(self, index: tuple[slice | int, ...]) -> np.ndarray:
        try:
            return np.asarray(self.store[index].read().result())
        except ValueError as e:
            raise _unreadable(self.name, self.where, e) from e


def tensorstore_for(where: StoragePath) -> Any:
    """The module ``tensorstore``.

    Raises:
      CheckpointError: if it is not installed.
    """
    try:
        import tensorstore
    except ImportError as e:
        raise CheckpointError(f"{where}: needs tensorstore: pip install decoding_jax[t5x]") from e
    return tensorstore


def open_array(
    name: str, where: StoragePath, store: dict[str, Any], driver: str = "zarr"
) -> StoredArray:
    """Opens one array.

    Args:
      name: its name, for errors.
      where: the checkpoint, for errors.
      store: the key-value store of the array, as ``tensorstore`` takes it.
      driver: ``"zarr"``, or ``"zarr3"`` for version 3 of the format.

    Raises:
      CheckpointError: if it cannot be read or does not contain floats, or if ``tensorstore`` is not
        installed.
    """
    tensorstore = tensorstore_for(where)
    try:
        opened = tensorstore.open({"driver": driver, "kvstore": store}).result()
    except ValueError as e:
        raise _unreadable(name, where, e) from e
    check_dtype(name, where, opened.dtype.name)
    return StoredArray(opened, name, where)


def orbax_tree(path: StoragePath) -> tuple[dict[str, Any], list[list[str]]]:
    """What ``_METADATA`` in a folder of Orbax's says, and the keys on the path of every array.

    Raises:
      CheckpointError: for another file.
    """
    try:
        metadata = json.loads((path / METADATA).read_text())
        places = [
            [str(part["key"]) for part in entry["key_metadata"]]
            for entry in metadata["tree_metadata"].values()
        ]
    except (ValueError, KeyError, TypeError, AttributeError) as e:
        raise CheckpointError(f"{path / METADATA}: is not Orbax's ({e})") from e
    return metadata, places


def orbax_arrays(
    path: StoragePath, name_of: Callable[[Sequence[str]], str | None]
) -> dict[str, StoredArray]:
    """Opens the arrays of a folder of Orbax's.

    Args:
      path: the folder, which has ``_METADATA``.
      name_of: returns the name of the array at a path of keys, or None for one that is not read.

    Raises:
      CheckpointError: for another file, and as ``open_array``.
    """
    metadata, places = orbax_tree(path)
    driver = "zarr3" if metadata.get("use_zarr3") else "zarr"
    found = {}
    for keys in places:
        name, place = name_of(keys), ".".join(keys)
        if name is None:
            continue
        store: dict[str, Any] = kvstore(path / place)
        if metadata.get("use_ocdbt"):
            store = {"driver": "ocdbt", "base": kvstore(path), "path": f"{place}/"}
        found[name] = open_array(name, path, store, driver)
    return found


@dataclasses.dataclass(frozen=True)
class Converted:
    """A tensor that is made of an array; a tuple of slices reads that part.

    The first of them reads and converts the whole, which is kept for the others.

    Attributes:
      array: the array.
      at: the part of it that is the tensor's.
      shape: the shape of the tensor.
      of: returns the tensor, in this or another shape, for the part in float32.
    """

    array: StoredArray
    at: tuple[slice | int, ...]
    shape: tuple[int, ...]
    of: Callable[[np.ndarray], np.ndarray]

    def get_shape(self) -> list[int]:
        return list(self.shape)

    def get_dtype(self) -> str:
        return str(self.array.store.dtype.name)

    @functools.cached_property
    def whole(self) -> np.ndarray:
        """The tensor, in float32."""
        return self.of(np.asarray(self.array[self.at], np.float32)).reshape(self.shape)

    def __getitem__(self, index: Any) -> np.ndarray:
        return self.whole[index]


class ConvertedTensors(Tensors):
    """The arrays of a checkpoint as tensors under the names of Hugging Face's layout.

    Args:
      where: the folder of the arrays, for errors.
      config: the name of the file that says which shapes they have, for errors.
      tensors: the tensors, by their names.
      others: the arrays that none is made of, which are unexpected.
    """

    def __init__(
        self,
        where: StoragePath,
        config: str,
        tensors: Mapping[str, Converted],
        others: Iterable[StoredArray],
    ):
        self.config = config
        self._used, self._stored, self.expected = set(), {}, set()
        self._made = {x.name: Converted(x, (), x.shape, lambda part: part) for x in others}
        self._made |= tensors
        self._file_of = dict.fromkeys(self._made, where)

    def _slice(self, name: str) -> Any:
        # A copy, so that what it keeps is freed with the readers of one parameter.
        return copy.copy(self._made[self._stored.get(name, name)])


def check_dtype(name: str, where: StoragePath, dtype: str) -> None:
    """Raises an error for an array of another dtype."""
    if dtype not in FLOATS:
        raise CheckpointError(f"{where}: {name}: expected {', '.join(FLOATS)}, got {dtype}")


def _unreadable(name: str, where: StoragePath, error: ValueError) -> CheckpointError:
    cause = str(error).split(" [", maxsplit=1)[0]
    return CheckpointError(f"{where}: {name}: cannot be read ({cause})")
