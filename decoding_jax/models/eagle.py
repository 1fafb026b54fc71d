"""The head of EAGLE-3: one decoder layer that continues the hidden states of a target.

Li et al. 2025, "EAGLE-3: Scaling up Inference Acceleration of Large Language Models via
Training-Time Test", section 3. Hidden states of three layers of the target are fused to one. The
first layer attends over the normalised embedding of a token beside the normalised state before it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Self

import jax.numpy as jnp
from flax import linen as nn
from jax.sharding import PartitionSpec

from decoding_jax.base import Array
from decoding_jax.models import caches, layers, view
from decoding_jax.models.feature_head import FeatureHead, FeatureHeadConfig
from decoding_jax.models.llama import LlamaAttention, LlamaLayer, LlamaMlp
from decoding_jax.pytrees import pytree


@dataclasses.dataclass(frozen=True)
class EagleConfig(FeatureHeadConfig):
    """The shape of a head; see ``FeatureHeadConfig`` too.

    ``vocab_size`` is the number of tokens that the head drafts.

    Attributes:
      residual_norm: whether the first layer adds to the normalised state (``norm_before_residual``
        of ``speculators``).
      fusion_norm: ``"none"``, or where hidden states of the target are normalised before they are
        fused: ``"each"`` by itself, or ``"all"`` together.
      output_norm: whether states are continued after the final norm instead of before it.
    """

    residual_norm: bool = dataclasses.field(default=False, kw_only=True)
    fusion_norm: str = dataclasses.field(default="none", kw_only=True)
    output_norm: bool = dataclasses.field(default=False, kw_only=True)


class EagleLayer(nn.Module):
    """The first layer of a head, from a token's embedding and the state before it to its state."""

    config: EagleConfig

    def setup(self) -> None:
        cfg = self.config
        self.embedding_norm = layers.RMSNorm(cfg.norm_epsilon, cfg.dtype)
        self.state_norm = layers.RMSNorm(cfg.norm_epsilon, cfg.dtype)
        self.attention = LlamaAttention(cfg)
        self.pre_mlp_norm = layers.RMSNorm(cfg.norm_epsilon, cfg.dtype)
        self.mlp = LlamaMlp(cfg)

    def __call__(
        self, x: Array, layer_cache: view.LayerCache, angles: tuple[Array, Array]
    ) -> tuple[Array, caches.KeyValue]:
        """Runs the layer on ``x [B, W, T, 2 D']``, the embeddings and the states."""
        embedding, state = jnp.split(x, 2, axis=-1)
        normed = self.state_norm(state)
        both = jnp.concatenate([self.embedding_norm(embedding), normed], -1)
        y, stored = self.attention(both, layer_cache, angles)
        x = y + (normed if self.config.residual_norm else state)
        return x + self.mlp(self.pre_mlp_norm(x)), stored


class EagleNetwork(nn.Module):
    """The network of ``EagleHead``."""

    config: EagleConfig

    def setup(self) -> None:
        cfg = self.config
        norms = {"none": 0, "each": len(cfg.feature_layers), "all": 1}[cfg.fusion_norm]
        self.fusion_norm = [layers.RMSNorm(cfg.norm_epsilon, cfg.dtype) for _ in range(norms)]
        self.fusion = layers.Dense(cfg.emb_dim, cfg.dtype)
        later = [LlamaLayer(cfg) for _ in range(cfg.num_layers - 1)]
        self.layers = [EagleLayer(cfg), *later]
        self.final_norm = layers.RMSNorm(cfg.norm_epsilon, cfg.dtype)
        self.logits_dense = layers.Output(cfg.vocab_size)

    def fuse(self, features: tuple[Array, ...]) -> Array:
        """See ``DraftHead.fuse``."""
        if self.config.fusion_norm == "each":
            pairs = zip(self.fusion_norm, features, strict=True)
            features = tuple(norm(x) for norm, x in pairs)
        x = jnp.concatenate([x.astype(self.config.dtype) for x in features], -1)
        return self.fusion(self.fusion_norm[0](x) if self.config.fusion_norm == "all" else x)

    def prefill(self, embedded: Array, states: Array, length: Array) -> tuple[Array, caches.Layers]:
        """Runs the prompts' entries; see ``DraftHead.prefill``.

        Args:
          embedded: ``[B, 1, P, D']``, the embeddings of the entries' tokens.
          states: ``[B, 1, P, D']``.
          length: int32 ``[B]``.

        Returns:
          The states of the tokens, and each layer's keys and values.
        """
        size = embedded.shape[2]
        position = jnp.arange(size, dtype=jnp.int32)[None, None]
        held = view.prompt_layer_cache(length, size)
        return self.run_layers(embedded, states, position, lambda index: held)

    def extend(
        self,
        cache: caches.Cache,
        embedded: Array,
        states: Array,
        start: Array,
        visible: Array | None = None,
    ) -> tuple[Array, caches.Cache]:
        """Runs new entries; see ``DraftHead.extend`` and ``prefill``."""
        seen, cache = view.view_of(cache, embedded.shape[2], start, visible, None)

        def cache_of(index: int) -> view.LayerCache:
            prompt: Any = cache.prompt[index]
            slots: Any = cache.slots[index]
            return view.slot_layer_cache(prompt, slots, seen, start)

        states, slots = self.run_layers(embedded, states, seen.position, cache_of)
        return states, cache._replace(slots=slots)

    def run_layers(
        self,
        embedded: Array,
        states: Array,
        position: Array,
        cache_of: Callable[[int], view.LayerCache],
    ) -> tuple[Array, caches.Layers]:
        """Runs all layers; as ``DecoderNetwork.run_layers``, with the states before the tokens."""
        cfg = self.config
        x = jnp.concatenate([embedded, states.astype(embedded.dtype)], -1)
        angles = cfg.angles(position)
        stored = []
        for index, layer in enumerate(self.layers):
            x, new = layer(x, cache_of(index), angles)
            stored.append(new)
        return self.after_layers(x), tuple(stored)

    def after_layers(self, x: Array) -> Array:
        """The states that are continued, of the outputs of the last layer."""
        return self.final_norm(x) if self.config.output_norm else x

    def project(self, states: Array) -> Array:
        """See ``DraftHead.project``."""
        return self.logits_dense(states if self.config.output_norm else self.final_norm(states))

    def __call__(self, features: tuple[Array, ...], embedded: Array, length: Array) -> Array:
        """The logits ``[B, 1, P, V']`` after each entry of a prompt."""
        return self.project(self.prefill(embedded, self.fuse(features), length)[0])


@pytree
@dataclasses.dataclass(frozen=True)
class EagleHead(FeatureHead):
    """The head of EAGLE-3 with its parameters, a ``strategies.speculative.DraftHead``.

    Attributes:
      params: the parameters of ``EagleNetwork``, of any float dtype.
      config: an ``EagleConfig``.
      embedding: ``[V, D']``, the embeddings of the target's tokens. They may be the array of the
        target's own parameters, which is then held once.

    Example:
      >>> import jax
      >>> from decoding_jax.strategies.speculative import Eagle
      >>> config = EagleConfig(
      ...     vocab_size=5, emb_dim=4, num_heads=2, num_kv_heads=1, head_dim=2, mlp_dim=8,
      ...     num_layers=1, max_positions=32, feature_layers=(1, 2, 4), feature_dim=4)
      >>> head = EagleHead.init(config, jax.random.key(0), embedding=jnp.ones((9, 4)))
      >>> Eagle(head, vocab_size=9, token_ids=[0, 2, 3, 5, 8]).feature_layers
      (1, 2, 4)
    """

    network: ClassVar[type[EagleNetwork]] = EagleNetwork

    @classmethod
    def init(cls, config: EagleConfig, key: Array, embedding: Any = None) -> Self:
        """A head with random parameters (float32)."""
        x = jnp.ones((1, 1, 1, config.feature_dim), config.dtype)
        embedded = jnp.ones((1, 1, 1, config.emb_dim), config.dtype)
        given = (x,) * len(config.feature_layers), embedded, jnp.ones(1, jnp.int32)
        return cls(cls.network(config).init(key, *given)["params"], config, embedding)

    @property
    def partition_rules(self) -> Mapping[str, PartitionSpec]:
        """See ``sharding.SupportsPartitionRules``."""
        return {
            "*fusion/kernel": PartitionSpec(),
            "*fusion_norm_*": PartitionSpec(),
            **layers.PARTITION_RULES,
        }

    @property
    def sharded_sizes(self) -> dict[str, int]:
        """See ``sharding.SupportsPartitionRules``."""
        sizes = super().sharded_sizes
        return sizes if self.embedding is None else {**sizes, "embeddings": self.embedding.shape[0]}

    def prefill(
        self, tokens: Array, states: Array, length: Array, *, lanes: int, slots: int
    ) -> caches.Cache:
        """See ``DraftHead.prefill``."""
        return self.run_prompts(tokens, states, length, lanes=lanes, slots=slots)[1]

    def run_prompts(
        self, tokens: Array, states: Array, length: Array, *, lanes: int, slots: int
    ) -> tuple[Array, caches.Cache]:
        """As ``prefill``, and the states of the tokens; see ``PredictionBlock.run_prompts``."""
        embedded = self.embed(tokens[:, None])
        states, prompt = self.apply(self.network.prefill, embedded, states, length)
        return states, caches.empty_slots(prompt, length, lanes=lanes, slots=slots)

    def extend(
        self,
        cache: caches.Cache,
        tokens: Array,
        states: Array,
        start: Array,
        visible: Array | None = None,
    ) -> tuple[Array, caches.Cache]:
        """See ``DraftHead.extend``."""
        return self.apply(self.network.extend, cache, self.embed(tokens), states, start, visible)

    def project(self, states: Array) -> Array:
        """See ``DraftHead.project``."""
        return self.apply(EagleNetwork.project, states)

    def embed(self, tokens: Array) -> Array:
        """The embeddings ``[..., D']`` of tokens ``[...]``."""
        return layers.embed(self.embedding, tokens, self.config.dtype)
