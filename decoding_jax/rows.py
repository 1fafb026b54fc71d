"""Settings with one value for each row, which follow their rows into batches.

A setting serves all rows, or has one axis more, the first, which counts the rows. An array alone
does not say which of the two it is, so a class of settings declares it: ``shared_axes`` in a
field's metadata is the number of axes of a value that serves all rows, or None where the value
serves all rows whatever its shape. For a field that is a tree it may be a tree of such numbers,
and for a field that takes several forms a function of the value::

    @decoding_jax.pytree
    @dataclasses.dataclass(frozen=True)
    class Scaled:
        factor: Any = dataclasses.field(metadata={"shared_axes": 0})  # a number, or [B]
        table: Any = dataclasses.field(metadata={"shared_axes": None})  # [V]

        def __call__(self, logits, prefix):
            return logits * jnp.reshape(self.factor, (-1, 1, 1, 1)) + self.table[None, None, None]

``generate``, ``stream`` and the batch job sort texts and decode them in batches. They give each
batch the values of its own texts by ``take_rows``, which knows no class by name. What is not
declared serves all rows; where such an array has as many entries as there are texts, it could be
meant either way, and ``take_rows`` refuses it.
"""

from __future__ import annotations

import dataclasses
import functools
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, TypeVar

import jax
import numpy as np

T = TypeVar("T")

_KEY = "shared_axes"
_UNDECLARED = object()
_ARRAYS = (jax.Array, np.ndarray, np.generic, bool, int, float)


@dataclasses.dataclass(frozen=True)
class SharedAxes:
    """Marks a strategy's argument in its annotation, as ``shared_axes`` does a field.

    Attributes:
      axes: the number of axes of a value that serves all rows, and so on.
    """

    axes: Any


PerRow = Annotated[T, SharedAxes(0)]
"""Marks an argument that is a number, or an array ``[B]`` of one number for each row.

Only arguments that take arrays themselves need it: transforms and other settings classes declare
their own fields.
"""


def row_arguments(strategy: Callable[..., Any]) -> dict[str, Any]:
    """The arguments of a strategy that its annotations mark, with the axes they have.

    Args:
      strategy: any function, also under ``functools.partial``.

    Example:
      >>> def search(model, prompt, *, gamma: PerRow[float]): ...
      >>> row_arguments(functools.partial(search, gamma=[0.1, 0.2]))
      {'gamma': 0}
    """
    while isinstance(strategy, functools.partial):
        strategy = strategy.func
    try:
        hints = typing.get_type_hints(
            getattr(strategy, "build_steps", strategy), include_extras=True
        )
    except (NameError, TypeError):  # names that only a type checker sees; not a function
        return {}
    marks = {name: getattr(hint, "__metadata__", ()) for name, hint in hints.items()}
    return {n: m.axes for n, found in marks.items() for m in found if isinstance(m, SharedAxes)}


def take_rows(
    settings: dict[str, Any],
    rows: Sequence[int] | np.ndarray,
    count: int | None,
    arguments: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The settings of some rows.

    Args:
      settings: arguments of a strategy by name: numbers, arrays and pytrees of them. Models are
        left as they are.
      rows: indices into the settings that have one value for each row.
      count: how many values these must have; None does not check it.
      arguments: from ``row_arguments``.

    Returns:
      The settings, in which each setting with a row axis has one value for each of ``rows``. All
      others are the same objects.

    Raises:
      ValueError: naming the setting, for one with a row axis of another size than ``count``, and
        for an undeclared array whose first axis is of that size.

    Example:
      >>> from decoding_jax import transforms
      >>> given = {"transform": transforms.temperature([0, 5, 7]), "num_samples": 2}
      >>> taken = take_rows(given, rows=[2, 0], count=3)
      >>> taken["transform"].value.tolist(), taken["num_samples"]
      ([7.0, 0.0], 2)
    """
    taker = _Taker(np.asarray(rows), count)
    declared = arguments or {}
    return {
        name: taker.take(value, name, declared.get(name, _UNDECLARED))
        for name, value in settings.items()
    }


def with_rows(settings: dict[str, Any], arguments: Mapping[str, Any] | None = None) -> list[str]:
    """The names of those settings that have one value for each row somewhere."""

    def changed(name: str) -> bool:
        one = {name: settings[name]}
        old = jax.tree.leaves(one)
        new = jax.tree.leaves(take_rows(one, [0], None, arguments))
        return len(old) != len(new) or any(a is not b for a, b in zip(old, new, strict=True))

    return [name for name in settings if changed(name)]


@dataclasses.dataclass(frozen=True)
class _Taker:
    rows: np.ndarray
    count: int | None

    def take(self, tree: Any, name: str, axes: Any = _UNDECLARED) -> Any:
        """The rows of a tree, declared as ``axes`` unless it is a dataclass."""
        if hasattr(tree, "prefill") or hasattr(tree, "bind"):  # a model, bound or not
            return tree
        if axes is not _UNDECLARED and not dataclasses.is_dataclass(tree):
            return self._declared(tree, name, axes(tree) if callable(axes) else axes)
        children, structure = jax.tree_util.tree_flatten_with_path(
            tree, is_leaf=lambda x: x is not tree
        )
        if len(children) == 1 and children[0][1] is tree:
            return self._undeclared(tree, name)
        fields = dataclasses.fields(tree) if dataclasses.is_dataclass(tree) else ()
        declared = {field.name: field.metadata.get(_KEY, _UNDECLARED) for field in fields}
        taken = []
        for path, child in children:
            key = str(getattr(path[0], "name", ""))
            below = name + jax.tree_util.keystr(path)
            taken.append(self.take(child, below, declared.get(key, _UNDECLARED)))
        return jax.tree.unflatten(structure, taken)

    def _declared(self, value: Any, name: str, axes: Any) -> Any:
        if axes is None or value is None:
            return value
        if not isinstance(axes, int):
            return jax.tree.map(lambda a, v: self._declared(v, name, a), axes, value)
        if isinstance(value, dict):
            return {k: self._declared(v, f"{name}[{k!r}]", axes) for k, v in value.items()}
        array = np.asarray(value) if isinstance(value, (list, tuple)) else value
        shape = np.shape(array)
        if len(shape) != axes + 1:
            return value
        if self.count is not None and shape[0] != self.count:
            raise ValueError(
                f"{name}: got values for {shape[0]} texts; takes one for all, or one for each of "
                f"the {self.count} texts"
            )
        return array[self.rows]

    def _undeclared(self, leaf: Any, name: str) -> Any:
        shape = np.shape(leaf) if isinstance(leaf, _ARRAYS) else ()
        if shape[:1] == (self.count,) and self.count != 1:
            raise ValueError(
                f"{name}: got an array of shape {list(shape)} for {self.count} texts, of which "
                "nothing says whether it has one entry for each text; takes a field with "
                "shared_axes in its metadata, or an argument marked rows.PerRow"
            )
        return leaf
