"""The host's devices: their number, and rows sharded over them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import jax


def spread_rows(tree: Any) -> Any:
    """Shards the rows of arrays ``[B, ...]`` over every device."""
    mesh = jax.make_mesh((jax.device_count(),), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    rows = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))
    return jax.device_put(tree, rows)


def quick_flags() -> dict[str, Any]:
    """Flags of XLA that shorten a compilation for CPUs, of those that the installed JAX knows.

    A program is compiled in one piece, and by XLA's older code generator, which takes half as long.
    JAX 0.11 has the newer generator alone, and ends a process that asks for the older one.
    """
    flags: dict[str, Any] = {"--xla_cpu_parallel_codegen_split_count": 1}
    if jax.__version_info__ < (0, 11):
        flags["--xla_cpu_use_fusion_emitters"] = "false"
    return flags


def add_flags(flags: Mapping[str, Any]) -> None:
    """Adds flags to ``XLA_FLAGS``, where a flag that is there already keeps its value.

    This has an effect only before JAX's first computation.
    """
    known = os.environ.get("XLA_FLAGS", "")
    added = [f"{name}={value}" for name, value in flags.items() if name not in known]
    os.environ["XLA_FLAGS"] = " ".join([known, *added]).strip()


def prepare_host(devices: int, quick: bool) -> None:
    """Splits the host into devices, and optionally turns most of the compiler's optimizations off.

    Where there is a GPU, JAX computes there, and several processes share its memory: each takes
    what it needs, instead of three quarters in advance. This has an effect only before JAX's first
    computation. Flags already in ``XLA_FLAGS`` are kept.

    Args:
      devices: the number of devices.
      quick: whether to compile with few optimizations (LLVM's level 1) and with ``quick_flags``. On
        the certificate's small programs, level 0 compiles hardly faster, and runs several times
        slower.
    """
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    add_flags({"--xla_force_host_platform_device_count": devices})
    if quick:
        add_flags(
            {
                "--xla_backend_optimization_level": 1,
                "--xla_llvm_disable_expensive_passes": "true",
                "--xla_gpu_autotune_level": 0,
                **quick_flags(),
            }
        )
