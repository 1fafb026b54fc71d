"""Key-value heads that are repeated for the devices of a mesh."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import jax.numpy as jnp
from flax import traverse_util

from decoding_jax.base import Array


def repeated_heads(params: Any, config: Any, size: int) -> tuple[Any, Any]:
    """Parameters and config with key-value heads repeated for ``size`` devices, where it serves.

    The parameters may be those of a part of the network.
    """
    heads = math.lcm(config.num_kv_heads, size)
    if heads == config.num_kv_heads or config.num_heads % heads:
        return params, config
    times = heads // config.num_kv_heads

    def repeat(path: str, x: Array) -> Array:
        if "attention/key/" not in path and "attention/value/" not in path:
            return x
        split = x.reshape(*x.shape[:-1], config.num_kv_heads, config.head_dim)
        return jnp.repeat(split, times, axis=-2).reshape(*x.shape[:-1], -1)

    flat = traverse_util.flatten_dict(params, sep="/")
    flat = {path: repeat(path, x) for path, x in flat.items()}
    config = dataclasses.replace(config, num_kv_heads=heads)
    return traverse_util.unflatten_dict(flat, sep="/"), config
