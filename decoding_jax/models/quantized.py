"""Weights of 8 or 4 bits: narrow integers and their scales, where a float array was.

``quantize`` replaces the kernels of a network and its table of token embeddings; the networks need
no change, because ``layers.matmul`` and ``layers.embed`` take such arrays too. Rounding is to the
nearest number of an even grid, without any data (Dettmers et al. 2022, "LLM.int8()"; Frantar et al.
2023, "GPTQ", whose baseline it is). ``qwix`` has arrays of this kind, but it scales a whole kernel
before it multiplies float activations by it, and the TPU's compiler then writes the wide kernel to
memory at every step where groups have scales of their own.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import traverse_util
from jax import lax

from decoding_jax import fields
from decoding_jax.base import Array
from decoding_jax.ops import gpu
from decoding_jax.pytrees import pytree

M = TypeVar("M")

GROUP = 128
"""The number of weights of a column that share a scale with ``"int4"``."""
_INTEGERS: dict[int, Any] = {8: jnp.int8, 4: jnp.int4}
_NAME = re.compile(r"int8|int4(?:-([1-9][0-9]*))?")


@pytree
@dataclasses.dataclass(frozen=True)
class QuantizedArray:
    """An array of integers and their scales: ``scale * (values - zero)``.

    Attributes:
      values: int8 or int4, of the array's shape.
      scale: of as many axes. An axis has the size of that of ``values`` or divides it; each scale
        is that of as many neighbours as fit.
      zero: None, or the integers that stand for 0, of the shape of ``scale``.
      dtype: the dtype of the array that it stands for, ``float32`` or ``bfloat16``.

    Example:
      >>> QuantizedArray(jnp.int8([[2], [4]]), jnp.float32([[0.5]])).to_float("float32")
      Array([[1.],
             [2.]], dtype=float32)
    """

    # The first field: Flax compares the shape of the first leaf with that of the parameter.
    values: Array
    scale: Array
    zero: Array | None = None
    dtype: str = fields.field(static=True, default="float32")

    @property
    def shape(self) -> tuple[int, ...]:
        return self.values.shape

    @property
    def ndim(self) -> int:
        return self.values.ndim

    @property
    def T(self) -> QuantizedArray:  # noqa: N802 (as of arrays)
        """The transposed array."""
        return jax.tree.map(lambda x: x.T, self)

    def to_float(self, dtype: str) -> Array:
        """The array in ``dtype``, in which it is also computed."""
        values, scale = self.values.astype(dtype), self.scale.astype(dtype)
        tiles: list[int] = []
        per_tile: list[int] = []
        for size, count in zip(self.shape, scale.shape, strict=True):
            tiles += [count, size // count]
            per_tile += [count, 1]
        values = values.reshape(tiles)
        if self.zero is not None:
            values -= self.zero.astype(dtype).reshape(per_tile)
        return (values * scale.reshape(per_tile)).reshape(self.shape)

    def product(self, x: Array, precision: lax.Precision | None) -> Array:
        """``x [..., D] @ self [D, ..., F]``, accumulated and returned in float32.

        Integers are multiplied, which takes no rounding, and the sums of the groups are scaled.
        Compilers fuse the conversion of the integers into their product, and read them narrow from
        memory. That for GPUs joins products of one ``x``, and would then widen kernels of groups;
        a barrier around each kernel and its ``x`` keeps them apart.

        For more tokens than a group has weights, the sums would take more memory than the kernel,
        which is scaled first then, in the dtype of ``x``.
        """
        groups, *rest = self.scale.shape
        size = x.shape[-1] // groups
        options: Any = {"precision": precision, "preferred_element_type": jnp.float32}
        if groups > 1 and x.size // x.shape[-1] > size:
            return jnp.tensordot(x, self.to_float(x.dtype.name), 1, **options)
        values = self.values
        if groups > 1:
            x, values = gpu.either(
                lambda: lax.optimization_barrier((x, values)), lambda: (x, values)
            )
        values = values.reshape(groups, size, *self.shape[1:]).astype(x.dtype)
        split = x.reshape(*x.shape[:-1], groups, size)
        dims = (((x.ndim,), (1,)), ((x.ndim - 1,), (0,)))
        y = lax.dot_general(split, values, dims, **options)  # [groups, *x.shape[:-1], ..., F]
        aligned = (groups, *[1] * (x.ndim - 1), *rest)
        if self.zero is not None:
            total = jnp.moveaxis(split.astype(jnp.float32).sum(-1), -1, 0)
            total = total.reshape(*total.shape, *[1] * len(rest))
            y -= total * self.zero.astype(jnp.float32).reshape(aligned)
        return (y * self.scale.astype(jnp.float32).reshape(aligned)).sum(0)

    def rows(self, index: Array, dtype: str) -> Array:
        """``to_float`` of the rows ``index [...]``, clipped, of a table with a scale for each."""
        values = jnp.take(self.values, index, axis=0, mode="clip")
        scale = jnp.take(self.scale, index, axis=0, mode="clip")
        return (values.astype(jnp.float32) * scale).astype(dtype)

    def placed(self, place: Callable[[Any], Any]) -> QuantizedArray:
        """See ``sharding.rules.SupportsPlaces``."""
        return jax.tree.map(place, self)


class Rounding(NamedTuple):
    """How a parameter is quantised.

    Attributes:
      bits: 8 or 4.
      group: the number of neighbours along ``axis`` that share a scale, or None for all of them. Of
        one that does not divide the axis, the greatest divisor that both have counts.
      axis: the axis that products sum over, of the parameter of one layer.
    """

    bits: int
    group: int | None
    axis: int


class Scheme(NamedTuple):
    """Which parameters are quantised, and how.

    Attributes:
      bits: the bits of the kernels of layers. Output and embeddings have 8.
      group: as in ``Rounding``, for these kernels.
    """

    bits: int
    group: int | None

    def rounding(self, path: str) -> Rounding | None:
        """How the parameter at a path is quantised, or None if it is not.

        Norms, biases, tables of positions and routers to experts stay as they are.
        """
        if path.endswith("token_embedder/embedding"):
            return Rounding(8, None, 1)
        if not path.endswith("/kernel") or "router/" in path:
            return None
        axis = int("_experts/" in path)  # behind that of the experts
        return Rounding(8, None, 0) if "logits_dense" in path else Rounding(*self, axis)


def scheme_of(weights: str) -> Scheme:
    """The scheme of a name: ``int8``, ``int4``, or ``int4-64`` for groups of another size.

    Raises:
      ValueError: for another name.

    Example:
      >>> scheme_of("int4-64")
      Scheme(bits=4, group=64)
    """
    found = _NAME.fullmatch(weights) if isinstance(weights, str) else None
    if found is None:
        raise fields.error("weights", "None, 'int8', 'int4', or 'int4-' and a group size", weights)
    if found[0] == "int8":
        return Scheme(8, None)
    return Scheme(4, int(found[1] or GROUP))


def _largest_divisor(size: int, limit: int) -> int:
    """The largest divisor of a size up to a limit."""
    return next(n for n in range(min(size, limit), 0, -1) if size % n == 0)


def quantize_array(x: Any, rounding: Rounding, dtype: str, *, stacked: bool = False) -> Any:
    """The nearest ``QuantizedArray`` to an array of NumPy or of JAX.

    With 8 bits, the largest of a group in size becomes 127 or -127. With 4 bits, it becomes -8, and
    its scale has the sign for that.

    Args:
      x: the array.
      rounding: how it is quantised.
      dtype: the dtype of the network, and of the scales of groups.
      stacked: whether the array has one more axis, of layers, before the others.
    """
    xp: Any = jnp if isinstance(x, jax.Array) else np
    axis = rounding.axis + stacked
    size = x.shape[axis]
    group = size if rounding.group is None else _largest_divisor(size, rounding.group)
    split = x.astype(np.float32).reshape(
        *x.shape[:axis], size // group, group, *x.shape[axis + 1 :]
    )
    high, low = split.max(axis + 1, keepdims=True), split.min(axis + 1, keepdims=True)
    top = 2 ** (rounding.bits - 1) - 1
    # Products with reciprocals, which XLA makes of these divisions, so that NumPy rounds alike.
    if rounding.bits == 8:
        scale = xp.maximum(high, -low) * np.float32(1 / top)
    else:
        scale = xp.where(high > -low, high, low) * np.float32(-1 / (top + 1))
    scale = xp.where(scale == 0, np.float32(1), scale)
    if group != size:
        scale = scale.astype(dtype).astype(np.float32)
    with np.errstate(invalid="ignore"):  # NaN is in the scale
        values = xp.clip(xp.round(split * (np.float32(1) / scale)), -top - 1, top)
        values = values.reshape(x.shape).astype(_INTEGERS[rounding.bits])
    scale = scale.squeeze(axis + 1)
    return QuantizedArray(values, scale if group == size else scale.astype(dtype), None, dtype)


def quantize(model: M, weights: str) -> M:
    """The same model with weights of 8 or 4 bits; activations and cache stay as they are.

    ``load`` does the same while it reads, without room for the wide weights. A quantised model may
    be the draft of the one that it is made from.

    Args:
      model: a model of ``decoding_jax.models``, with parameters of any float dtype.
      weights: as in ``load_model``.

    Raises:
      ValueError: for unknown ``weights``, or for a model of another kind or that is quantised.

    Example:
      >>> from decoding_jax.models import GPT2, GPT2Config
      >>> config = GPT2Config(vocab_size=9, emb_dim=4, num_heads=2, mlp_dim=8, num_layers=1)
      >>> model = quantize(GPT2.init(config, jax.random.key(0)), "int8")
      >>> model.params["layers_0"]["mlp"]["up"]["kernel"].values.dtype
      dtype('int8')
    """
    scheme = scheme_of(weights)
    if not hasattr(model, "params") or not hasattr(model, "config"):
        raise ValueError(
            "model: expected a network of decoding_jax.models to quantise, before it gets a shared"
            f" prefix, got {fields.describe(model)}"
        )
    check_floats(model)
    dtype = model.config.dtype

    def convert(path: str, x: Any) -> Any:
        rounding = scheme.rounding(path)
        if rounding is None:
            return x
        return quantize_array(x, rounding, dtype, stacked=is_stacked(path))

    flat = traverse_util.flatten_dict(model.params, sep="/")
    flat = {path: convert(path, x) for path, x in flat.items()}
    params = traverse_util.unflatten_dict(flat, sep="/")
    return dataclasses.replace(model, params=params)  # type: ignore[type-var]


def is_stacked(path: str) -> bool:
    """Whether the parameter at a path is that of all layers of a scan."""
    return re.search(r"\blayers/", path) is not None


def is_quantized(tree: Any) -> bool:
    """Whether an array in a tree is quantised."""
    leaves = jax.tree.leaves(tree, is_leaf=lambda x: isinstance(x, QuantizedArray))
    return any(isinstance(x, QuantizedArray) for x in leaves)


def check_floats(model: Any) -> None:
    """Raises a ValueError if a model has quantised weights."""
    if is_quantized(model.params):
        raise ValueError("model: expected one with float weights, got one with quantised weights")
