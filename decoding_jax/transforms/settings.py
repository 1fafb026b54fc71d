"""Settings of transforms: checks of plain numbers, and shapes that broadcast over rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from decoding_jax.base import pad_left

Array = jax.Array


def check(
    owner: Any,
    name: str,
    takes: str,
    valid: Callable[[np.ndarray], Any],
    dtype: type = np.float32,
) -> None:
    """Checks field ``name`` of a frozen dataclass and stores it as a NumPy array of ``dtype``.

    Only plain numbers, tuples, lists and NumPy arrays are checked: other values may be traced.

    Args:
      owner: the dataclass, inside its ``__post_init__``.
      name: the name of the field.
      takes: a description of the valid values, for the error.
      valid: maps an array to whether each number is valid; NaN must not be.
      dtype: the dtype of the leaf; a fixed one means that changing 1 to 0.5 does not retrace.

    Raises:
      ValueError: for a number that is not valid.
    """
    value = getattr(owner, name)
    optional = owner.__dataclass_fields__[name].default is None
    if isinstance(value, (str, bytes, dict, set)) or (value is None and not optional):
        raise ValueError(f"{label(owner)}: got {name}={value!r}; takes {takes}, or an array [B]")
    if not isinstance(value, (int, float, tuple, list, np.ndarray, np.generic)):
        return
    array = np.asarray(value)
    number = array.dtype.kind in "iuf" and (dtype is not np.int32 or array.dtype.kind != "f")
    if not number or not np.all(valid(array)):
        raise ValueError(f"{label(owner)}: got {name}={value}; takes {takes}, or an array [B]")
    object.__setattr__(owner, name, array.astype(dtype))


def check_sequences(owner: Any, name: str) -> None:
    """Converts a tuple of token sequences to an array padded on the left; arrays are unchanged."""
    value = getattr(owner, name)
    if isinstance(value, (tuple, list)):
        object.__setattr__(owner, name, pad_left(value, f"{label(owner)}: {name}"))


def per_row(owner: Any, name: str, like: Array, dtype: Any = jnp.float32) -> Array:
    """A scalar or ``[B]`` setting, reshaped to broadcast against ``like`` ``[B, ...]``.

    Raises:
      ValueError: if its shape is neither ``[]`` nor ``[B]``.
    """
    return spread(owner, name, getattr(owner, name), like, dtype)


def spread(owner: Any, name: str, value: Any, like: Array, dtype: Any = jnp.float32) -> Array:
    """``per_row`` of a ``value`` that is only a part of a field; ``name`` is for the error."""
    value = jnp.asarray(value, dtype)
    batch_size = like.shape[0]
    if value.shape not in ((), (batch_size,)):
        raise ValueError(
            f"{label(owner)}: got {name} of shape {value.shape}; takes a scalar or "
            f"[B] = [{batch_size}]"
        )
    return value.reshape((-1,) + (1,) * (like.ndim - 1))


def row_table(owner: Any, name: str, batch_size: int, ndim: int, dtype: Any = jnp.int32) -> Array:
    """A setting with ``ndim`` axes that all rows share, or with a further first axis B.

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
            f"{label(owner)}: got {name} of shape {value.shape}; takes {ndim} axes that all "
            f"rows share, or {ndim + 1} axes of which the first is B = {batch_size}"
        )
    return value


def check_vocab(owner: Any, name: str, table: Array, vocab_size: int) -> None:
    """Raises ValueError unless the last axis of ``table`` is the vocabulary."""
    if table.shape[-1] != vocab_size:
        raise ValueError(
            f"{label(owner)}: got {name} over {table.shape[-1]} tokens; takes one for each of the "
            f"vocabulary's {vocab_size}"
        )


def label(owner: Any) -> str:
    """The public lower-case name of a transform: ``TopP`` is ``top_p``."""
    name = type(owner).__name__
    return "".join(f"_{c.lower()}" if c.isupper() else c for c in name).lstrip("_")
