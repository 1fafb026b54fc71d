"""The first layers of a network as a smaller network, which can draft without other weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax


def first_layers(params: Mapping[str, Any], num_layers: int, of: int) -> dict[str, Any]:
    """The parameters of a decoder without its layers from ``num_layers`` on.

    Args:
      params: the parameters, with one tree ``layers_0``, ``layers_1``, ... for each layer, or with
        one tree ``layers`` that is stacked.
      num_layers: the number of layers to keep.
      of: the number of layers in ``params``.

    Raises:
      ValueError: for a number outside 1 .. ``of``.
    """
    if not 1 <= num_layers <= of:
        raise ValueError(f"num_layers: got {num_layers}; takes 1 to the network's {of}")
    if "layers" in params:
        return {**params, "layers": jax.tree.map(lambda x: x[:num_layers], params["layers"])}
    dropped = {f"layers_{i}" for i in range(num_layers, of)}
    return {name: tree for name, tree in params.items() if name not in dropped}
