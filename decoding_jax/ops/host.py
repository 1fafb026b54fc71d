"""Values that are readable on the host."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np


def on_host(*values: Any) -> list[np.ndarray] | None:
    """Copies arrays to the host; None if one is traced or partly on other processes' devices.

    Reading an array waits until it has been computed.

    Example:
      >>> on_host(jax.numpy.arange(3))
      [array([0, 1, 2], dtype=int32)]
      >>> jax.eval_shape(lambda x: print(on_host(x)), 1.0)
      None
    """
    leaves = jax.tree.leaves(values)
    if any(isinstance(x, (jax.core.Tracer, jax.ShapeDtypeStruct)) for x in leaves):
        return None
    if any(isinstance(x, jax.Array) and not x.is_fully_addressable for x in leaves):
        return None
    return [np.asarray(x) for x in jax.device_get(values)]
