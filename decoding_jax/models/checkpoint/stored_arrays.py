"""Arrays that ``tensorstore`` reads: zarr, and the checkpoints of Orbax."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from decoding_jax.models.checkpoint.directory import FLOATS, CheckpointError
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
    try:
        metadata = json.loads((path / METADATA).read_text())
        places = [
            [str(part["key"]) for part in entry["key_metadata"]]
            for entry in metadata["tree_metadata"].values()
        ]
    except (ValueError, KeyError, TypeError, AttributeError) as e:
        raise CheckpointError(f"{path / METADATA}: is not Orbax's ({e})") from e
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


def check_dtype(name: str, where: StoragePath, dtype: str) -> None:
    """Raises an error for an array of another dtype."""
    if dtype not in FLOATS:
        raise CheckpointError(f"{where}: {name}: expected {', '.join(FLOATS)}, got {dtype}")


def _unreadable(name: str, where: StoragePath, error: ValueError) -> CheckpointError:
    cause = str(error).split(" [", maxsplit=1)[0]
    return CheckpointError(f"{where}: {name}: cannot be read ({cause})")
