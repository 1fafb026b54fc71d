"""The settings of sliding windows, which the families of the Hugging Face layout share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from decoding_jax.models.checkpoint.files import Settings
from decoding_jax.models.windows import is_local

LOCAL, FULL = "sliding_attention", "full_attention"


def read_window(
    settings: Settings, window: Any, pattern: Sequence[bool]
) -> tuple[int | None, tuple[bool, ...]]:
    """The window of a network, and which of its layers have it, as short a pattern as says so.

    Args:
      settings: the settings, whose ``layer_types`` have precedence over ``pattern``.
      window: the value of ``sliding_window``, or None where there is no window.
      pattern: whether each layer has the window, without ``layer_types``.

    Raises:
      CheckpointError: for a window that is not a positive integer, or other types of layers.
    """
    if window is not None and (not isinstance(window, int) or window < 1):
        raise settings.error("sliding_window", window, "null, or 1 and above")
    kinds = settings.get("layer_types", list, None)
    if kinds is not None:
        takes = f"{FULL} only" if window is None else f"{LOCAL} or {FULL}"
        for kind in kinds:
            if kind != FULL and (kind != LOCAL or window is None):
                raise settings.error("layer_types", kind, takes)
        if len(kinds) != len(pattern):
            raise settings.error("layer_types", kinds, f"one for each of {len(pattern)} layers")
        pattern = [kind == LOCAL for kind in kinds]
    size = len(pattern)
    period = next(
        p for p in range(1, size + 1) if all(pattern[i] == pattern[i % p] for i in range(size))
    )
    return window, tuple(pattern[:period])


def layer_types(pattern: Sequence[bool], num_layers: int) -> list[str]:
    """The types of the layers of a network with a window."""
    return [LOCAL if is_local(pattern, i) else FULL for i in range(num_layers)]
