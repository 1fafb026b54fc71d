"""Settings of transforms: checks of values that are readable, and shapes that broadcast over rows.

Plain numbers and arrays of NumPy and JAX are checked when a transform is made. Traced values are
not: each transform documents how it takes those outside its range. ``token_ids`` in the metadata of
a field says that it holds token ids, which strategies compare with the model's vocabulary.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from decoding_jax.base import pad_left
from decoding_jax.ops.host import on_host

Array = jax.Array

_SHOWN = 8  # values of an array in an error


def check(
    owner: Any,
    name: str,
    takes: str,
    valid: Callable[[np.ndarray], Any],
    dtype: type = np.float32,
) -> None:
    """Checks field ``name`` of a frozen dataclass; plain values become arrays of ``dtype``.

    Arrays of JAX are checked where they are readable on the host, and stay as they are.

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
    if (array := readable(value)) is None:
        return
    kinds = (jnp.integer,) if dtype is np.int32 else (jnp.integer, jnp.floating)
    number = any(jnp.issubdtype(array.dtype, kind) for kind in kinds)
    good = np.broadcast_to(valid(array), array.shape) if number else np.zeros(array.shape, bool)
    if not good.all() or not number:
        got = _shown(value, array, good)
        raise ValueError(f"{label(owner)}: got {name}={got}; takes {takes}, or an array [B]")
    if not isinstance(value, jax.Array):
        object.__setattr__(owner, name, array.astype(dtype))


def readable(value: Any) -> np.ndarray | None:
    """The value as a NumPy array, or None if it is traced, on other hosts, or no number at all."""
    if isinstance(value, jax.Array):
        is_key = jnp.issubdtype(value.dtype, jax.dtypes.extended)
        found = None if is_key else on_host(value)
        return None if found is None else found[0]
    plain = isinstance(value, (int, float, tuple, list, np.ndarray, np.generic))
    return np.asarray(value) if plain else None


def _shown(value: Any, array: np.ndarray, good: np.ndarray) -> str:
    """The value in one line, or the first number that is not good of a long array."""
    return str(value if array.size <= _SHOWN else array[~good][0])


def check_sequences(owner: Any, name: str) -> None:
    """Checks token sequences; a tuple of them becomes an array that is padded on the left.

    Raises:
      ValueError: for anything but non-empty sequences of token ids, or ids padded on the left.
    """
    value = getattr(owner, name)
    if isinstance(value, (tuple, list)):
        object.__setattr__(owner, name, pad_left(value, f"{label(owner)}: {name}"))
        return
    array = readable(value)
    if array is not None and array.ndim < 2:
        raise ValueError(
            f"{label(owner)}: got {name}={value!r}; takes sequences of token ids, such as [[5, 6]]"
        )
    check_ids(owner, name)
    if array is not None and np.any((array[..., :-1] >= 0) & (array[..., 1:] < 0)):
        raise ValueError(
            f"{label(owner)}: got {name} with -1 after a token; takes ids padded with -1 on the "
            "left"
        )


def check_ids(owner: Any, name: str) -> None:
    """Checks a readable array of token ids, in which -1 means none.

    Raises:
      ValueError: for an array of another dtype, or an id below -1.
    """
    array = readable(getattr(owner, name))
    if array is None or (array.size and array.dtype.kind in "iu" and array.min() >= -1):
        return
    if array.size:
        got = array.min() if array.dtype.kind in "iu" else f"an array of {array.dtype}"
        takes = "takes token ids of 0 and above, or -1 for none"
        raise ValueError(f"{label(owner)}: got {name} with {got}; {takes}")


def token_ids_of(transform: Any) -> Iterator[tuple[str, Any]]:
    """The name and value of each field of a transform, and of its parts, that holds token ids.

    Example:
      >>> from decoding_jax import transforms
      >>> made = transforms.chain(transforms.temperature(2), transforms.forced_first_token(5))
      >>> list(token_ids_of(made))
      [('forced_first_token.token', array(5, dtype=int32))]
    """
    if isinstance(transform, (tuple, list)):
        for part in transform:
            yield from token_ids_of(part)
    elif dataclasses.is_dataclass(transform) and not isinstance(transform, type):
        for field in dataclasses.fields(transform):
            value = getattr(transform, field.name)
            if not field.metadata.get("token_ids"):
                yield from token_ids_of(value)
            elif getattr(value, "dtype", None) != np.bool_:  # A mask has no ids.
                yield f"{label(transform)}.{field.name}", value


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
