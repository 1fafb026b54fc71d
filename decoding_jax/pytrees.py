"""Dataclasses as pytrees that ``jit`` tells apart."""

from __future__ import annotations

import dataclasses
from typing import Any, TypeVar

import jax

Class = TypeVar("Class", bound=type)


def pytree(cls: Class) -> Class:
    """Registers a dataclass as a pytree; ``static`` in a field's metadata makes it static.

    For models, transforms and drafters of one's own too, in the place of
    ``jax.tree_util.register_dataclass``, whose nodes compare equal across classes of as many fields
    (jaxlib 0.10.2): ``jit`` then takes one class's program for another's whenever their hashes fall
    together, some once in a hundred times. Nor does this call ``__init__``: leaves may be anything
    at all, and are checked when an object is built, not when it is put together again.

    Args:
      cls: a dataclass; frozen, as ``jit`` may keep what it is given.

    Returns:
      ``cls``, so that it serves as a decorator.

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
        leaves, rest = flatten(tree)
        keys = (jax.tree_util.GetAttrKey(name) for name in data)
        return tuple(zip(keys, leaves, strict=True)), rest

    def unflatten(rest: Any, leaves: Any) -> Any:
        tree: Any = object.__new__(cls)
        for name, value in zip((*data, *static), (*leaves, *rest), strict=True):
            object.__setattr__(tree, name, value)
        return tree

    jax.tree_util.register_pytree_with_keys(cls, flatten_with_keys, unflatten, flatten)
    return cls
