"""The blocks of multi-token prediction, each of which continues the states of the one before.

DeepSeek-AI 2024, "DeepSeek-V3 Technical Report" (arXiv:2412.19437), section 2.2. Block k joins the
state of block k - 1 (for k = 1, the target's last hidden state) with the embedding of the next
token, projects them to one state (equation 21), and runs a decoder layer (equation 22). The
embedding and the projection to the vocabulary (equation 23) are the target's.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

import jax.numpy as jnp
from flax import linen as nn
from jax.sharding import PartitionSpec

from decoding_jax.base import Array
from decoding_jax.models import caches, layers, view
from decoding_jax.models.eagle import EagleHead, EagleNetwork
from decoding_jax.models.feature_head import FeatureHeadConfig
from decoding_jax.models.llama import LlamaLayer
from decoding_jax.pytrees import pytree


@dataclasses.dataclass(frozen=True)
class MultiTokenConfig(FeatureHeadConfig):
    """The shape of a block, whose ``num_layers`` is 1; see ``FeatureHeadConfig`` too.

    ``feature_layers`` is a tuple of one number, that of the target's layers: its last hidden state,
    after the final norm.

    Attributes:
      state_first: whether the projection takes the state before the embedding.
    """

    state_first: bool = dataclasses.field(default=False, kw_only=True)


class MultiTokenLayer(nn.Module):
    """The layer of a block, from a token's embedding and the state before it to its state."""

    config: MultiTokenConfig

    def setup(self) -> None:
        cfg = self.config
        self.embedding_norm = layers.RMSNorm(cfg.norm_epsilon, cfg.dtype)
        self.state_norm = layers.RMSNorm(cfg.norm_epsilon, cfg.dtype)
        self.fusion = layers.Dense(cfg.emb_dim, cfg.dtype)
        self.layer = LlamaLayer(cfg)

    def __call__(
        self, x: Array, layer_cache: view.LayerCache, angles: tuple[Array, Array]
    ) -> tuple[Array, caches.KeyValue]:
        """Runs the layer on ``x [B, W, T, 2 D]``, the embeddings and the states."""
        embedding, state = jnp.split(x, 2, axis=-1)
        both = [self.embedding_norm(embedding), self.state_norm(state)]
        joined = jnp.concatenate(both[::-1] if self.config.state_first else both, -1)
        return self.layer(self.fusion(joined), layer_cache, angles)


class MultiTokenNetwork(EagleNetwork):
    """The network of ``MultiTokenBlock``, whose config is a ``MultiTokenConfig``."""

    config: Any

    def setup(self) -> None:
        cfg = self.config
        self.layers = [MultiTokenLayer(cfg)]
        self.final_norm = layers.RMSNorm(cfg.norm_epsilon, cfg.dtype)

    def fuse(self, features: tuple[Array, ...]) -> Array:
        """See ``PredictionBlock.fuse``."""
        return features[0].astype(self.config.dtype)

    def after_layers(self, x: Array) -> Array:
        """The states that are continued and projected, after the final norm."""
        return self.final_norm(x)

    def __call__(self, features: tuple[Array, ...], embedded: Array, length: Array) -> Array:
        """The states ``[B, 1, P, D]`` of the entries of a prompt."""
        return self.prefill(embedded, self.fuse(features), length)[0]


@pytree
@dataclasses.dataclass(frozen=True)
class MultiTokenBlock(EagleHead):
    """A block with its parameters, a ``strategies.speculative.PredictionBlock``.

    Attributes:
      params: the parameters of ``MultiTokenNetwork``, of any float dtype.
      config: a ``MultiTokenConfig``.
      embedding: ``[V, D]``, the target's embeddings.
      output: ``[D, V]``, the target's projection to its vocabulary, or None where it is tied to the
        embeddings.

    Example:
      >>> import jax
      >>> from decoding_jax.strategies.speculative import MultiTokenPrediction
      >>> config = MultiTokenConfig(
      ...     vocab_size=9, emb_dim=4, num_heads=2, num_kv_heads=1, head_dim=2, mlp_dim=8,
      ...     num_layers=1, max_positions=32, feature_layers=(6,), feature_dim=4)
      >>> block = MultiTokenBlock.init(config, jax.random.key(0), embedding=jnp.ones((9, 4)))
      >>> MultiTokenPrediction((block,)).feature_layers
      (6,)
    """

    output: Any = None

    network: ClassVar[type[MultiTokenNetwork]] = MultiTokenNetwork

    @property
    def partition_rules(self) -> Mapping[str, PartitionSpec]:
        """See ``sharding.SupportsPartitionRules``."""
        return {**super().partition_rules, "output": layers.PARTITION_RULES["*logits_bias"]}

    def project(self, states: Array) -> Array:
        """See ``PredictionBlock.project``."""
        kernel = self.embedding.T if self.output is None else self.output
        return layers.vocabulary_logits(states, kernel)
