"""Branches on GPUs, where a condition in a program makes the device wait for the host.

A GPU's program is a list of kernels that the host starts. At a branch, and at each round of a loop
of unknown length, the host has to read the condition before it can start the next kernel.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from decoding_jax.base import Array


def either(on_gpu: Callable[[], Any], elsewhere: Callable[[], Any]) -> Any:
    """The result of one of two functions of no arguments, by the device that a program is for.

    Example:
      >>> gpu = jax.default_backend() == "gpu"
      >>> bool(either(lambda: jnp.array(True), lambda: jnp.array(False))) == gpu
      True
    """
    return lax.platform_dependent(cuda=on_gpu, rocm=on_gpu, default=elsewhere)


def cond(condition: Array, yes: Callable[[], Any], no: Callable[[], Any]) -> Any:
    """``lax.cond`` of cheap branches without operands; a GPU computes both, and selects.

    Example:
      >>> int(cond(jnp.array(True), lambda: jnp.array(1), lambda: jnp.array(2)))
      1
    """

    def select() -> Any:
        return jax.tree.map(lambda x, y: jnp.where(condition, x, y), yes(), no())

    return either(select, lambda: lax.cond(condition, yes, no))
