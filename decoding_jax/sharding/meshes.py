"""How arrays lie on a mesh of devices: rows over the axis ``data``, heads over the axis ``model``.

The functions of this module name a layout where the compiler would have to guess one. They look at
the mesh in context (``jax.set_mesh``), and change nothing without one, or where its axes have other
names. ``in_mesh`` puts a call into that context. ``put`` and ``to_host`` also serve meshes that
span several processes, all of which then make the same calls in the same order.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from decoding_jax.base import Array

DATA = "data"
"""The mesh axis of rows."""
MODEL = "model"
"""The mesh axis of heads, feed-forward features and the vocabulary."""


def axis_size(name: str) -> int | None:
    """The size of an axis of the mesh in context, or None if the compiler does not manage it.

    Example:
      >>> with jax.set_mesh(jax.make_mesh((1,), ("data",), axis_types=(AxisType.Auto,))):
      ...     axis_size("data"), axis_size("model")
      (1, None)
    """
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty or name not in mesh.auto_axes:
        return None
    return mesh.shape[name]


def over_rows(x: Array, model_axis: int | None = None) -> Array:
    """Lays ``[B, ...]`` out with rows over ``data``, and everything else on every device.

    Rows that the axis does not divide are on every device too.

    Args:
      x: the array.
      model_axis: None, or the axis of heads or of the vocabulary, at least 1, which is laid out
        over ``model`` if that divides it.
    """
    sizes = {DATA: axis_size(DATA), MODEL: axis_size(MODEL)}
    if sizes[DATA] is None and sizes[MODEL] is None:
        return x
    spec: list[str | None] = [None] * x.ndim
    for axis, name in ((0, DATA), (model_axis, MODEL)):
        size = sizes[name]
        if axis is not None and size is not None and x.shape[axis] % size == 0:
            spec[axis] = name
    return jax.lax.with_sharding_constraint(x, PartitionSpec(*spec))


def gathered(x: Array) -> Array:
    """Lays ``[B, ..., V]`` out as ``over_rows``, where the last axis may be over ``model``.

    A TPU holds the result of a gather with the gathered axis first, and pads the last two of the
    other axes to whole tiles. Small axes would be padded to many times their size, there and in
    what follows, so they are made one for the gather.
    """
    model, data = axis_size(MODEL) or 1, axis_size(DATA) or 1
    if model == 1 or x.ndim < 3 or x.shape[0] % data:
        return over_rows(x)
    # Without the barriers, the compiler would gather before or after the changes of shape.
    flat = jax.lax.optimization_barrier(x.reshape(-1, x.shape[-1]))
    return over_rows(jax.lax.optimization_barrier(over_rows(flat)).reshape(x.shape))


def spread_rows(tree: Any) -> Any:
    """Moves arrays ``[B, ...]`` that are on a mesh so that their rows are over ``data``.

    The layout of the other axes stays. This is for arrays that are not traced.

    Example:
      >>> import jax.numpy as jnp
      >>> spread_rows({"rows": jnp.ones((2, 3))})["rows"].shape
      (2, 3)
    """

    def move(x: Any) -> Any:
        sharding = getattr(x, "sharding", None)
        if not isinstance(sharding, NamedSharding) or DATA not in sharding.mesh.axis_names:
            return x
        size = sharding.mesh.shape[DATA]
        if size == 1 or x.shape[0] % size:
            return x
        spec = PartitionSpec(DATA, *sharding.spec[1:])
        return put(x, NamedSharding(sharding.mesh, spec))

    return jax.tree.map(move, tree)


def put(x: Any, sharding: jax.sharding.Sharding) -> Array:
    """Lays an array out, perhaps over devices of other processes, which have the same array.

    Args:
      x: an array of this process, which each process then lays out on its own devices and compares
        with no other, or one that is on the devices of ``sharding`` already.
      sharding: where it is laid out.

    Example:
      >>> put(np.ones(2), jax.sharding.SingleDeviceSharding(jax.devices()[0])).shape
      (2,)
    """
    if sharding.is_fully_addressable:
        return jax.device_put(x, sharding)
    if isinstance(x, jax.Array) and not x.is_fully_addressable:
        # On CPUs, several programs of several processes at a time may wait for each other for ever.
        return jax.block_until_ready(_mover(sharding)(x))
    host = np.asarray(x)
    return jax.make_array_from_callback(host.shape, sharding, host.__getitem__)


def is_apart(x: Any) -> bool:
    """Whether a part of an array is on devices of other processes only."""
    if not isinstance(x, jax.Array) or isinstance(x, jax.core.Tracer):
        return False
    return not (x.is_fully_addressable or x.is_fully_replicated)


def to_host(tree: Any) -> Any:
    """Copies the arrays of a pytree to the host, as ``jax.device_get`` does.

    Of arrays on a mesh that spans several processes, each process gets the whole.

    Example:
      >>> to_host({"rows": jax.numpy.ones(2)})
      {'rows': array([1., 1.], dtype=float32)}
    """
    leaves, structure = jax.tree.flatten(tree)
    apart = [x for x in leaves if is_apart(x)]
    if apart:
        gathered = iter(_mover(NamedSharding(apart[0].sharding.mesh, PartitionSpec()))(apart))
        leaves = [next(gathered) if is_apart(x) else x for x in leaves]
    return jax.device_get(jax.tree.unflatten(structure, leaves))


@functools.cache
def _mover(sharding: jax.sharding.Sharding) -> Callable[[Any], Any]:
    """A compiled program that lays arrays out anew on the devices that they are on."""
    return jax.jit(lambda arrays: arrays, out_shardings=sharding)


def map_rows(
    function: Callable[..., Any], x: Any, *shared: Any, over: tuple[str, ...] = (DATA, MODEL)
) -> Any:
    """Applies a function of ``[B, ...]`` on each device to its own rows.

    The compiler gathers the operands of some operations, although their rows are independent. This
    keeps rows where they are.

    Args:
      function: takes arrays ``[B, ...]``, and returns arrays ``[B, ...]`` whose rows depend on
        the same rows only.
      x: an array, or a pytree of them. The function is called on the whole of it if there is no
        axis ``data`` in context, or if it does not divide B.
      *shared: further arguments of the function, the same for all rows, such as weights.
      over: the axes of the mesh that the function does not know of. Without ``model``, the compiler
        spreads what it computes over that axis.

    Example:
      >>> import jax.numpy as jnp
      >>> map_rows(lambda x: x.max(-1), jnp.array([[1, 2], [4, 3]]))
      Array([2, 4], dtype=int32)
    """
    size = axis_size(DATA)
    leaves = jax.tree.leaves(x)
    if size is None or size == 1 or any(y.ndim == 0 or y.shape[0] % size for y in leaves):
        return function(x, *shared)
    names = {name for name in over if axis_size(name) is not None}
    rows = PartitionSpec(DATA)
    # The result is equal on all devices of the other axis, which the function does not know of.
    specs = rows, *[PartitionSpec()] * len(shared)
    spread = jax.shard_map(
        function, in_specs=specs, out_specs=rows, axis_names=names, check_vma=False
    )
    return spread(x, *shared)


def in_mesh(function: Callable[[Any], Any], arguments: Any) -> Any:
    """Calls a function in the context of the mesh that its arguments are on.

    The axes of that mesh are automatic inside: the compiler places what no constraint places. Outer
    axes may be explicit, as ``jax.make_mesh`` makes them; results then have explicit axes too.

    Args:
      function: takes ``arguments``, and returns a pytree of arrays.
      arguments: a pytree, whose leaves may be arrays and anything else.

    Returns:
      The function's result.
    """
    leaves = jax.tree.leaves(arguments)
    if any(isinstance(x, jax.core.Tracer) for x in leaves):
        return _traced_in_mesh(function, arguments)
    try:
        mesh = jax.sharding.get_mesh()
    except ValueError:  # inside of a trace
        return _traced_in_mesh(function, arguments)
    in_context = not mesh.empty
    if not in_context:
        found = mesh_of(leaves)
        if found is None:
            return function(arguments)
        mesh = found
    automatic = _automatic(mesh)
    if in_context and automatic == mesh:
        return function(arguments)
    with jax.set_mesh(automatic):
        result = function(_on(automatic, arguments))
    return result if automatic == mesh else _on(mesh, result)


def mesh_of(tree: Any) -> Mesh | None:
    """The mesh of the first array of a pytree that lies on a mesh of several devices, or None."""
    for x in jax.tree.leaves(tree):
        sharding = getattr(x, "sharding", None)
        if isinstance(sharding, NamedSharding) and sharding.mesh.size > 1:
            mesh = sharding.mesh
            return mesh if isinstance(mesh, Mesh) else None
    return None


def _automatic(mesh: Mesh) -> Mesh:
    if all(t == AxisType.Auto for t in mesh.axis_types):
        return mesh
    return Mesh(mesh.devices, mesh.axis_names, axis_types=(AxisType.Auto,) * len(mesh.axis_names))


def _on(mesh: Mesh, tree: Any) -> Any:
    """The same arrays, with the types of the mesh's axes; no data is moved."""

    def convert(x: Any) -> Any:
        sharding = getattr(x, "sharding", None)
        if not isinstance(sharding, NamedSharding) or sharding.mesh == mesh:
            return x
        if sharding.mesh.axis_names != mesh.axis_names or sharding.mesh.size != mesh.size:
            return x
        return put(x, NamedSharding(mesh, sharding.spec))

    return jax.tree.map(convert, tree)


def _traced_in_mesh(function: Callable[[Any], Any], arguments: Any) -> Any:
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty or not mesh.explicit_axes:
        return function(arguments)
    leaves, structure = jax.tree.flatten(arguments)
    is_array = [isinstance(x, jax.Array) for x in leaves]

    def call(arrays: list[Array]) -> Any:
        remaining = iter(arrays)
        filled = [next(remaining) if a else x for x, a in zip(leaves, is_array, strict=True)]
        return function(jax.tree.unflatten(structure, filled))

    def spec(x: Any) -> PartitionSpec:
        divides = DATA in mesh.explicit_axes and x.ndim and x.shape[0] % mesh.shape[DATA] == 0
        return PartitionSpec(DATA) if divides else PartitionSpec()

    arrays = [x for x, a in zip(leaves, is_array, strict=True) if a]
    # The layout of the results is needed before the call, so their shapes are found first.
    whole = jax.sharding.auto_axes(call, out_sharding=PartitionSpec())
    specs = jax.tree.map(spec, jax.eval_shape(whole, arrays))
    return jax.sharding.auto_axes(call, out_sharding=specs)(arrays)
