"""A mixture of experts in the place of a feed-forward part.

Shazeer et al. 2017, "Outrageously Large Neural Networks: The Sparsely-Gated Mixture-of-Experts
Layer"; Fedus et al. 2022, "Switch Transformers"; Jiang et al. 2024, "Mixtral of Experts". No token
is dropped: each runs through its best experts, whatever other tokens choose, so a row does not
depend on its batch. The tokens are ordered by expert, and one ragged product reads each kernel that
is chosen, or a loop over blocks of tokens of one expert (Gale et al. 2023, "MegaBlocks"). On a mesh
each device has some of the experts, and the sums of the devices, in the dtype of activations, are
added over its axis ``model``.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax import lax
from jax.sharding import PartitionSpec

from decoding_jax.base import Array
from decoding_jax.models import layers, stack
from decoding_jax.models.quantized import QuantizedArray
from decoding_jax.ops import precision
from decoding_jax.sharding import meshes

BLOCK = 64
"""The largest number of rows that ``in_blocks`` multiplies at a time."""
ROWS = 16
"""``in_place`` pads rows to a multiple; for fewer than eight the compiler reads all experts."""


def widened(kernel: Any, x: Array) -> Array:
    """A kernel, quantised or not, in the dtype of ``x``."""
    if isinstance(kernel, QuantizedArray):
        return kernel.to_float(x.dtype.name)
    found: Array = kernel.astype(x.dtype)
    return found


def ragged(x: Array, kernel: Any, sizes: Array) -> Array:
    """The product in float32 of each row of ``x [M, D]`` and its expert's ``kernel [E, D, F]``.

    The rows are ordered by expert, with ``sizes [E]`` of each.
    """
    return _ragged(x, widened(kernel, x), sizes)


def of_layer(kernel: Any, layer: Array | None) -> Any:
    """The kernel of a layer, of one that is stacked over layers if ``layer`` is not None."""
    if layer is None:
        return kernel
    return jax.tree.map(lambda k: lax.dynamic_index_in_dim(k, layer, keepdims=False), kernel)


def in_place(x: Array, kernel: Any, sizes: Array, layer: Array | None) -> Array:
    """As ``ragged``, for a TPU, whose kernel reads the experts that have rows where they lie.

    It takes int8 as it is, which would otherwise be written wide. Stacked kernels are given whole,
    with no rows for the experts of other layers: a slice of one layer would be copied.
    """
    if not (isinstance(kernel, jax.Array) and kernel.dtype in (x.dtype, jnp.int8)):
        return ragged(x, of_layer(kernel, layer), sizes)
    if layer is not None:
        none = jnp.zeros(kernel.shape[:2], jnp.int32)
        sizes = lax.dynamic_update_index_in_dim(none, sizes, layer, 0).reshape(-1)
        kernel = kernel.reshape(-1, *kernel.shape[2:])
    rows = x.shape[0]
    return _ragged(jnp.pad(x, ((0, -rows % ROWS), (0, 0))), kernel, sizes)[:rows]


def _ragged(x: Array, kernel: Array, sizes: Array) -> Array:
    options: Any = {"precision": precision.of(x), "preferred_element_type": jnp.float32}
    return lax.ragged_dot(x, kernel, sizes, **options)


def in_blocks(x: Array, kernel: Any, sizes: Array) -> Array:
    """As ``ragged``, which a CPU would compute for every expert and row: by blocks of rows."""
    rows, count = x.shape[0], sizes.shape[0]
    size = min(BLOCK, 1 << max((rows // count).bit_length() - 1, 0))
    needed = -(-sizes // size)
    last = jnp.cumsum(needed)
    block = jnp.arange(rows if size == 1 else rows // size + count, dtype=jnp.int32)
    expert = jnp.minimum((last[None] <= block[:, None]).sum(1, dtype=jnp.int32), count - 1)
    first = jnp.cumsum(sizes)[expert] - sizes[expert]
    start = first + (block - last[expert] + needed[expert]) * size
    start = jnp.where(block < last[-1], start, rows)
    x = jnp.pad(x, ((0, size), (0, 0)))

    def multiply(y: Array, of: tuple[Array, Array]) -> tuple[Array, None]:
        start, expert = of
        part = lax.dynamic_slice_in_dim(x, start, size)
        own = jax.tree.map(lambda k: lax.dynamic_index_in_dim(k, expert, keepdims=False), kernel)
        options: Any = {"precision": precision.of(x), "preferred_element_type": jnp.float32}
        out = jnp.matmul(part, widened(own, x), **options)
        # Rows of later experts at the end of a block are written again by theirs.
        return lax.dynamic_update_slice_in_dim(y, out, start, 0), None

    def add(y: Array, of: tuple[Array, Array]) -> tuple[Array, None]:
        return lax.cond(of[0] < rows, multiply, lambda y, of: (y, None), y, of)

    y = jnp.zeros((rows + size, kernel.shape[-1]), jnp.float32)
    return lax.scan(add, y, (start, expert))[0][:rows]


class Linear(NamedTuple):
    """A linear map of each expert.

    Attributes:
      kernel: ``[E, D, F]``, an array or a ``QuantizedArray``, or ``[N, E, D, F]`` of N layers.
      bias: None or ``[E, F]``.
      layer: None, or the number of the layer of ``kernel``.
    """

    kernel: Any
    bias: Array | None
    layer: Array | None

    def __call__(self, x: Array, expert: Array, sizes: Array, dtype: str) -> Array:
        """The map of ``x [M, D]``, ordered by ``expert [M]`` with ``sizes [E]``, in float32."""
        kernel, scale = self.kernel, None
        if isinstance(kernel, QuantizedArray) and kernel.scale.shape[-2] == 1:
            # Integers are multiplied, as in ``QuantizedArray.product``.
            kernel = self.kernel.values
            scale = of_layer(self.kernel.scale, self.layer).squeeze(-2)

        def here(way: Callable[[Array, Any, Array], Array]) -> Callable[..., Array]:
            return lambda x, kernel, sizes, layer: way(x, of_layer(kernel, layer), sizes)

        ways = {"cpu": here(in_blocks), "tpu": in_place, "default": here(ragged)}
        y = lax.platform_dependent(x.astype(dtype), kernel, sizes, self.layer, **ways)
        y = y if scale is None else y * scale[expert].astype(jnp.float32)
        return y if self.bias is None else y + self.bias[expert].astype(jnp.float32)

    def specs(self, axis: str | None) -> Any:
        """The layouts of these arrays, with experts over an axis of a mesh."""
        kernel = (axis,) if self.layer is None else (None, axis)
        specs: Any = PartitionSpec(*kernel), PartitionSpec(axis), PartitionSpec()
        return Linear(*specs)

    @property
    def num_experts(self) -> int:
        """E."""
        count: int = self.kernel.shape[-3]
        return count


class ExpertDense(nn.Module):
    """The parameters of a linear map of each expert.

    Attributes:
      num_experts: E.
      inputs: D.
      features: F.
      use_bias: whether each expert has a bias.
    """

    num_experts: int
    inputs: int
    features: int
    use_bias: bool = False

    @nn.compact
    def __call__(self) -> Linear:
        """The map."""
        init = nn.initializers.variance_scaling(1.0, "fan_in", "truncated_normal", 1, 2, 0)
        shape = (self.num_experts, self.inputs, self.features)
        kernel, bias = self.param("kernel", init, shape, jnp.float32), None
        if self.use_bias:
            zeros = nn.initializers.zeros_init()
            bias = self.param("bias", zeros, (shape[0], shape[2]), jnp.float32)
        kernel, layer = stack.of_all_layers(self, "kernel") or (kernel, None)
        return Linear(kernel, bias, layer)


class Experts(nn.Module):
    """The sum of the best experts of each token, each times its weight.

    Attributes:
      config: a ``LlamaConfig`` with ``num_experts``.
    """

    config: Any

    @nn.compact
    def __call__(self, x: Array, scores: Array | None = None, scale: Array | None = None) -> Array:
        """The sums of ``x [..., D]``.

        Args:
          x: the input.
          scores: the logits of the experts ``[..., E]``, or None for those of a router of its own.
          scale: None, or a factor of each expert, ``[E]``.
        """
        cfg = self.config
        count, chosen, biased = cfg.num_experts, cfg.experts_per_token, cfg.expert_bias
        tokens = x.reshape(-1, x.shape[-1])
        scores = self.scores(tokens) if scores is None else scores
        scores = scores.reshape(-1, count).astype(jnp.float32)
        weight, expert = lax.top_k(jax.nn.softmax(scores), chosen)
        if cfg.normalised_experts:
            weight = weight / weight.sum(-1, keepdims=True)
        weight = weight if scale is None else weight * scale.astype(jnp.float32)[expert]
        maps = {
            name: ExpertDense(count, *sizes, biased, name=f"{name}_experts")()
            for name, sizes in self.sizes().items()
        }
        return self.on_mesh(maps, tokens, weight, expert, x.shape[0]).reshape(x.shape)

    def on_mesh(
        self, maps: Mapping[str, Linear], tokens: Array, weight: Array, expert: Array, rows: int
    ) -> Array:
        """``summed``, on each device of a mesh for its own experts and tokens."""
        data, model = (meshes.axis_size(name) or 1 for name in (meshes.DATA, meshes.MODEL))
        own = meshes.MODEL if self.config.num_experts % model == 0 and model > 1 else None
        row = PartitionSpec(meshes.DATA if rows % data == 0 and data > 1 else None)
        if data == model == 1:
            return self.summed(maps, tokens, weight, expert)
        run = jax.shard_map(
            functools.partial(self.summed, axis=own),
            in_specs=({name: m.specs(own) for name, m in maps.items()}, row, row, row),
            out_specs=row,
            axis_names={n for n in (meshes.DATA, meshes.MODEL) if meshes.axis_size(n) is not None},
            check_vma=False,
        )
        return run(maps, tokens, weight, expert)

    def summed(
        self,
        maps: Mapping[str, Linear],
        tokens: Array,
        weight: Array,
        expert: Array,
        axis: str | None = None,
    ) -> Array:
        """The sums of ``tokens [M, D]``, with the ``weight [M, k]`` of each ``expert [M, k]``.

        Args:
          maps: the linear maps of all experts, or of those of this device.
          tokens: the input.
          weight: the weights.
          expert: the experts' numbers.
          axis: None, or the axis of the mesh that the experts lie over.
        """
        cfg = self.config
        chosen, count = expert.shape[1], next(iter(maps.values())).num_experts
        expert = expert.reshape(-1)
        if axis is not None:
            expert = expert - lax.axis_index(axis) * count
            # Experts of other devices come last, and are none of the groups.
            expert = jnp.where((expert >= 0) & (expert < count), expert, count)
        order = jnp.argsort(expert, stable=True)
        sizes = jnp.zeros((count,), jnp.int32).at[expert].add(1, mode="drop")
        expert = expert[order]

        def project(y: Array, name: str) -> Array:
            return maps[name](y, expert, sizes, cfg.dtype).astype(cfg.dtype)

        y = self.run(jnp.take(tokens, order // chosen, axis=0), project)
        if axis is not None:
            y = jnp.where((expert < count)[:, None], y, jnp.zeros_like(y))
        y = y.astype(jnp.float32)
        # Back in the order of the tokens, so that a token's sum does not depend on the others.
        y = jnp.zeros_like(y).at[order].set(y, unique_indices=True)
        y = (y.reshape(-1, chosen, cfg.emb_dim) * weight[..., None]).sum(1).astype(cfg.dtype)
        return y if axis is None else lax.psum(y, axis)

    def scores(self, tokens: Array) -> Array:
        """The logits of the experts ``[M, E]`` for tokens ``[M, D]``, by a router."""
        cfg = self.config
        return layers.Dense(cfg.num_experts, cfg.dtype, use_bias=cfg.expert_bias, name="router")(
            tokens
        )

    def sizes(self) -> Mapping[str, tuple[int, int]]:
        """The sizes of the input and of the result of each linear map, by its name."""
        cfg = self.config
        wide = cfg.emb_dim, cfg.mlp_dim
        return {"gate": wide, "up": wide, "down": wide[::-1]}

    def run(self, x: Array, project: Callable[[Array, str], Array]) -> Array:
        """The outputs ``[M, D]`` of the experts of the rows of ``x [M, D]``, in their order.

        Args:
          x: the inputs.
          project: a linear map of each row's expert, by its name.
        """
        return project(self.gated(project(x, "gate"), project(x, "up")), "down")

    def gated(self, gate: Array, up: Array) -> Array:
        """The product of gate and projection, bounded or not."""
        cfg = self.config
        if cfg.gate_slope is None:
            return layers.ACTIVATIONS[cfg.activation](gate) * up
        gate, up = jnp.minimum(gate, cfg.gate_bound), jnp.clip(up, -cfg.gate_bound, cfg.gate_bound)
        return gate * jax.nn.sigmoid(cfg.gate_slope * gate) * (up + 1)


def has_experts(step: int, index: int) -> bool:
    """Whether the layer of this index has experts, if one of each ``step`` layers has them.

    Args:
      step: 1 if all layers have them, 0 if none has.
      index: the index of the layer.

    Example:
      >>> [has_experts(2, index) for index in range(4)]
      [False, True, False, True]
    """
    return step > 0 and index % step == 1 % step


class UngatedExperts(Experts):
    """Experts of two kernels, with a router in float32 (Switch Transformers).

    Attributes:
      config: a ``T5Config`` with ``num_experts``.
    """

    def scores(self, tokens: Array) -> Array:
        """As in ``Experts``."""
        cfg = self.config
        return layers.Dense(cfg.num_experts, use_bias=cfg.router_bias, name="router")(tokens)

    def sizes(self) -> Mapping[str, tuple[int, int]]:
        """As in ``Experts``."""
        cfg = self.config
        return {"wi": (cfg.emb_dim, cfg.mlp_dim), "wo": (cfg.mlp_dim, cfg.emb_dim)}

    def run(self, x: Array, project: Callable[[Array, str], Array]) -> Array:
        """As in ``Experts``."""
        return project(layers.ACTIVATIONS[self.config.activation](project(x, "wi")), "wo")
