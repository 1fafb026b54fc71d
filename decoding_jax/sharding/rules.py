"""Partition rules: how the parameters of a model are laid out on a mesh."""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeVar, runtime_checkable

import jax
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec

from decoding_jax.sharding.meshes import DATA, MODEL, put

T = TypeVar("T")

Rules = Mapping[str, PartitionSpec]
"""Patterns of paths, as ``fnmatch`` takes them, and the layout of the parameters that match.

The first pattern that matches counts. A layout names the last axes of a parameter, so that it also
serves parameters that are stacked over layers.
"""


class MeshError(ValueError):
    """A mesh does not serve a model, or is none. The message is one line."""


@runtime_checkable
class SupportsPartitionRules(Protocol):
    """A model that knows how its parameters are laid out.

    Attributes:
      partition_rules: the layout of every array of the model, by its path, such as
        ``params/layers_0/attention/query/kernel``.
      sharded_sizes: the sizes that the axis ``model`` of a mesh has to divide, by name.
    """

    @property
    def partition_rules(self) -> Rules: ...
    @property
    def sharded_sizes(self) -> Mapping[str, int]: ...


@runtime_checkable
class SupportsPlaces(Protocol):
    """A parameter that is several arrays with the same axes, such as integers and their scales.

    One rule lays all of them out. An axis of size 1 is not divided.
    """

    @property
    def ndim(self) -> int: ...
    def placed(self, place: Callable[[Any], Any]) -> Any:
        """The node with ``place`` of each of its arrays."""
        ...


def partition_specs(model: Any, rules: Rules | None = None) -> Any:
    """The layout of every array of a pytree, by its own rules or by those that are passed.

    Args:
      model: a model, or a pytree that contains models, such as a drafter. Arrays outside of models
        with ``partition_rules`` are on every device.
      rules: the rules, in the place of the models' own.

    Returns:
      A pytree of ``PartitionSpec`` with the structure of ``model``.

    Raises:
      ValueError: for an array that no rule matches.

    Example:
      >>> import jax.numpy as jnp
      >>> specs = partition_specs({"kernel": jnp.ones((2, 4))}, {"*": PartitionSpec("model")})
      >>> specs["kernel"] == PartitionSpec(None, "model")
      True
    """
    if rules is not None:
        return _specs(model, rules)
    return jax.tree.map(
        lambda node: _specs(node, node.partition_rules) if _has_rules(node) else PartitionSpec(),
        model,
        is_leaf=_has_rules,
    )


def shardings(model: Any, mesh: Mesh | AbstractMesh, rules: Rules | None = None) -> Any:
    """Where every array of a model lies on a mesh.

    Args:
      model: as for ``partition_specs``; its arrays may be abstract, as from ``jax.eval_shape``.
      mesh: a mesh with the axes ``data`` and ``model``, or one of them.
      rules: as for ``partition_specs``.

    Returns:
      A pytree of ``NamedSharding`` with the structure of ``model``.

    Raises:
      ValueError: for an array that no rule matches, a mesh without these axes, or an axis that does
        not divide the axis of an array that is laid out over it.

    Example:
      >>> import jax.numpy as jnp
      >>> mesh = jax.make_mesh((1, 1), ("data", "model"))
      >>> shardings(jnp.ones(3), mesh).spec == PartitionSpec()
      True
    """
    check_mesh(mesh)
    if rules is None:
        jax.tree.map(lambda node: _check_sizes(node, mesh), model, is_leaf=_has_rules)
    specs = partition_specs(model, rules)

    def place(path: Any, leaf: Any, spec: PartitionSpec) -> NamedSharding:
        known = PartitionSpec(*(name if name in mesh.axis_names else None for name in spec))
        for axis, name in enumerate(known):
            if name is not None and leaf.shape[axis] % mesh.shape[name]:
                raise MeshError(
                    f"mesh: expected a divisor of {leaf.shape[axis]}, the size of axis {axis} of"
                    f" {_path(path)}, got {name}={mesh.shape[name]}"
                )
        return NamedSharding(mesh, known)

    is_spec = lambda x: isinstance(x, PartitionSpec)  # noqa: E731
    specs = jax.tree.map(lambda spec: spec, specs, is_leaf=is_spec)
    return jax.tree_util.tree_map_with_path(place, model, specs)


def shard(model: T, mesh: Mesh, rules: Rules | None = None) -> T:
    """Lays a model out on a mesh; strategies that are called with it then run there.

    Key-value heads that are fewer than the devices of the axis ``model`` are repeated, so that each
    device holds the head that its query heads share.

    Args:
      model: as for ``partition_specs``.
      mesh: as for ``shardings``. If it spans several processes, each of them has the same model.
      rules: as for ``partition_specs``; ``{"*": PartitionSpec()}`` puts a copy of a small draft on
        every device.

    Returns:
      The model with sharded arrays.

    Raises:
      ValueError: as ``shardings``.

    Example:
      >>> mesh = jax.make_mesh((1, 1), ("data", "model"))
      >>> shard({"scale": jax.numpy.ones(2)}, mesh)["scale"].sharding.mesh == mesh
      True
    """
    check_mesh(mesh)
    if rules is None:
        model = fit_model_axis(model, mesh)
    return jax.tree.map(put, model, shardings(model, mesh, rules))


def fit_model_axis(model: T, mesh: Mesh | AbstractMesh) -> T:
    """The same function as a model, with as many key-value heads as the axis ``model`` needs.

    Args:
      model: as for ``partition_specs``. A model with few key-value heads has a method
        ``for_model_axis(size)``.
      mesh: the mesh.
    """
    size = mesh.shape.get(MODEL, 1)

    def fit(node: Any) -> Any:
        return node.for_model_axis(size) if hasattr(node, "for_model_axis") else node

    return jax.tree.map(fit, model, is_leaf=lambda node: hasattr(node, "for_model_axis"))


def as_mesh(mesh: Mesh | Mapping[str, int]) -> Mesh:
    """A mesh, or one of devices with these sizes of axes.

    The devices are those of this process if there are enough of them, so that each of several
    processes has its own mesh, and otherwise those of all processes. The axes are automatic.

    Args:
      mesh: a mesh, or the sizes of its axes by name, such as ``{"data": 2, "model": 4}``.

    Raises:
      ValueError: for other axes than ``data`` and ``model``, or more devices than there are.

    Example:
      >>> as_mesh({"data": 1, "model": 1}).axis_names
      ('data', 'model')
    """
    if isinstance(mesh, Mapping):
        wrong = {k: n for k, n in mesh.items() if not isinstance(n, int) or n < 1}
        if wrong or not mesh:
            raise MeshError(f"mesh: expected sizes of axes of 1 and above, got {dict(mesh)}")
        count = math.prod(mesh.values())
        if count > jax.device_count():
            raise MeshError(
                f"mesh: expected at most the {jax.device_count()} that there are, got"
                f" {dict(mesh)}, which is {count} devices"
            )
        several = jax.process_count() > 1 and count <= jax.local_device_count()
        devices = jax.local_devices() if several else jax.devices()
        devices = None if count == jax.device_count() else devices[:count]
        types = (AxisType.Auto,) * len(mesh)
        mesh = jax.make_mesh(tuple(mesh.values()), tuple(mesh), axis_types=types, devices=devices)
    check_mesh(mesh)
    return mesh


def check_mesh(mesh: Any) -> None:
    """Raises a ValueError if a value is not a mesh, or has neither axis ``data`` nor ``model``."""
    expected = "mesh: expected a mesh with the axes 'data' and 'model', or one of them"
    if not isinstance(mesh, (Mesh, AbstractMesh)):
        raise MeshError(f"{expected}, got {type(mesh).__name__}")
    others = [name for name in mesh.axis_names if name not in (DATA, MODEL)]
    if mesh.empty or others:
        raise MeshError(f"{expected}, got the axes {mesh.axis_names}")


def _has_rules(node: Any) -> bool:
    return isinstance(node, SupportsPartitionRules)


def _check_sizes(node: Any, mesh: Mesh | AbstractMesh) -> None:
    if not _has_rules(node):
        return
    count = mesh.shape.get(MODEL, 1)
    for name, size in node.sharded_sizes.items():
        if size % count:
            raise MeshError(f"mesh: expected a divisor of {name} = {size}, got model={count}")


def _specs(model: Any, rules: Rules) -> Any:
    def spec(path: Any, leaf: Any) -> Any:
        layout = _layout_of(_path(path), rules)
        axes = (*[None] * (leaf.ndim - len(layout) if layout else 0), *layout)
        if not isinstance(leaf, SupportsPlaces):
            return PartitionSpec(*axes)

        def place(x: Any) -> PartitionSpec:
            sizes = zip(axes, x.shape, strict=False)
            return PartitionSpec(*(None if size == 1 else name for name, size in sizes))

        return leaf.placed(place)

    return jax.tree_util.tree_map_with_path(
        spec, model, is_leaf=lambda x: isinstance(x, SupportsPlaces)
    )


def _layout_of(name: str, rules: Rules) -> PartitionSpec:
    for pattern, layout in rules.items():
        if fnmatch.fnmatchcase(name, pattern):
            return layout
    raise ValueError(f"rules: expected a pattern for every array, got none that matches {name}")


def _path(path: Any) -> str:
    return jax.tree_util.keystr(path, simple=True, separator="/")
