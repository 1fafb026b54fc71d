"""Dataclasses as pytrees whose classes ``jit`` distinguishes."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, TypeVar

import jax

Class = TypeVar("Class", bound=type)


def pytree(cls: Class) -> Class:
    """Registers a dataclass as a pytree; ``static`` in a field's metadata makes it static.

    Use it for your own models, transforms and drafters too, instead of
    ``jax.tree_util.register_dataclass``. The latter's nodes compare equal across classes with the
    same number of fields (jaxlib 0.10.2), so ``jit`` runs one class's program for another whenever
    their hashes collide, about once in a hundred times. This function does not call ``__init__``
    when a tree is unflattened: leaves may be any objects, and only an object that you construct is
    checked. In the ``repr`` of an object, large arrays are their dtypes and shapes.

    Args:
      cls: a dataclass. It should be frozen, since ``jit`` may keep its instances.

    Returns:
      ``cls``, so that this function serves as a decorator.

    Example:
      >>> @pytree
      ... @dataclasses.dataclass(frozen=True)
      ... class Scaled:
      ...     factor: float
      ...     name: str = dataclasses.field(default="scaled", metadata={"static": True})
      >>> jax.tree.map(lambda leaf: 2 * leaf, Scaled(1.5))
      Scaled(factor=3.0, name='scaled')
    """
    fields = dataclasses.fields(cls)
    data = [f.name for f in fields if not f.metadata.get("static")]
    static = [f.name for f in fields if f.metadata.get("static")]

    def flatten(tree: Any) -> tuple[tuple, tuple]:
        return tuple(getattr(tree, n) for n in data), tuple(getattr(tree, n) for n in static)

    def flatten_with_keys(tree: Any) -> tuple[tuple, tuple]:
        leaves, static_values = flatten(tree)
        keys = (jax.tree_util.GetAttrKey(name) for name in data)
        return tuple(zip(keys, leaves, strict=True)), static_values

    def unflatten(static_values: Any, leaves: Any) -> Any:
        tree: Any = object.__new__(cls)
        for name, value in zip((*data, *static), (*leaves, *static_values), strict=True):
            object.__setattr__(tree, name, value)
        return tree

    jax.tree_util.register_pytree_with_keys(cls, flatten_with_keys, unflatten, flatten)
    if hasattr(cls.__dict__.get("__repr__"), "__wrapped__"):  # That of ``dataclasses``.
        cls.__repr__ = _repr  # type: ignore[assignment]
    return cls


_SHOWN = 8  # numbers of an array, or of several together


def brief(value: Any) -> str:
    """The ``repr`` of a value, in which large arrays are their dtypes and shapes.

    Example:
      >>> import numpy as np
      >>> brief((np.zeros((3, 4)), 1)), brief(np.zeros((3, 4))), brief([1, 2])
      ('<an array of 12 numbers>', 'float64[3, 4]', '[1, 2]')
    """
    if dataclasses.is_dataclass(value):
        return repr(value)
    arrays = [x for x in jax.tree.leaves(value) if hasattr(x, "shape") and hasattr(x, "dtype")]
    count = sum(math.prod(x.shape) for x in arrays)
    if count <= _SHOWN:
        return repr(value)
    if arrays[0] is value:
        return f"{value.dtype}{list(value.shape)}"
    if hasattr(value, "_asdict"):
        return of_fields(value, value._asdict())
    several = "an array" if len(arrays) == 1 else f"{len(arrays)} arrays"
    return f"<{several} of {count:,} numbers>"


def of_fields(owner: Any, values: Mapping[str, Any]) -> str:
    """The ``repr`` of an object with these fields, each of them brief."""
    given = ", ".join(f"{name}={brief(value)}" for name, value in values.items())
    return f"{type(owner).__qualname__}({given})"


def _repr(self: Any) -> str:
    return of_fields(self, {f.name: getattr(self, f.name) for f in dataclasses.fields(self)})
