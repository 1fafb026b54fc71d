"""Checks of a user's functions: one line for each mistake, which names the function."""

from __future__ import annotations

import inspect
from typing import Any

import jax.numpy as jnp
import numpy as np

from decoding_jax.fields import describe


def check_function(name: str, function: Any, arguments: tuple[str, ...]) -> None:
    """Checks that a value is a hashable function of these arguments, without calling it.

    Raises:
      ValueError: for anything else.
    """
    takes = f"takes a function of ({', '.join(arguments)})"
    if not callable(function) or isinstance(function, type):
        raise ValueError(f"{name}: got {describe(function)}; {takes}")
    try:
        hash(function)
    except TypeError:
        raise ValueError(
            f"{name}: got a {type(function).__name__}, which holds arrays; {takes}, and the arrays "
            "as parameters=..."
        ) from None
    try:
        inspect.signature(function).bind(*arguments)
    except TypeError as error:
        raise ValueError(f"{name}: got one that does not take them ({error}); {takes}") from None
    except ValueError:  # A function without a known signature.
        pass


def check_size(name: str, value: Any, *, optional: bool = False) -> None:
    """Checks that a value is a whole number of 1 or more, or None where it is optional.

    Raises:
      ValueError: for anything else.
    """
    if optional and value is None:
        return
    whole = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
    if not whole or value < 1:
        takes = "None or an int of 1 or more" if optional else "an int of 1 or more"
        raise ValueError(f"{name}: got {describe(value)}; takes {takes}")


def check_logits(name: str, logits: Any, *shapes: tuple[str, tuple[int, ...]]) -> None:
    """Checks that a function has returned floating logits of one of the shapes.

    Args:
      name: the function's name.
      logits: its result.
      *shapes: each a shape in letters, such as ``"[B, V]"``, and in numbers.

    Raises:
      ValueError: for anything else.
    """
    takes = " or ".join(f"{letters}, which is {list(shape)} here" for letters, shape in shapes)
    if not hasattr(logits, "shape") or not hasattr(logits, "dtype"):
        raise ValueError(f"{name}: got a {type(logits).__name__}; takes logits {takes}")
    floating = jnp.issubdtype(logits.dtype, jnp.floating)
    if not floating or tuple(logits.shape) not in [shape for _, shape in shapes]:
        raise ValueError(
            f"{name}: got logits {logits.dtype}{list(logits.shape)}; takes floating {takes}"
        )


def check_pair(name: str, returned: Any) -> tuple[Any, Any]:
    """Checks that a function has returned logits and hidden states, and returns them.

    Raises:
      ValueError: for anything but a pair.
    """
    if not isinstance(returned, tuple) or len(returned) != 2:
        raise ValueError(
            f"{name}: got {describe(returned)} with hidden=True; takes a pair, logits and hidden "
            "states"
        )
    return returned


def check_hidden(name: str, hidden: Any, shape: tuple[int, int]) -> None:
    """Checks hidden states that a function has returned.

    Args:
      name: the function's name.
      hidden: its result.
      shape: ``[B, P]``.

    Raises:
      ValueError: for anything but floating ``[B, P, D]``.
    """
    floating = jnp.issubdtype(getattr(hidden, "dtype", object), jnp.floating)
    if not floating or hidden.ndim != 3 or hidden.shape[:2] != shape:
        raise ValueError(
            f"{name}: got hidden states {describe(hidden)}; takes floating [B, P, D], which begins "
            f"with {list(shape)} here"
        )
