"""The devices of the host: how many it is split into, and rows spread over them."""

from __future__ import annotations

import os
from typing import Any

import jax


def spread_rows(tree: Any) -> Any:
    """Arrays ``[B, ...]`` with their rows spread over every device."""
    mesh = jax.make_mesh((jax.device_count(),), ("rows",), axis_types=(jax.sharding.AxisType.Auto,))
    rows = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("rows"))
    return jax.device_put(tree, rows)


def prepare_host(devices: int, quick: bool) -> None:
    """Splits the host into devices, and compiles without optimising where compiling is the cost.

    It has an effect only before JAX's first computation; what ``XLA_FLAGS`` already says, stands.
    """
    flags = os.environ.get("XLA_FLAGS", "")
    for flag, value in (
        ("--xla_force_host_platform_device_count", devices),
        ("--xla_backend_optimization_level", 0 if quick else None),
    ):
        if value is not None and flag not in flags:
            flags = f"{flags} {flag}={value}"
    os.environ["XLA_FLAGS"] = flags.strip()
