"""A mixture of experts in the place of a feed-forward part.

Shazeer et al. 2017, "Outrageously Large Neural Networks: The Sparsely-Gated Mixture-of-Experts
Layer"; Jiang et al. 2024, "Mixtral of Experts". No token is dropped: each runs through its best
experts, whatever other tokens choose, so a row does not depend on its batch. The tokens are ordered
by expert, and one ragged product reads each kernel that is chosen (Gale et al. 2023, "MegaBlocks").
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax import lax

from decoding_jax.base import Array
from decoding_jax.models import layers
from decoding_jax.ops import precision


class ExpertDense(nn.Module):
    """A linear map of each expert, ``[M, D] -> [M, features]`` in float32.

    Attributes:
      num_experts: E.
      features: the size of the result.
      dtype: the dtype of the operands.
    """

    num_experts: int
    features: int
    dtype: str = "float32"

    @nn.compact
    def __call__(self, x: Array, sizes: Array) -> Array:
        """The map of ``x``, of which the first ``sizes[0]`` rows belong to the first expert."""
        init = nn.initializers.variance_scaling(1.0, "fan_in", "truncated_normal", 1, 2, 0)
        shape = (self.num_experts, x.shape[-1], self.features)
        kernel = self.param("kernel", init, shape, jnp.float32)
        left = x.astype(self.dtype)
        return lax.ragged_dot(
            left,
            kernel.astype(self.dtype),
            sizes,
            precision=precision.of(x, left),
            preferred_element_type=jnp.float32,
        )


class Experts(nn.Module):
    """The sum of the best experts of each token, each times its weight.

    Attributes:
      config: a ``LlamaConfig`` with ``num_experts``.
    """

    config: Any

    @nn.compact
    def __call__(self, x: Array) -> Array:
        cfg = self.config
        count, chosen = cfg.num_experts, cfg.experts_per_token
        tokens = x.reshape(-1, x.shape[-1])
        scores = layers.Dense(count, cfg.dtype, name="router")(tokens)
        weight, expert = lax.top_k(jax.nn.softmax(scores.astype(jnp.float32)), chosen)
        if cfg.normalised_experts:
            weight = weight / weight.sum(-1, keepdims=True)
        expert = expert.reshape(-1)
        order = jnp.argsort(expert, stable=True)
        sizes = jnp.zeros((count,), jnp.int32).at[expert].add(1)

        def project(y: Array, size: int, name: str) -> Array:
            return ExpertDense(count, size, cfg.dtype, name=name)(y, sizes).astype(cfg.dtype)

        own = jnp.take(tokens, order // chosen, axis=0)
        gate = project(own, cfg.mlp_dim, "gate_experts")
        y = layers.ACTIVATIONS[cfg.activation](gate) * project(own, cfg.mlp_dim, "up_experts")
        y = project(y, cfg.emb_dim, "down_experts").astype(jnp.float32)
        # Back in the order of the tokens, so that a token's sum does not depend on the others.
        y = jnp.zeros_like(y).at[order].set(y, unique_indices=True)
        y = (y.reshape(-1, chosen, cfg.emb_dim) * weight[..., None]).sum(1)
        return y.astype(cfg.dtype).reshape(x.shape)
