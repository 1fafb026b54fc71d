"""Dataclasses as pytrees whose classes ``jit`` distinguishes."""

from __future__ import annotations

import dataclasses
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
    checked.

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
    return cls
