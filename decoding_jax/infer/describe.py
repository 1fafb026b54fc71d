"""Describes objects for ``job.json``, as text that is the same in every process."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import re
import types
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from decoding_jax.infer.processes import pieces_digest
from decoding_jax.sharding.meshes import is_apart

_MAX_ENTRIES = 16  # of an array that is written out
_MAX_CHARACTERS = 1000  # of a part that is written out


def describe(value: Any) -> str:
    """Describes settings, models and functions by their contents.

    Arrays are described by dtype, shape and entries, objects by class and attributes, and functions
    by name. The description of a function that cannot be imported by its name (a lambda, a
    function inside another function, a function of a notebook) also contains its code and its
    closure. A long description of a part is replaced by its SHA-256.

    Args:
      value: any object.

    Returns:
      One line of text, without memory addresses.

    Example:
      >>> describe({"temperature": 0.5, "bias": np.zeros(2, np.float32)})
      "{'temperature': 0.5, 'bias': float32[2] [0.0, 0.0]}"
      >>> describe(np.zeros(5000)) == describe(np.ones(5000))
      False
    """
    return _Describer().text(value)


def digest(value: Any) -> str:
    """Returns the SHA-256 of the description of an object, in hexadecimal digits.

    Example:
      >>> digest(1.0)[:8]
      'd0ff5974'
    """
    return hashlib.sha256(describe(value).encode("utf-8", "backslashreplace")).hexdigest()


class _Describer:
    """Describes each object once, even if several other objects refer to it."""

    def __init__(self) -> None:
        self._parts: dict[int, tuple[Any, str]] = {}

    def text(self, value: Any) -> str:
        if value is None or isinstance(value, (bool, int, float, complex, str, bytes)):
            return repr(value)
        if isinstance(value, (jax.Array, np.ndarray, np.generic)):
            return _array(value, self._part)
        if isinstance(value, functools.partial):
            arguments = [self._part(v) for v in value.args]
            arguments += [f"{k}={self._part(v)}" for k, v in sorted(value.keywords.items())]
            return f"{self.text(value.func)}({', '.join(arguments)})"
        if isinstance(value, types.MethodType):
            return f"{self._part(value.__self__)}.{value.__name__}"
        if isinstance(value, types.FunctionType):
            return self._function(value)
        if hasattr(value, "__qualname__"):  # A class, or a built-in or compiled function.
            wrapped = getattr(value, "__wrapped__", None)
            return _name_of(value) if wrapped is None else self.text(wrapped)
        return self._object(value)

    def _part(self, value: Any) -> str:
        """Describes a part of an object. A part that contains itself is shown as dots inside."""
        if id(value) in self._parts:
            return self._parts[id(value)][1]
        self._parts[id(value)] = (
            value,
            "...",
        )  # Keeps the value alive, so that its id is not reused.
        text = self.text(value)
        if len(text) > _MAX_CHARACTERS:
            text = f"sha256:{hashlib.sha256(text.encode('utf-8', 'backslashreplace')).hexdigest()}"
        self._parts[id(value)] = value, text
        return text

    def _object(self, value: Any) -> str:
        name = type(value).__qualname__
        if isinstance(value, Mapping):
            text = ", ".join(f"{self._part(k)}: {self._part(v)}" for k, v in value.items())
            return f"{{{text}}}" if type(value) is dict else f"{name}({{{text}}})"
        if isinstance(value, (tuple, list)):
            text = ", ".join(map(self._part, value))
            return f"[{text}]" if type(value) is list else f"{name}({text})"
        if isinstance(value, (set, frozenset)):
            return f"{name}({', '.join(sorted(map(self._part, value)))})"
        if dataclasses.is_dataclass(value):
            fields = [f for f in dataclasses.fields(value) if not f.metadata.get("derived")]
            attributes = {f.name: getattr(value, f.name) for f in fields}
        elif hasattr(value, "__dict__"):
            attributes = vars(value)
        else:
            leaves, structure = jax.tree.flatten(value)
            text = "" if len(leaves) == 1 and leaves[0] is value else self._part(leaves)
            return re.sub(r" at 0x[0-9a-f]+", "", f"{structure if text else value!r}{text}")
        text = ", ".join(f"{k}={self._part(v)}" for k, v in attributes.items())
        return f"{name}({text})"

    def _function(self, function: types.FunctionType) -> str:
        name = _name_of(function)
        if "<" not in name and not name.startswith("__main__."):
            return name
        cells = [cell.cell_contents for cell in function.__closure__ or () if _is_filled(cell)]
        defaults = [function.__defaults__, function.__kwdefaults__]
        return f"{name}({self._part([_code(function.__code__), cells, defaults])})"


def _array(value: Any, part: Any) -> str:
    name = str(value.dtype)
    if isinstance(value, jax.Array) and jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key):
        value = jax.random.key_data(value)
    shape = ", ".join(map(str, value.shape))
    if isinstance(value, jax.Array) and is_apart(value):
        return f"{name}[{shape}] pieces:{pieces_digest(value)}"
    array = np.asarray(value)
    if array.dtype == object:
        entries = part(array.tolist())
    elif array.size <= _MAX_ENTRIES:
        entries = str(array.tolist())
    else:
        data = np.ascontiguousarray(array).view(np.uint8).data
        entries = f"sha256:{hashlib.sha256(data).hexdigest()}"
    return f"{name}[{shape}] {entries}"


def _code(code: types.CodeType) -> str:
    """A digest of the code of a function, which does not depend on its file and line."""
    constants = [_code(c) if isinstance(c, types.CodeType) else c for c in code.co_consts]
    return digest([code.co_code, code.co_names, constants])


def _is_filled(cell: types.CellType) -> bool:
    try:
        _ = cell.cell_contents
    except ValueError:  # The name is bound later.
        return False
    return True


def _name_of(function: Any) -> str:
    module = getattr(function, "__module__", "")
    return f"{module}.{function.__qualname__}"
