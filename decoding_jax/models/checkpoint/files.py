"""The files of a model directory: settings in ``config.json``, tensors in ``*.safetensors``."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
import safetensors
import safetensors.numpy
from flax import traverse_util
from jax.sharding import Mesh, NamedSharding

from decoding_jax.sharding import fit_model_axis, shardings

Index = tuple[slice, ...]
M = TypeVar("M")

CONFIG = "config.json"
WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
FLOATS = ("float64", "float32", "float16", "bfloat16")
# The names of dtypes in safetensors files; others are named as the file names them.
DTYPES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "I32": "int32"}
# The names of activations in Hugging Face's files, mapped to those of ``models.layers``, and back.
ACTIVATIONS = {
    "relu": "relu",
    "gelu_new": "gelu",
    "gelu_pytorch_tanh": "gelu",
    "gelu": "gelu_exact",
    "silu": "silu",
    "swish": "silu",
    "linear": "linear",
}
ACTIVATIONS_BACK = {
    "relu": "relu",
    "gelu": "gelu_new",
    "gelu_exact": "gelu",
    "silu": "silu",
    "linear": "linear",
}
_REQUIRED: Any = object()


class CheckpointError(ValueError):
    """A model directory cannot be used. The message is one line with the file and the fault."""


def local_path(name: str, path: str | Path) -> Path:
    """A local path.

    Args:
      name: the argument's name, for the error.
      path: the path. ``pathlib`` writes ``gs://bucket`` as ``gs:/bucket``, so a scheme is
        recognized with one slash as well.

    Raises:
      ValueError: for a path with a scheme, such as ``gs://bucket/out``.

    Example:
      >>> local_path("output_dir", "gs://bucket/out")
      Traceback (most recent call last):
      ValueError: output_dir: got 'gs://bucket/out'; takes a local path, as URLs are not supported
    """
    if re.match(r"[A-Za-z][A-Za-z0-9+.-]+:/", str(path)):
        raise ValueError(
            f"{name}: got {str(path)!r}; takes a local path, as URLs are not supported"
        )
    return Path(path)


class Settings:
    """The values of ``config.json`` or of an object in it, with checked types."""

    def __init__(self, path: Path, values: Mapping[str, Any] | None = None):
        self.path = path
        self.values = read_json(path) if values is None else values

    def section(self, *keys: str) -> Settings:
        """The first object of ``keys`` that is not empty, or an empty one."""
        found = (self.get(key, dict, None) for key in keys)
        return Settings(self.path, next((values for values in found if values), {}))

    def error(self, key: str, value: Any, takes: str) -> CheckpointError:
        return CheckpointError(f"{self.path}: {key}: got {value!r}; takes {takes}")

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
                raise self.error(key, value, f"{supported_value!r} only")


class Tensors:
    """The tensors of a directory, in one file or in shards with an index.

    They are read on demand.

    Raises:
      CheckpointError: if there are no safetensors files, or a file is missing or cannot be read.
    """

    def __init__(self, directory: Path):
        self._files: dict[Path, Any] = {}
        self._used: set[str] = set()
        if (directory / WEIGHTS).is_file():
            path = directory / WEIGHTS
            self._file_of = dict.fromkeys(self._open(path).keys(), path)
        elif (directory / INDEX).is_file():
            self._file_of = self._read_index(directory / INDEX)
        else:
            self._raise_no_weights(directory)

    def _raise_no_weights(self, directory: Path) -> None:
        pickled = sorted(p.name for p in directory.glob("*.bin"))
        if pickled:
            raise CheckpointError(
                f"{directory / pickled[0]}: is a pickle and is not read; convert it to safetensors"
            )
        raise CheckpointError(f"{directory}: has neither {WEIGHTS} nor {INDEX}")

    def _read_index(self, path: Path) -> dict[str, Path]:
        names = read_json(path).get("weight_map")
        if not isinstance(names, dict):
            raise CheckpointError(f"{path}: has no weight_map")
        file_of = {}
        for name, file in names.items():
            shard = path.parent / str(file)
            if shard.parent != path.parent:
                raise CheckpointError(
                    f"{path}: {name}: got {file!r}; takes a file beside the index"
                )
            if name not in self._open(shard).keys():  # noqa: SIM118 (not a mapping)
                raise CheckpointError(f"{shard}: lacks {name}, which {INDEX} places there")
            file_of[name] = shard
        return file_of

    def _open(self, path: Path) -> Any:
        if path not in self._files:
            if not path.is_file():
                raise CheckpointError(f"{path}: no such file")
            try:
                self._files[path] = safetensors.safe_open(path, framework="np")
            except (safetensors.SafetensorError, OSError) as e:
                raise CheckpointError(f"{path}: truncated, or not safetensors ({e})") from e
        return self._files[path]

    def __contains__(self, name: str) -> bool:
        return name in self._file_of

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._open(self._file_of[name]).get_slice(name).get_shape())

    def read(self, name: str, shape: tuple[int, ...]) -> np.ndarray:
        """The whole tensor ``name``; see ``slices``."""
        return self.slices(name, shape)[all_of(shape)]

    def slices(self, name: str, shape: tuple[int, ...]) -> Any:
        """The tensor ``name``, which must have this shape; a tuple of slices reads that part.

        Raises:
          CheckpointError: if it is missing, has another shape, or does not contain floats.
        """
        if name not in self:
            files = sorted({str(p) for p in self._file_of.values()})
            raise CheckpointError(f"{', '.join(files) or 'no file'}: lacks {name}")
        path = self._file_of[name]
        if self.shape(name) != shape:
            raise CheckpointError(
                f"{path}: {name}: got shape {self.shape(name)}; {CONFIG} says {shape}"
            )
        self._used.add(name)
        tensor = self._open(path).get_slice(name)
        dtype = DTYPES.get(tensor.get_dtype(), tensor.get_dtype())
        if dtype not in FLOATS:
            raise CheckpointError(f"{path}: {name}: got {dtype}; takes {', '.join(FLOATS)}")
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
            name = unused[0]
            raise CheckpointError(f"{self._file_of[name]}: unexpected tensor {name}{more}")


class Weight(NamedTuple):
    """The tensor of a parameter.

    Attributes:
      name: the name of the tensor.
      transposed: whether its two axes are transposed.
      merged: whether its last axis is the last two axes of the parameter.
    """

    name: str
    transposed: bool = False
    merged: bool = False

    def stored_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of the tensor of a parameter of this shape."""
        if self.merged:
            return (*shape[:-2], shape[-2] * shape[-1])
        return shape[::-1] if self.transposed else shape


def read_model(
    kind: type[M], config: Any, table: Mapping[str, Weight], tensors: Tensors, mesh: Mesh | None
) -> M:
    """Reads a model. On a mesh, each device reads its own piece of a parameter from the file.

    Args:
      kind: the class of the model, with ``init``.
      config: the shape of the network. The parameters are converted to its dtype.
      table: the tensor of each parameter, by the path of the parameter joined with slashes.
      tensors: the tensors of the directory.
      mesh: None, or a mesh.

    Raises:
      ValueError: as ``sharding.shardings``.
    """
    init: Any = kind.init  # type: ignore[attr-defined]
    stored: Any = jax.eval_shape(lambda: init(config, jax.random.key(0)))
    model = stored if mesh is None else jax.eval_shape(lambda: fit_model_axis(stored, mesh))
    places = flat_shardings(model, mesh)
    shapes = traverse_util.flatten_dict(stored.params, sep="/")
    flat = {}
    for path, leaf in traverse_util.flatten_dict(model.params, sep="/").items():
        weight, shape = table[path], shapes[path].shape
        tensor = tensors.slices(weight.name, weight.stored_shape(shape))
        read: Callable[[Index], np.ndarray] = functools.partial(_read_piece, tensor, weight, shape)
        if mesh is not None and shape != leaf.shape:  # a few heads, repeated for the mesh
            whole = {path: np.asarray(read(all_of(shape)))}
            one = kind(traverse_util.unflatten_dict(whole, sep="/"), config)  # type: ignore[call-arg]
            fitted: Any = fit_model_axis(one, mesh)
            read = np.asarray(traverse_util.flatten_dict(fitted.params, sep="/")[path]).__getitem__
        flat[path] = placed(read, leaf.shape, config.dtype, places.get(path))
    return kind(traverse_util.unflatten_dict(flat, sep="/"), model.config)  # type: ignore[call-arg]


def all_of(shape: tuple[int, ...]) -> Index:
    """The slices of a whole array."""
    return tuple(slice(0, size) for size in shape)


def flat_shardings(model: Any, mesh: Mesh | None) -> dict[str, NamedSharding]:
    """Where each parameter lies on a mesh, by its path joined with slashes."""
    if mesh is None:
        return {}
    return traverse_util.flatten_dict(shardings(model, mesh).params, sep="/")


def placed(
    read: Callable[[Index], np.ndarray],
    shape: tuple[int, ...],
    dtype: str,
    sharding: NamedSharding | None,
) -> jax.Array:
    """An array whose pieces are read where they lie.

    Args:
      read: returns the piece at a tuple of slices.
      shape: the shape of the whole.
      dtype: its dtype.
      sharding: None for one device.
    """
    if sharding is None:
        return jnp.asarray(read(all_of(shape)), dtype)
    return jax.make_array_from_callback(
        shape, sharding, lambda index: np.asarray(read(index or ())).astype(jnp.dtype(dtype))
    )


def _read_piece(stored: Any, weight: Weight, shape: tuple[int, ...], index: Index) -> np.ndarray:
    """A piece of a parameter, from the tensor that holds it."""
    if weight.transposed:
        return stored[index[::-1]].T
    if not weight.merged:
        return stored[index]
    *rest, columns = index
    first, last, _ = columns.indices(shape[-1])
    groups = range(*rest.pop().indices(shape[-2]))
    size = shape[-1]
    pieces = [stored[(*rest, slice(g * size + first, g * size + last))] for g in groups]
    return np.stack(pieces, axis=-2)


def write_params(path: Path, table: Mapping[str, Weight], params: Any, dtype: str | None) -> None:
    """Writes the parameters to one safetensors file, under the names of ``table``."""
    tensors = {}
    for key, leaf in traverse_util.flatten_dict(params, sep="/").items():
        weight = table[key]
        value = np.asarray(leaf if dtype is None else jnp.asarray(leaf, dtype))
        value = value.T if weight.transposed else value.reshape(weight.stored_shape(value.shape))
        tensors[weight.name] = np.ascontiguousarray(value)
    safetensors.numpy.save_file(tensors, path, metadata={"format": "pt"})


def read_json(path: Path) -> dict[str, Any]:
    """Reads a JSON file that contains an object.

    Raises:
      CheckpointError: if the file cannot be read or does not contain an object.
    """
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except OSError as e:
        raise CheckpointError(f"{path}: cannot be read ({e.strerror})") from e
    except ValueError as e:
        raise CheckpointError(f"{path}: is not JSON ({e})") from e
    if not isinstance(values, dict):
        raise CheckpointError(f"{path}: holds {type(values).__name__}; takes an object")
    return values
