"""The host's devices: their number, and rows sharded over them."""

from __future__ import annotations

import os
from typing import Any

import jax


def spread_rows(tree: Any) -> Any:
    """Shards the rows of arrays ``[B, ...]`` over every device."""
    mesh = jax.make_mesh((jax.device_count(),), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    rows = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))
    return jax.device_put(tree, rows)


def prepare_host(devices: int, quick: bool) -> None:
    """Splits the host into devices, and optionally turns most of the compiler's optimizations off.

    This has an effect only before JAX's first computation. Flags already in ``XLA_FLAGS`` are kept.

    Args:
      devices: the number of devices.
      quick: whether to compile with few optimizations (LLVM's level 1), by XLA's older code
        generator, which takes less time, and in one piece. On the certificate's small programs,
        level 0 compiles hardly faster, and runs several times slower.
    """
    flags = os.environ.get("XLA_FLAGS", "")
    for flag, value in (
        ("--xla_force_host_platform_device_count", devices),
        ("--xla_backend_optimization_level", 1 if quick else None),
        ("--xla_llvm_disable_expensive_passes", "true" if quick else None),
        ("--xla_cpu_use_fusion_emitters", "false" if quick else None),
        ("--xla_cpu_parallel_codegen_split_count", 1 if quick else None),
    ):
        if value is not None and flag not in flags:
            flags = f"{flags} {flag}={value}"
    os.environ["XLA_FLAGS"] = flags.strip()
