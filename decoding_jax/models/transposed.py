"""Kernels whose inputs are the last axis in memory, which CPUs multiply by few rows faster.

XLA's CPU backend copies a kernel ``[D, F]`` into panels before it multiplies it by more than one
row, and it reads one row's product across the whole kernel. A kernel that lies as ``[F, D]`` is
copied in contiguous pieces, and the product of one row is a sum over contiguous weights
(``docs/measured/large_models.md`` has times). bfloat16 is converted first, which takes longer this
way. The networks and their files keep ``[D, F]``; ``load_model`` stores large float32 kernels so
on a CPU.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, TypeVar

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax import traverse_util
from jax import lax
from jax.sharding import PartitionSpec

from decoding_jax.base import Array
from decoding_jax.pytrees import pytree

if TYPE_CHECKING:
    from collections.abc import Callable

M = TypeVar("M")

SMALLEST = 2**19
"""The weights of the smallest kernel that is stored this way. A processor's cache holds smaller
ones, and their products with one row are slower so."""


@pytree
@dataclasses.dataclass(frozen=True)
class TransposedKernel:
    """A kernel ``[D, ..., F]`` that is stored as ``[..., F, D]``.

    Attributes:
      values: the weights, with the axis of inputs last.

    Example:
      >>> kernel = TransposedKernel.of(jnp.ones((2, 3)))
      >>> kernel.values.shape, kernel.shape, kernel.product(jnp.ones((4, 2)), None).shape
      ((3, 2), (2, 3), (4, 3))
    """

    values: Array

    @classmethod
    def of(cls, kernel: Array) -> TransposedKernel:
        return cls(jnp.moveaxis(kernel, 0, -1))

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.values.shape[-1], *self.values.shape[:-1])

    @property
    def ndim(self) -> int:
        return self.values.ndim

    @property
    def dtype(self) -> Any:
        return self.values.dtype

    def to_float(self) -> Array:
        """The kernel ``[D, ..., F]``."""
        return jnp.moveaxis(self.values, -1, 0)

    def product(self, x: Array, precision: lax.Precision | None) -> Array:
        """``x [..., D] @ self [D, ..., F]`` in the dtype of ``x``, accumulated in float32."""
        dims = (((x.ndim - 1,), (self.ndim - 1,)), ((), ()))
        values = self.values.astype(x.dtype)
        return lax.dot_general(
            x, values, dims, precision=precision, preferred_element_type=jnp.float32
        )

    def placed(self, place: Callable[[Any], PartitionSpec]) -> TransposedKernel:
        """See ``sharding.rules.SupportsPlaces``."""
        first, *others = place(jax.ShapeDtypeStruct(self.shape, self.dtype))
        return TransposedKernel(PartitionSpec(*others, first))  # type: ignore[arg-type]


def kernel_of(
    module: nn.Module, init: Callable[..., Array], shape: tuple[int, ...]
) -> Array | TransposedKernel:
    """The float32 parameter ``kernel`` of a module, as it is stored."""
    if module.has_variable("params", "kernel"):
        stored: Any = module.get_variable("params", "kernel")
        if isinstance(stored, TransposedKernel):
            return stored
    return module.param("kernel", init, shape, jnp.float32)


def transposed(model: M, smallest: int = SMALLEST) -> M:
    """A model whose large float32 kernels are transposed, where it runs on a CPU and on no mesh.

    Args:
      model: a model of ``decoding_jax.models``.
      smallest: the weights of the smallest kernel that is stored this way.
    """
    config: Any = model.config  # type: ignore[attr-defined]
    if jax.default_backend() != "cpu" or config.dtype != "float32" or config.scan_layers:
        return model

    def convert(path: str, x: Any) -> Any:
        is_kernel = path.endswith("/kernel") and "_experts/" not in path
        large = is_kernel and isinstance(x, jax.Array) and x.size >= smallest
        return TransposedKernel.of(x) if large and x.dtype == jnp.float32 else x

    flat = traverse_util.flatten_dict(model.params, sep="/")  # type: ignore[attr-defined]
    flat = {path: convert(path, x) for path, x in flat.items()}
    params = traverse_util.unflatten_dict(flat, sep="/")
    return dataclasses.replace(model, params=params)  # type: ignore[type-var]


def plain(tree: M) -> M:
    """A model, or its parameters, with arrays ``[D, ..., F]`` only: undoes ``transposed``."""
    return jax.tree.map(
        lambda x: x.to_float() if isinstance(x, TransposedKernel) else x,
        tree,
        is_leaf=lambda x: isinstance(x, TransposedKernel),
    )
