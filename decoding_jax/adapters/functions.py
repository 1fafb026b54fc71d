"""Checks of a user's functions: one line for each mistake, which names the function."""

from __future__ import annotations

import inspect
from typing import Any

import jax.numpy as jnp

from decoding_jax import fields


def check_function(name: str, function: Any, arguments: tuple[str, ...]) -> None:
    """Checks that a value is a hashable function of these arguments, without calling it.

    Raises:
      ValueError: for anything else.
    """
    expected = f"a function of ({', '.join(arguments)})"
    if not callable(function) or isinstance(function, type):
        raise fields.error(name, expected, function)
    try:
        hash(function)
    except TypeError:
        raise ValueError(
            f"{name}: expected {expected}, and its arrays as parameters=..., got a"
            f" {type(function).__name__}, which holds arrays"
        ) from None
    try:
        inspect.signature(function).bind(*arguments)
    except TypeError as error:
        raise ValueError(
            f"{name}: expected {expected}, got one that does not take them ({error})"
        ) from None
    except ValueError:  # A function without a known signature.
        pass


def check_logits(name: str, logits: Any, *shapes: tuple[str, tuple[int, ...]]) -> None:
    """Checks that a function has returned floating logits of one of the shapes.

    Args:
      name: the function's name.
      logits: its result.
      *shapes: each a shape in letters, such as ``"[B, V]"``, and in numbers.

    Raises:
      ValueError: for anything else.
    """
    expected = " or ".join(f"{letters}, which is {list(shape)} here" for letters, shape in shapes)
    floating = jnp.issubdtype(getattr(logits, "dtype", object), jnp.floating)
    if not floating or tuple(logits.shape) not in [shape for _, shape in shapes]:
        raise ValueError(f"{name}: expected floating logits {expected}, got {describe(logits)}")


def describe(value: Any) -> str:
    """Describes what a function has returned; of an array, traced or not, the dtype and shape."""
    is_array = hasattr(value, "shape") and hasattr(value, "dtype")
    return f"{value.dtype}{list(value.shape)}" if is_array else fields.describe(value)
