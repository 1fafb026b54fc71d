"""The TPU compiler without a TPU: libtpu compiles for a topology that is only described."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from jax.experimental import topologies
from jax.sharding import AxisType, Mesh

from decoding_jax.sharding import DATA, MODEL

CHEAP: Mapping[str, Any] = {"exec_time_optimization_effort": -1.0, "memory_fitting_effort": -1.0}
"""Options of ``jax.stages.Lowered.compile`` that leave collectives and updates in place as they
are, keep all arrays in HBM, and compile in two thirds of the time."""


def is_installed() -> bool:
    """Whether libtpu is installed, as ``pip install "decoding_jax[tpu]"`` does."""
    return importlib.util.find_spec("libtpu") is not None


def mesh(topology: str, shape: tuple[int, int]) -> Mesh:
    """A mesh of described devices, on which programs can be lowered and compiled, but not run.

    Args:
      topology: a generation and the chips along each axis, such as ``v5e:2x4``.
      shape: the sizes of the axes ``data`` and ``model``. Chips that are left over are unused.

    Raises:
      ValueError: for a mesh of more devices than the topology has.
      RuntimeError: if libtpu does not know the topology.
    """
    # Several processes may compile at a time, and there is no metadata server to ask.
    os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")
    os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
    description = topologies.get_topology_desc(topology, "tpu")
    devices: np.ndarray = np.array(description.devices)
    count = int(np.prod(shape))
    if count > devices.size:
        raise ValueError(f"mesh: expected at most the {devices.size} of {topology}, got {shape}")
    return Mesh(devices[:count].reshape(shape), (DATA, MODEL), axis_types=(AxisType.Auto,) * 2)


def compile_for(lowered: jax.stages.Lowered, options: Mapping[str, Any]) -> jax.stages.Compiled:
    """Compiles for described devices, without the persistent cache, which cannot read it back."""
    name = "jax_persistent_cache_min_compile_time_secs"
    before = getattr(jax.config, name)
    jax.config.update(name, float("inf"))
    try:
        return lowered.compile(dict(options))
    finally:
        jax.config.update(name, before)
