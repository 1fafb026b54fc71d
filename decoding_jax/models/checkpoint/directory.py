"""A model directory: settings in ``config.json``, tensors in ``*.safetensors``.

Of a safetensors file in a bucket, only the parts that are needed are read.
"""

from __future__ import annotations

import json
import math
import re
import warnings
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
import safetensors

from decoding_jax.storage import CloudPath, StorageError, StoragePath

Index = tuple[slice, ...]

CONFIG = "config.json"
GENERATION_CONFIG = "generation_config.json"
WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
FLOATS = ("float64", "float32", "float16", "bfloat16")
# The names of dtypes in safetensors files; others are named as the file names them.
DTYPES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "I32": "int32"}
INTEGERS = {"I8": "int8", "U8": "uint8", "I32": "int32", "I64": "int64"}
# The names of activations in Hugging Face's files, mapped to those of ``models.layers``, and back.
ACTIVATIONS = {
    "relu": "relu",
    "relu2": "relu2",
    "gelu_new": "gelu",
    "gelu_fast": "gelu",
    "gelu_pytorch_tanh": "gelu",
    "gelu": "gelu_exact",
    "silu": "silu",
    "swish": "silu",
    "linear": "linear",
}
ACTIVATIONS_BACK = {
    "relu": "relu",
    "relu2": "relu2",
    "gelu": "gelu_new",
    "gelu_exact": "gelu",
    "silu": "silu",
    "linear": "linear",
}
_REQUIRED: Any = object()


class CheckpointError(ValueError):
    """A model directory cannot be used. The message is one line with the file and the fault."""


def all_of(shape: tuple[int, ...]) -> Index:
    """The slices of a whole array."""
    return tuple(slice(0, size) for size in shape)


def with_beginning(name: str, changes: Mapping[str, str]) -> str:
    """The name, with the value of a pattern in the place of a beginning that matches it."""
    for pattern, value in changes.items():
        name = re.sub(f"^(?:{pattern})", value, name)
    return name


class Settings:
    """The values of ``config.json`` or of an object in it, with checked types."""

    def __init__(self, path: StoragePath, values: Mapping[str, Any] | None = None):
        self.path = path
        self.values = read_json(path) if values is None else values

    def section(self, *keys: str) -> Settings:
        """The first object of ``keys`` that is not empty, or an empty one."""
        found = (self.get(key, dict, None) for key in keys)
        return Settings(self.path, next((values for values in found if values), {}))

    def error(self, key: str, value: Any, expected: str) -> CheckpointError:
        return CheckpointError(f"{self.path}: {key}: expected {expected}, got {value!r}")

    def get(self, key: str, kind: type, default: Any = _REQUIRED) -> Any:
        """The value of ``key``, of type ``kind``. If it is absent or null, the default."""
        value = self.values.get(key)
        if value is None:
            if default is _REQUIRED:
                raise CheckpointError(f"{self.path}: has no {key}")
            return default
        if kind is float and isinstance(value, int) and not isinstance(value, bool):
            value = float(value)
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise self.error(key, value, f"a value of type {kind.__name__}")
        return value

    def size(self, key: str, default: Any = _REQUIRED) -> int:
        """The value of ``key``, an integer of 1 and above."""
        value = self.get(key, int, default)
        if value < 1:
            raise self.error(key, value, "1 and above")
        return value

    def one_of(self, key: str, choices: Mapping[str, str], default: str) -> str:
        """The entry of ``choices`` for the value of ``key``."""
        value = self.get(key, str, default)
        if value not in choices:
            raise self.error(key, value, "one of " + ", ".join(sorted(choices)))
        return choices[value]

    def refuse(self, **supported: Any) -> None:
        """Raises an error for a setting that has another value than the only supported one."""
        for key, supported_value in supported.items():
            value = self.values.get(key)
            if value is not None and value != supported_value:
                only = "null" if supported_value is None else repr(supported_value)
                raise self.error(key, value, f"{only} only")


class Tensors:
    """The tensors of a directory, in one file or in shards with an index.

    They are read on demand. Where there are both, the file is read, as ``transformers`` does.

    Args:
      directory: the directory.
      also: the names of another file, which is read where there are neither.

    Warns:
      UserWarning: if there are both.

    Raises:
      CheckpointError: if there are no safetensors files, or a file is missing or cannot be read.
    """

    config = CONFIG  # the file that says which shapes tensors have, for errors

    def __init__(self, directory: StoragePath, also: Sequence[str] = ()):
        self._files: dict[StoragePath, Any] = {}
        self._used: set[str] = set()
        self.expected: set[str] = set()  # the names that the model has, for errors
        self._stored: dict[str, str] = {}
        self._made: dict[str, Any] = {}
        found = next((directory / n for n in (WEIGHTS, *also) if (directory / n).is_file()), None)
        has_index = (directory / INDEX).is_file()
        if found is not None and (found.name == WEIGHTS or not has_index):
            self._file_of = dict.fromkeys(self._open(found).keys(), found)
        elif has_index:
            self._file_of = self._read_index(directory / INDEX)
        else:
            self._raise_no_weights(directory)
        if has_index and found is not None and found.name == WEIGHTS:
            warnings.warn(
                f"{directory}: {WEIGHTS} is read, and not the shards of {INDEX}, as transformers"
                " does; remove the file or the index",
                stacklevel=4,
            )

    def _raise_no_weights(self, directory: StoragePath) -> None:
        pickled = sorted(p.name for p in directory.glob("*.bin"))
        if pickled:
            raise CheckpointError(
                f"{directory / pickled[0]}: is a pickle and is not read; convert it to safetensors"
            )
        others = sorted(p.name for p in directory.glob("*.safetensors"))
        found = f"; found {', '.join(others[:3])}" if others else ""
        raise CheckpointError(f"{directory}: has neither {WEIGHTS} nor {INDEX}{found}")

    def _read_index(self, path: StoragePath) -> dict[str, StoragePath]:
        names = read_json(path).get("weight_map")
        if not isinstance(names, dict):
            raise CheckpointError(f"{path}: has no weight_map")
        file_of = {}
        for name, file in names.items():
            shard = path.parent / str(file)
            if shard.parent != path.parent:
                raise CheckpointError(
                    f"{path}: {name}: expected a file beside the index, got {file!r}"
                )
            if name not in self._open(shard).keys():  # noqa: SIM118 (not a mapping)
                raise CheckpointError(f"{shard}: lacks {name}, which {INDEX} places there")
            file_of[name] = shard
        return file_of

    def _open(self, path: StoragePath) -> Any:
        if path not in self._files:
            if not path.is_file():
                raise CheckpointError(f"{path}: no such file")
            try:
                if isinstance(path, CloudPath):
                    self._files[path] = RangedSafetensors(path)
                else:
                    self._files[path] = safetensors.safe_open(path, framework="np")
            except (safetensors.SafetensorError, OSError) as e:
                if isinstance(e, StorageError):
                    raise
                check_fetched(path)
                raise CheckpointError(f"{path}: truncated, or not safetensors ({e})") from e
        return self._files[path]

    def rename(self, changes: Mapping[str, str], base: str, heads: str) -> None:
        """Gives tensors the names of the family, which other versions name otherwise.

        Args:
          changes: names that begin with a match of each pattern begin with its value instead.
          base: what the names of a network within a model begin with. A network that was saved by
            itself, without its head, has names without it.
          heads: the tensors of the model that are not within the network, as a pattern.
        """
        renamed = {name: with_beginning(name, changes) for name in self._file_of}
        if not any(name.startswith(base) for name in renamed.values()):
            for name, new in renamed.items():
                renamed[name] = new if re.fullmatch(heads, new) else base + new
        back = {new: name for name, new in renamed.items()}
        for name, new in renamed.items():
            if back[new] != name:
                raise CheckpointError(f"{self._file_of[name]}: has both {name} and {back[new]}")
        self._stored |= back
        self._file_of = {new: self._file_of[name] for new, name in back.items()}

    def tie(self, table: str, other: str) -> bool:
        """Whether two names are of one table: files keep both, or one of them, which is ``table``.

        An equal tensor counts as used.
        """
        if table not in self and other in self:
            self._stored[table] = self._stored.get(other, other)
            self._file_of[table] = self._file_of.pop(other)
        return self.same(other, table)

    @property
    def names(self) -> list[str]:
        """The names of all tensors."""
        return list(self._file_of)

    def __contains__(self, name: str) -> bool:
        return name in self._file_of

    def take(self, name: str) -> Any:
        """A tensor that another one is made of; it counts as used."""
        if name not in self:
            raise self._missing(name)
        self._used.add(name)
        return self._slice(name)

    def add(self, name: str, tensor: Any) -> None:
        """Adds a tensor with the methods of a slice of ``safetensors``, made of taken ones."""
        self._file_of[name], self._made[name] = next(iter(self._file_of.values())), tensor

    def _slice(self, name: str) -> Any:
        """The slice of a name, which the file may name otherwise."""
        if name in self._made:
            return self._made[name]
        return self._open(self._file_of[name]).get_slice(self._stored.get(name, name))

    def _missing(self, name: str) -> CheckpointError:
        """The error for a tensor that is not there, with those that have no place in the model."""
        files = sorted({str(p) for p in self._file_of.values()})
        known = self._used | self.expected
        other = [self._stored.get(n, n) for n in self._file_of if n not in known]
        near = [n for n in other if n.endswith(f".{name.split('.', 1)[-1]}")][:1] or other[:2]
        more = f" and {len(other) - len(near)} more" if len(other) > len(near) else ""
        found = f"; found {', '.join(near)}{more}, unexpected" if near else ""
        return CheckpointError(f"{', '.join(files) or 'no file'}: lacks {name}{found}")

    def dtype(self) -> str:
        """The dtype that most weights are stored in; see ``stored_dtype``."""
        tensors = [self._slice(name) for name in self._file_of]
        kinds = [DTYPES.get(t.get_dtype(), t.get_dtype()) for t in tensors]
        sizes = [math.prod(t.get_shape()) for t in tensors]
        packed = {"U8"}  # small floats of gpt-oss, which are widened
        return stored_dtype(x for x in zip(kinds, sizes, strict=True) if x[0] not in packed)

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._slice(name).get_shape())

    def read(self, name: str, shape: tuple[int, ...]) -> np.ndarray:
        """The whole tensor ``name``; see ``slices``."""
        return self.slices(name, shape)[all_of(shape)]

    def integers(self, name: str) -> np.ndarray:
        """The whole tensor ``name``, which contains integers."""
        if name not in self:
            raise self._missing(name)
        path = self._file_of[name]
        found = self._slice(name)
        if found.get_dtype() not in INTEGERS:
            raise CheckpointError(f"{path}: {name}: expected integers, got {found.get_dtype()}")
        self._used.add(name)
        return found[all_of(self.shape(name))]

    def slices(self, name: str, shape: tuple[int, ...]) -> Any:
        """The tensor ``name``, which must have this shape; a tuple of slices reads that part.

        Raises:
          CheckpointError: if it is missing, has another shape, or does not contain floats.
        """
        if name not in self:
            raise self._missing(name)
        path = self._file_of[name]
        if self.shape(name) != shape:
            raise CheckpointError(
                f"{path}: {name}: got shape {self.shape(name)}; {self.config} says {shape}"
            )
        self._used.add(name)
        tensor = self._slice(name)
        dtype = DTYPES.get(tensor.get_dtype(), tensor.get_dtype())
        if dtype not in FLOATS:
            raise CheckpointError(f"{path}: {name}: expected {', '.join(FLOATS)}, got {dtype}")
        return tensor

    def same(self, name: str, other: str) -> bool:
        """Whether ``name`` is absent or equal to ``other``. An equal tensor counts as used."""
        if name not in self or other not in self:
            return name not in self
        equal = self.shape(name) == self.shape(other)
        equal = equal and np.array_equal(
            self.read(name, self.shape(name)), self.read(other, self.shape(other))
        )
        if equal:
            self._used.add(name)
        return equal

    def check_all_used(self, ignored: str) -> None:
        """Raises an error for an unused tensor unless its name matches the pattern ``ignored``."""
        unused = [n for n in self._file_of if n not in self._used and not re.fullmatch(ignored, n)]
        if unused:
            more = f" and {len(unused) - 1} more" if len(unused) > 1 else ""
            name = self._stored.get(unused[0], unused[0])
            raise CheckpointError(f"{self._file_of[unused[0]]}: unexpected tensor {name}{more}")


def stored_dtype(arrays: Iterable[tuple[str, int]]) -> str:
    """The dtype of a network whose weights take as much memory as they do in their files.

    Args:
      arrays: the dtype and the size of each array.

    Returns:
      ``"bfloat16"`` if most of the numbers are, and otherwise ``"float32"``: the networks do not
      compute in float16, and bfloat16 would round what float16 holds.

    Example:
      >>> stored_dtype([("bfloat16", 100), ("float32", 10)]), stored_dtype([("float16", 100)])
      ('bfloat16', 'float32')
    """
    sizes: Counter[str] = Counter()
    for dtype, size in arrays:
        sizes[dtype] += size
    return "bfloat16" if 2 * sizes["bfloat16"] > sizes.total() else "float32"


_POINTER = b"version https://git-lfs"


def check_fetched(path: StoragePath) -> None:
    """Raises an error for a file that git-lfs has not fetched."""
    if isinstance(path, CloudPath):
        return
    with path.open("rb") as file:
        if file.read(len(_POINTER)) == _POINTER:
            raise CheckpointError(
                f"{path}: is a pointer of git-lfs and not the file, which `git lfs pull` fetches"
            )


def read_json(path: StoragePath) -> dict[str, Any]:
    """Reads a JSON file that contains an object.

    Raises:
      CheckpointError: if the file cannot be read or does not contain an object.
    """
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except StorageError:
        raise
    except OSError as e:
        raise CheckpointError(f"{path}: cannot be read ({e.strerror})") from e
    except ValueError as e:
        check_fetched(path)
        raise CheckpointError(f"{path}: is not JSON ({e})") from e
    if not isinstance(values, dict):
        raise CheckpointError(f"{path}: expected an object, got {type(values).__name__}")
    return values


_MAX_HEADER = 100_000_000  # bytes, the limit of the format


class RangedSafetensors:
    """What ``safetensors.safe_open`` offers, for a file in a bucket.

    A file is 8 bytes (the size of the header, little-endian), a header of JSON with the dtype, the
    shape and the offsets of each tensor, and the tensors (huggingface.co/docs/safetensors).

    Raises:
      safetensors.SafetensorError: if the file is truncated, or no safetensors file.
    """

    def __init__(self, path: CloudPath):
        self._path = path
        try:
            size = int.from_bytes(path.read_range(0, 8), "little")
            if size > _MAX_HEADER:
                raise ValueError(f"a header of {size} bytes")
            self._start = 8 + size
            self._header = json.loads(path.read_range(8, self._start))
            self._header.pop("__metadata__", None)
            ends = [entry["data_offsets"][1] for entry in self._header.values()]
            if ends:
                end = self._start + max(ends)
                path.read_range(end - 1, end)
        except (ValueError, AttributeError, KeyError, TypeError, OSError) as e:
            if isinstance(e, OSError) and not isinstance(e.__cause__, EOFError):
                raise
            reason = e.__cause__ if isinstance(e, OSError) else e
            raise safetensors.SafetensorError(str(reason)) from e

    def keys(self) -> list[str]:
        """The names of the tensors."""
        return list(self._header)

    def get_slice(self, name: str) -> _RangedTensor:
        """A tensor, of which a tuple of slices reads that part."""
        entry = self._header[name]
        first = self._start + entry["data_offsets"][0]
        return _RangedTensor(self._path, entry["dtype"], tuple(entry["shape"]), first)


class _RangedTensor:
    def __init__(self, path: CloudPath, dtype: str, shape: tuple[int, ...], first: int):
        self._path = path
        self._dtype = dtype
        self._shape = shape
        self._first = first

    def get_shape(self) -> list[int]:
        return list(self._shape)

    def get_dtype(self) -> str:
        return self._dtype

    def __getitem__(self, index: tuple[slice, ...]) -> np.ndarray:
        """Reads the rows of the first slice, which lie together, and takes the part of each."""
        dtype: Any = np.dtype(INTEGERS.get(self._dtype) or jnp.dtype(DTYPES[self._dtype]))
        index = (*index, *[slice(None)] * (len(self._shape) - len(index)))
        first, last, _ = index[0].indices(self._shape[0]) if index else (0, 1, 1)
        row = dtype.itemsize * math.prod(self._shape[1:])
        data = self._path.read_range(self._first + first * row, self._first + last * row)
        rows = np.frombuffer(data, dtype).reshape((last - first, *self._shape[1:]))
        return rows[(slice(None), *index[1:])] if index else rows.reshape(())
