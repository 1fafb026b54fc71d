"""Sliding windows: layers in which a token sees only the nearest tokens.

A window is a mask by distance (Beltagy et al. 2020, "Longformer"; Jiang et al. 2023, "Mistral 7B").
A pattern says which layers have it. It is repeated over the layers, so that the first layers of a
network have the pattern of the network.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax.numpy as jnp

from decoding_jax.base import Array

EVERYTHING = 2**30
"""The window of a scanned layer that has none, larger than every distance."""


def check_window(window: int | None, pattern: Sequence[bool]) -> None:
    """Refuses a window that is not None or positive, and a pattern without entries.

    Raises:
      ValueError: for one of these.
    """
    if window is not None and window < 1:
        raise ValueError(f"window: got {window}; takes None, or 1 and above")
    if not pattern:
        raise ValueError("window_pattern: got (); takes one entry or more")


def is_local(pattern: Sequence[bool], index: int | Array) -> bool | Array:
    """Whether the layer of this index has the window.

    Args:
      pattern: whether each layer has it, repeated over the layers.
      index: the index of the layer, an int32 scalar where layers are scanned.

    Returns:
      A bool, or a bool scalar array where the index is an array.

    Example:
      >>> [is_local((True, True, False), i) for i in range(4)]
      [True, True, False, True]
    """
    if isinstance(index, int):
        return bool(pattern[index % len(pattern)])
    return jnp.asarray(pattern)[index % len(pattern)]


def window_of(
    window: int | None, pattern: Sequence[bool], index: int | Array
) -> int | Array | None:
    """The distance from which the layer of this index sees no key, or None.

    Example:
      >>> [window_of(512, (True, False), i) for i in range(3)]
      [512, None, 512]
    """
    if window is None or not any(pattern):
        return None
    if all(pattern):
        return window
    local = is_local(pattern, index)
    if isinstance(local, bool):
        return window if local else None
    return jnp.where(local, window, EVERYTHING)
