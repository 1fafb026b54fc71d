"""Settings with one value for each row, which follow their rows into batches.

The value of a setting either serves all rows, or has an additional first axis with one entry for
each row. The array alone does not determine which, so a class of settings declares it:
``shared_axes`` of a field (``decoding_jax.fields``) is the number of axes of a value that serves
all rows, or None where the value serves all rows whatever its shape. For a field that is a tree it
may be a tree of such numbers, and for a field that takes several forms a function of the value::

    @decoding_jax.pytree
    @dataclasses.dataclass(frozen=True)
    class Scaled:
        factor: Any = fields.field(shared_axes=0)  # a number, or [B]
        table: Any = fields.field(shared_axes=None)  # [V]

        def __call__(self, logits, prefix):
            return logits * jnp.reshape(self.factor, (-1, 1, 1, 1)) + self.table[None, None, None]

``generate``, ``stream`` and the batch job sort texts and decode them in batches. ``take_rows``
selects the values of each batch's texts; it reads declarations only, and knows no class by name. A
value that is not declared serves all rows. If such an array has as many entries as there are texts,
its meaning is ambiguous, and ``take_rows`` refuses it.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from decoding_jax import fields

Array = jax.Array

_METADATA = "shared_axes"
_UNDECLARED = object()
_ARRAYS = (jax.Array, np.ndarray, np.generic, bool, int, float)


def row_arguments(strategy: type) -> dict[str, Any]:
    """The ``shared_axes`` of each setting of a strategy that declares them.

    Args:
      strategy: its class.

    Example:
      >>> from decoding_jax import BestKSearch
      >>> row_arguments(BestKSearch)["gamma"]
      0
    """
    declared = {field.name: field.metadata for field in dataclasses.fields(strategy)}
    return {name: data[_METADATA] for name, data in declared.items() if _METADATA in data}


def take_rows(
    settings: dict[str, Any],
    rows: Sequence[int] | np.ndarray,
    count: int | None,
    arguments: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Selects the settings of some rows.

    Args:
      settings: arguments of a strategy by name: numbers, arrays and pytrees of them. Of models,
        only the fields that are declared may have rows; their weights are not searched.
      rows: indices into the settings that have one value for each row.
      count: the number of values that such a setting must have; None does not check it.
      arguments: from ``row_arguments``.

    Returns:
      The settings; each one with a row axis has one value for each of ``rows``. All others are the
      same objects as before.

    Raises:
      ValueError: for a setting whose row axis has another size than ``count``, and for an
        undeclared array whose first axis has that size. The error names the setting.

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


def of_one_row(
    settings: dict[str, Any], arguments: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The settings of one input, which have a row axis of size one wherever they may have one.

    Args:
      settings, arguments: as for ``take_rows``.

    Raises:
      ValueError: for a setting with values of more than one row.

    Example:
      >>> from decoding_jax import transforms
      >>> one = of_one_row({"transform": transforms.chain(transforms.temperature(0.5))})
      >>> one["transform"].transforms[0].value.tolist()
      [0.5]
    """
    taker, declared = _Taker(np.zeros(1, np.int64), 1, adds_axis=True), arguments or {}
    return {
        name: taker.take(value, name, declared.get(name, _UNDECLARED))
        for name, value in settings.items()
    }


def with_rows(settings: dict[str, Any], arguments: Mapping[str, Any] | None = None) -> list[str]:
    """Returns the names of the settings of which any part has one value for each row."""

    def changed(name: str) -> bool:
        setting = {name: settings[name]}
        before = jax.tree.leaves(setting)
        after = jax.tree.leaves(take_rows(setting, [0], None, arguments))
        if len(before) != len(after):
            return True
        return any(old is not new for old, new in zip(before, after, strict=True))

    return [name for name in settings if changed(name)]


def _is_model(tree: Any) -> bool:
    """Whether this is a model, bound to its inputs or not. A drafter may have ``bind`` too."""
    drafts = hasattr(tree, "begin") or hasattr(tree, "guess")
    return hasattr(tree, "prefill") or (hasattr(tree, "bind") and not drafts)


@dataclasses.dataclass(frozen=True)
class _Taker:
    rows: np.ndarray
    count: int | None
    adds_axis: bool = False  # to values that serve all rows

    def take(self, tree: Any, name: str, axes: Any = _UNDECLARED) -> Any:
        """Selects the rows of a tree, declared by ``axes`` unless it is a dataclass."""
        if _is_model(tree):
            return self._of_model(tree, name)
        if axes is not _UNDECLARED and not dataclasses.is_dataclass(tree):
            return self._declared(tree, name, axes(tree) if callable(axes) else axes)
        children, structure = jax.tree_util.tree_flatten_with_path(
            tree, is_leaf=lambda x: x is not tree
        )
        if len(children) == 1 and children[0][1] is tree:
            return self._undeclared(tree, name)
        settings = dataclasses.fields(tree) if dataclasses.is_dataclass(tree) else ()
        declared = {f.name: f.metadata.get(_METADATA, _UNDECLARED) for f in settings}
        taken = []
        for path, child in children:
            field_name = str(getattr(path[0], "name", ""))
            child_name = name + jax.tree_util.keystr(path)
            taken.append(self.take(child, child_name, declared.get(field_name, _UNDECLARED)))
        return jax.tree.unflatten(structure, taken)

    def _of_model(self, model: Any, name: str) -> Any:
        """A model, or a tuple of models, with the rows of the fields that are declared."""
        if isinstance(model, tuple):
            taken = tuple(self._of_model(part, f"{name}[{i}]") for i, part in enumerate(model))
            return taken if any(a is not b for a, b in zip(taken, model, strict=True)) else model
        made = model
        for setting in dataclasses.fields(model) if dataclasses.is_dataclass(model) else ():
            value, child = getattr(model, setting.name), f"{name}.{setting.name}"
            if _METADATA in setting.metadata:
                taken = self._declared(value, child, setting.metadata[_METADATA])
            elif _is_model(value) or (isinstance(value, tuple) and all(map(_is_model, value))):
                taken = self._of_model(value, child)
            else:
                continue
            if taken is not value:
                made = copy.copy(model) if made is model else made
                object.__setattr__(made, setting.name, taken)
        return made

    def _declared(self, value: Any, name: str, axes: Any) -> Any:
        if axes is None or value is None:
            return value
        if not isinstance(axes, int):
            return jax.tree.map(lambda a, v: self._declared(v, name, a), axes, value)
        if isinstance(value, dict):
            return {k: self._declared(v, f"{name}[{k!r}]", axes) for k, v in value.items()}
        array = np.asarray(value) if isinstance(value, (list, tuple)) else value
        if self.adds_axis and np.ndim(array) == axes:
            array = np.asarray(array)[None]
        shape = np.shape(array)
        if len(shape) != axes + 1:
            return value
        if self.count is not None and shape[0] != self.count:
            raise ValueError(
                f"{name}: expected one value for all, or one for each of the {self.count} texts, "
                f"got values for {shape[0]}"
            )
        return array[self.rows]

    def _undeclared(self, leaf: Any, name: str) -> Any:
        shape = np.shape(leaf) if isinstance(leaf, _ARRAYS) else ()
        if shape[:1] == (self.count,) and self.count != 1:
            raise ValueError(
                f"{name}: expected a field that is declared with shared_axes, got an array of "
                f"shape {list(shape)} for {self.count} texts, which may or may not have one entry "
                "for each"
            )
        return leaf


def per_row(owner: Any, name: str, like: Array, dtype: Any = jnp.float32) -> Array:
    """Field ``name``, a scalar or ``[B]``, reshaped to broadcast against ``like`` ``[B, ...]``.

    Raises:
      ValueError: if its shape is neither ``[]`` nor ``[B]``.
    """
    return spread(f"{fields.label(owner)}.{name}", getattr(owner, name), like, dtype)


def spread(name: str, value: Any, like: Array, dtype: Any = jnp.float32) -> Array:
    """``per_row`` of a ``value`` that is only a part of a field; ``name`` is for the error."""
    value = jnp.asarray(value, dtype)
    batch_size = like.shape[0]
    if value.shape not in ((), (batch_size,)):
        raise ValueError(
            f"{name}: expected a scalar or [B] = [{batch_size}], got shape {list(value.shape)}"
        )
    return value.reshape((-1,) + (1,) * (like.ndim - 1))


def table(owner: Any, name: str, batch_size: int, ndim: int, dtype: Any = jnp.int32) -> Array:
    """Field ``name`` with ``ndim`` axes that all rows share, or with a further first axis B.

    Returns:
      An array with a first axis of 1 or B.

    Raises:
      ValueError: if it has another number of axes, or a first axis other than B.
    """
    value = jnp.asarray(getattr(owner, name), dtype)
    if value.ndim == ndim:
        return value[None]
    if value.ndim != ndim + 1 or value.shape[0] != batch_size:
        raise ValueError(
            f"{fields.label(owner)}.{name}: expected {ndim} axes that all rows share, or "
            f"{ndim + 1} axes of which the first is B = {batch_size}, got shape "
            f"{list(value.shape)}"
        )
    return value


def check_vocab(owner: Any, name: str, table: Array, vocab_size: int) -> None:
    """Raises ValueError unless the last axis of ``table`` is the vocabulary."""
    if table.shape[-1] != vocab_size:
        raise ValueError(
            f"{fields.label(owner)}.{name}: expected a number for each of the vocabulary's "
            f"{vocab_size} tokens, got {table.shape[-1]}"
        )
