"""Reads parts of a safetensors file in a bucket, without a copy of the file on a disk."""

from __future__ import annotations

import json
import math
from typing import Any

import jax.numpy as jnp
import numpy as np
import safetensors

from decoding_jax.storage import CloudPath

_DTYPES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}
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
        dtype: Any = jnp.dtype(_DTYPES[self._dtype])
        index = (*index, *[slice(None)] * (len(self._shape) - len(index)))
        first, last, _ = index[0].indices(self._shape[0]) if index else (0, 1, 1)
        row = dtype.itemsize * math.prod(self._shape[1:])
        data = self._path.read_range(self._first + first * row, self._first + last * row)
        rows = np.frombuffer(data, dtype).reshape((last - first, *self._shape[1:]))
        return rows[(slice(None), *index[1:])] if index else rows.reshape(())
