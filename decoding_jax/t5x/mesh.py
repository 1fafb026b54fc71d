"""T5X's mesh, put into context while T5X traces ``predict_batch``.

T5X's partitioner enters its mesh by ``with mesh:``, which ``jax.sharding.get_abstract_mesh`` does
not show. Inside ``on_t5x_mesh``, caches, logits and drafts are laid out as in ``sharding.meshes``.
"""

from __future__ import annotations

import functools
import logging
import warnings
from collections.abc import Callable
from typing import Any, TypeVar

import jax
from jax.interpreters import pxla
from jax.sharding import Mesh, PartitionSpec

from decoding_jax import sharding
from decoding_jax.sharding.meshes import DATA, MODEL

F = TypeVar("F", bound=Callable[..., Any])

_LOGGER = logging.getLogger(__name__)


def current_mesh() -> Mesh | None:
    """The mesh of T5X's partitioner, or None outside of it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # T5X itself depends on it
        mesh = pxla.thread_resources.env.physical_mesh
    return None if mesh.empty else mesh


def on_t5x_mesh(method: F) -> F:
    """Calls a method with T5X's mesh in context."""

    @functools.wraps(method)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        mesh = current_mesh()
        if mesh is None or not jax.sharding.get_abstract_mesh().empty:
            return method(*args, **kwargs)
        with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
            return method(*args, **kwargs)

    return wrapper  # type: ignore[return-value]


def on_mesh(drafter: Any) -> Any:
    """Lays the parameters of a drafter out on T5X's mesh, if there is one.

    A draft that the mesh does not divide is copied to every device.
    """
    mesh = current_mesh()
    arrays = [x for x in jax.tree.leaves(drafter) if isinstance(x, jax.Array)]
    traced = any(isinstance(x, jax.core.Tracer) for x in arrays)
    if mesh is None or not arrays or traced or {*mesh.axis_names} - {DATA, MODEL}:
        return drafter
    with jax.ensure_compile_time_eval():
        try:
            return sharding.shard(drafter, mesh)
        except ValueError as e:
            _LOGGER.warning("the draft is copied to every device: %s", e)
            return sharding.shard(drafter, mesh, {"*": PartitionSpec()})
