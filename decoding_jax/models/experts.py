"""A mixture of experts in the place of a feed-forward part.

Shazeer et al. 2017, "Outrageously Large Neural Networks: The Sparsely-Gated Mixture-of-Experts
Layer"; Fedus et al. 2022, "Switch Transformers"; Jiang et al. 2024, "Mixtral of Experts". No token
is dropped: each runs through its best experts, whatever other tokens choose, so a row does not
depend on its batch. The tokens are ordered by expert, and one ragged product reads each kernel that
is chosen, or a loop over blocks of tokens of one expert (Gale et al. 2023, "MegaBlocks").
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax import lax

from decoding_jax.base import Array
from decoding_jax.models import layers
from decoding_jax.models.quantized import QuantizedArray
from decoding_jax.ops import precision

BLOCK = 64
"""The largest number of rows that ``in_blocks`` multiplies at a time."""


def ragged(x: Array, kernel: Array, sizes: Array) -> Array:
    """The product in float32 of each row of ``x [M, D]`` and its expert's ``kernel [E, D, F]``.

    The rows are ordered by expert, with ``sizes [E]`` of each.
    """
    return lax.ragged_dot(
        x,
        kernel.astype(x.dtype),
        sizes,
        precision=precision.of(x),
        preferred_element_type=jnp.float32,
    )


def in_blocks(x: Array, kernel: Array, sizes: Array) -> Array:
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
        own = lax.dynamic_index_in_dim(kernel, expert, keepdims=False).astype(x.dtype)
        out = jnp.matmul(part, own, precision=precision.of(x), preferred_element_type=jnp.float32)
        # Rows of later experts at the end of a block are written again by theirs.
        return lax.dynamic_update_slice_in_dim(y, out, start, 0), None

    def add(y: Array, of: tuple[Array, Array]) -> tuple[Array, None]:
        return lax.cond(of[0] < rows, multiply, lambda y, of: (y, None), y, of)

    y = jnp.zeros((rows + size, kernel.shape[-1]), jnp.float32)
    return lax.scan(add, y, (start, expert))[0][:rows]


class ExpertDense(nn.Module):
    """A linear map of each expert, ``[M, D] -> [M, features]`` in float32.

    Attributes:
      num_experts: E.
      features: the size of the result.
      dtype: the dtype of the operands.
      use_bias: whether each expert has a bias.
    """

    num_experts: int
    features: int
    dtype: str = "float32"
    use_bias: bool = False

    @nn.compact
    def __call__(self, x: Array, expert: Array, sizes: Array) -> Array:
        """The map of ``x``, whose rows are ordered by ``expert [M]``: ``sizes [E]`` of each."""
        init = nn.initializers.variance_scaling(1.0, "fan_in", "truncated_normal", 1, 2, 0)
        shape = (self.num_experts, x.shape[-1], self.features)
        kernel, scale = self.param("kernel", init, shape, jnp.float32), None
        if isinstance(kernel, QuantizedArray) and kernel.scale.shape[1] == 1:
            kernel, scale = kernel.values, kernel.scale[:, 0]  # integers are multiplied, as in it
        elif isinstance(kernel, QuantizedArray):
            kernel = kernel.to_float(self.dtype)
        left = x.astype(self.dtype)
        y = lax.platform_dependent(left, kernel, sizes, cpu=in_blocks, default=ragged)
        y = y if scale is None else y * scale[expert].astype(jnp.float32)
        if self.use_bias:
            zeros = nn.initializers.zeros_init()
            bias = self.param("bias", zeros, (self.num_experts, self.features), jnp.float32)
            y += bias[expert].astype(jnp.float32)
        return y


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
        expert = expert.reshape(-1)
        order = jnp.argsort(expert, stable=True)
        sizes = jnp.zeros((count,), jnp.int32).at[expert].add(1)
        expert = expert[order]

        def project(y: Array, size: int, name: str) -> Array:
            dense = ExpertDense(count, size, cfg.dtype, biased, name=f"{name}_experts")
            return dense(y, expert, sizes).astype(cfg.dtype)

        y = self.run(jnp.take(tokens, order // chosen, axis=0), project).astype(jnp.float32)
        # Back in the order of the tokens, so that a token's sum does not depend on the others.
        y = jnp.zeros_like(y).at[order].set(y, unique_indices=True)
        y = (y.reshape(-1, chosen, cfg.emb_dim) * weight[..., None]).sum(1)
        return y.astype(cfg.dtype).reshape(x.shape)

    def scores(self, tokens: Array) -> Array:
        """The logits of the experts ``[M, E]`` for tokens ``[M, D]``, by a router."""
        cfg = self.config
        return layers.Dense(cfg.num_experts, cfg.dtype, use_bias=cfg.expert_bias, name="router")(
            tokens
        )

    def run(self, x: Array, project: Callable[[Array, int, str], Array]) -> Array:
        """The outputs ``[M, D]`` of the experts of the rows of ``x [M, D]``, in their order.

        Args:
          x: the inputs.
          project: a linear map to a size, of each row's expert, by its name.
        """
        size = self.config.mlp_dim
        y = self.gated(project(x, size, "gate"), project(x, size, "up"))
        return project(y, self.config.emb_dim, "down")

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

    def run(self, x: Array, project: Callable[[Array, int, str], Array]) -> Array:
        """As in ``Experts``."""
        cfg = self.config
        y = layers.ACTIVATIONS[cfg.activation](project(x, cfg.mlp_dim, "wi"))
        return project(y, cfg.emb_dim, "wo")
