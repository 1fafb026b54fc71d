"""What lies in a model directory: settings in ``config.json``, tensors in ``*.safetensors``."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import safetensors
import safetensors.numpy
from flax import traverse_util

CONFIG = "config.json"
WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
FLOATS = ("float64", "float32", "float16", "bfloat16")
# Their names of activations to those of ``models.layers``, and the way back.
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
    """A model directory that cannot be used, said in one line with the file and what is wrong."""


def local_path(name: str, path: str | Path) -> Path:
    """A path on this machine's file systems.

    Args:
      name: the argument's name, for the error.
      path: a local path. ``pathlib`` writes ``gs://bucket`` as ``gs:/bucket``, so a scheme is
        recognised with one slash as well.

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
    """``config.json``, or an object in it, read with its types checked."""

    def __init__(self, path: Path, values: Mapping[str, Any] | None = None):
        self.path = path
        self.values = read_json(path) if values is None else values

    def section(self, *keys: str) -> Settings:
        """The first of the objects ``keys`` that is there, or an empty one."""
        found = (self.get(key, dict, None) for key in keys)
        return Settings(self.path, next((values for values in found if values), {}))

    def error(self, key: str, value: Any, takes: str) -> CheckpointError:
        return CheckpointError(f"{self.path}: {key}: got {value!r}; takes {takes}")

    def get(self, key: str, kind: type, default: Any = _REQUIRED) -> Any:
        """The value of ``key``, of type ``kind``; null counts as absent."""
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
        """A whole number of 1 and above."""
        value = self.get(key, int, default)
        if value < 1:
            raise self.error(key, value, "1 and above")
        return value

    def one_of(self, key: str, choices: Mapping[str, str], default: str) -> str:
        """What ``choices`` says of the value of ``key``."""
        value = self.get(key, str, default)
        if value not in choices:
            raise self.error(key, value, "one of " + ", ".join(sorted(choices)))
        return choices[value]

    def refuse(self, **supported: Any) -> None:
        """Raises for the settings named here that have another value than the one supported."""
        for key, only in supported.items():
            value = self.values.get(key)
            if value is not None and value != only:
                raise self.error(key, value, f"{only!r} only")


class Tensors:
    """The tensors of a directory, in one file or in shards with an index, read on demand.

    Raises:
      CheckpointError: if there are no safetensors, or a file is missing or cannot be read.
    """

    def __init__(self, directory: Path):
        self._files: dict[Path, Any] = {}
        self._seen: set[str] = set()
        if (directory / WEIGHTS).is_file():
            path = directory / WEIGHTS
            self._where = dict.fromkeys(self._open(path).keys(), path)
        elif (directory / INDEX).is_file():
            self._where = self._read_index(directory / INDEX)
        else:
            self._raise_nothing_here(directory)

    def _raise_nothing_here(self, directory: Path) -> None:
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
        where = {}
        for name, file in names.items():
            shard = path.parent / str(file)
            if shard.parent != path.parent:
                raise CheckpointError(
                    f"{path}: {name}: got {file!r}; takes a file beside the index"
                )
            if name not in self._open(shard).keys():  # noqa: SIM118 (not a mapping)
                raise CheckpointError(f"{shard}: lacks {name}, which {INDEX} places there")
            where[name] = shard
        return where

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
        return name in self._where

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._open(self._where[name]).get_slice(name).get_shape())

    def read(self, name: str, shape: tuple[int, ...]) -> np.ndarray:
        """The tensor ``name``, which has to have this shape.

        Raises:
          CheckpointError: if it is missing, of another shape, or not of floats.
        """
        if name not in self:
            where = sorted({str(p) for p in self._where.values()})
            raise CheckpointError(f"{', '.join(where) or 'no file'}: lacks {name}")
        path = self._where[name]
        if self.shape(name) != shape:
            raise CheckpointError(
                f"{path}: {name}: got shape {self.shape(name)}; {CONFIG} says {shape}"
            )
        self._seen.add(name)
        tensor = self._open(path).get_tensor(name)
        if tensor.dtype.name not in FLOATS:
            raise CheckpointError(
                f"{path}: {name}: got {tensor.dtype.name}; takes {', '.join(FLOATS)}"
            )
        return tensor

    def same(self, name: str, other: str) -> bool:
        """Whether ``name`` is absent or holds what ``other`` holds; either way it is dealt with."""
        if name not in self or other not in self:
            return name not in self
        equal = self.shape(name) == self.shape(other)
        equal = equal and np.array_equal(
            self.read(name, self.shape(name)), self.read(other, self.shape(other))
        )
        if equal:
            self._seen.add(name)
        return equal

    def check_all_used(self, ignored: str) -> None:
        """Raises for a tensor that nothing read and that ``ignored``, a pattern, does not match."""
        left = [n for n in self._where if n not in self._seen and not re.fullmatch(ignored, n)]
        if left:
            more = f" and {len(left) - 1} more" if len(left) > 1 else ""
            raise CheckpointError(f"{self._where[left[0]]}: unexpected tensor {left[0]}{more}")


class Weight(NamedTuple):
    """Where a parameter is found: a tensor's name, and whether its two axes are exchanged."""

    name: str
    transposed: bool = False


def read_params(
    kind: Any, config: Any, table: Mapping[str, Weight], tensors: Tensors
) -> dict[str, Any]:
    """The parameter tree of a model.

    Args:
      kind: the model's class, with ``init``.
      config: its shape; the parameters are read in its dtype.
      table: for every parameter's path, joined with slashes, where it is found.
      tensors: the files.
    """
    shapes = jax.eval_shape(lambda: kind.init(config, jax.random.key(0)).params)
    flat = {}
    for path, leaf in traverse_util.flatten_dict(shapes, sep="/").items():
        name, transposed = table[path]
        value = tensors.read(name, leaf.shape[::-1] if transposed else leaf.shape)
        flat[path] = jnp.asarray(value.T if transposed else value, config.dtype)
    return traverse_util.unflatten_dict(flat, sep="/")


def write_params(path: Path, table: Mapping[str, Weight], params: Any, dtype: str | None) -> None:
    """The way back: one safetensors file with the names of ``table``."""
    tensors = {}
    for key, leaf in traverse_util.flatten_dict(params, sep="/").items():
        name, transposed = table[key]
        value = np.asarray(leaf if dtype is None else jnp.asarray(leaf, dtype))
        tensors[name] = np.ascontiguousarray(value.T if transposed else value)
    safetensors.numpy.save_file(tensors, path, metadata={"format": "pt"})


def read_json(path: Path) -> dict[str, Any]:
    """An object in a JSON file.

    Raises:
      CheckpointError: if there is no such file, or it holds something else.
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
