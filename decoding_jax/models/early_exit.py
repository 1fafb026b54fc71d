"""A network's first layers as a network of its own: a draft that needs no other weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def first_layers(params: Mapping[str, Any], num_layers: int, of: int) -> dict[str, Any]:
    """A decoder's parameters without its layers from ``num_layers`` on; the rest is shared.

    Args:
      params: with a tree ``layers_0`` .. for each layer.
      num_layers: how many to keep.
      of: how many there are.

    Raises:
      ValueError: for a number outside 1 .. ``of``.
    """
    if not 1 <= num_layers <= of:
        raise ValueError(f"num_layers: got {num_layers}; takes 1 to the network's {of}")
    dropped = {f"layers_{i}" for i in range(num_layers, of)}
    return {name: tree for name, tree in params.items() if name not in dropped}
