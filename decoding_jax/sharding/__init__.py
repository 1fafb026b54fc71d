"""Models on meshes of devices: rows over the axis ``data``, weights over the axis ``model``.

    mesh = jax.make_mesh((2, 4), ("data", "model"))
    model = sharding.shard(model, mesh)
    with jax.set_mesh(mesh):
        output = decoding_jax.sample(model, prompt, key, max_new_tokens=64)

Every strategy runs on the mesh that its model is on. ``load(directory, mesh=mesh)`` reads a
checkpoint straight into its shards.
"""

from decoding_jax.sharding.meshes import DATA, MODEL
from decoding_jax.sharding.rules import (
    MeshError,
    Rules,
    SupportsPartitionRules,
    as_mesh,
    check_mesh,
    fit_model_axis,
    partition_specs,
    shard,
    shardings,
)

__all__ = [
    "DATA",
    "MODEL",
    "MeshError",
    "Rules",
    "SupportsPartitionRules",
    "as_mesh",
    "check_mesh",
    "fit_model_axis",
    "partition_specs",
    "shard",
    "shardings",
]
