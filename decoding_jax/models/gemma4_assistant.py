"""The assistant of Gemma 4: layers with queries alone, which read the keys of their target.

Google DeepMind 2026, "Gemma 4 Multi-Token Prediction" (ai.google.dev/gemma/docs/mtp/mtp;
huggingface.co/docs/transformers/model_doc/gemma4_assistant). The target's embedding of a token and
its last hidden state before it are projected to one state of the assistant. Its layers attend to
the keys and values of the target's last layer of their kind, all from the position after them, and
the result is projected to the next state of the target and to logits.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar, Self

import jax.numpy as jnp
from flax import linen as nn
from jax.sharding import PartitionSpec

from decoding_jax import fields
from decoding_jax.base import Array
from decoding_jax.models import caches, gemma4, layers
from decoding_jax.models.feature_head import FeatureHead
from decoding_jax.models.shared_keys import LayerKeys, SharedKeys
from decoding_jax.ops.top_k import top_k
from decoding_jax.pytrees import pytree


@dataclasses.dataclass(frozen=True)
class Gemma4AssistantConfig(gemma4.Gemma4Config):
    """The shape of an assistant, with layers that make no keys; see ``Gemma4Config`` too.

    Attributes:
      feature_layers: a tuple of one number, that of the target's layers: its last hidden state,
        after the final norm.
      feature_dim: D, the width of the target's hidden states.
      num_centroids: the number of groups of tokens, or 0 where all tokens have logits.
      active_centroids: the number of groups whose tokens have logits.

    Raises:
      ValueError: as ``Gemma4Config``, or for groups of unequal sizes, or more than there are.
    """

    feature_layers: tuple[int, ...] = dataclasses.field(kw_only=True)
    feature_dim: int = dataclasses.field(kw_only=True)
    num_centroids: int = dataclasses.field(default=0, kw_only=True)
    active_centroids: int = dataclasses.field(default=0, kw_only=True)

    # The key-value heads are the target's.
    sharded: ClassVar[tuple[str, ...]] = ("num_heads", "mlp_dim", "vocab_size")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.num_centroids and self.vocab_size % self.num_centroids:
            expected = f"a divisor of vocab_size = {self.vocab_size}"
            raise fields.error("num_centroids", expected, self.num_centroids)
        if self.num_centroids and not 1 <= self.active_centroids <= self.num_centroids:
            expected = f"1 to num_centroids = {self.num_centroids}"
            raise fields.error("active_centroids", expected, self.active_centroids)

    @property
    def num_own(self) -> int:
        """The number of layers that make keys and values, which is 0."""
        return 0


class Gemma4AssistantNetwork(nn.Module):
    """The network of ``Gemma4Assistant``."""

    config: Gemma4AssistantConfig

    def setup(self) -> None:
        cfg = self.config
        self.token_embedder = layers.embedder(cfg.vocab_size, cfg.emb_dim)
        self.pre_projection = layers.Dense(cfg.emb_dim, cfg.dtype)
        self.layers = [gemma4.Gemma4Layer(cfg, i) for i in range(cfg.num_layers)]
        self.final_norm = layers.RMSNorm(cfg.norm_epsilon, cfg.dtype)
        self.post_projection = layers.Dense(cfg.feature_dim, cfg.dtype)
        if cfg.num_centroids:
            self.centroids = layers.Output(cfg.num_centroids)

    def __call__(
        self, embedded: Array, states: Array, keys: SharedKeys, ordering: Array | None
    ) -> tuple[Array, Array]:
        """The logits after tokens, and their states; see ``AssistantHead.draft``.

        Args:
          embedded: ``[B, W, T, D]``, the target's embeddings of the tokens.
          states: ``[B, W, T, D]``.
          keys: the target's.
          ordering: as of ``Gemma4Assistant``.
        """
        cfg = self.config
        x = self.pre_projection(jnp.concatenate([embedded, states.astype(embedded.dtype)], -1))
        for_global, for_local = cfg.angles(keys.position[..., None])
        for index, layer in enumerate(self.layers):
            local = cfg.is_local(index)
            parts = keys.of_kind(local, cfg.window)
            angles = for_local if local else for_global
            x, _ = layer(x, lambda new, parts=parts: (parts, None), (angles, None))
        x = self.final_norm(x)
        return self.logits(x, ordering), self.post_projection(x)

    def logits(self, x: Array, ordering: Array | None) -> Array:
        """The logits ``[..., V]`` of ``x [..., D']``; -inf for groups that are left out."""
        cfg, table = self.config, self.token_embedder.embedding
        if ordering is None:
            return layers.vocabulary_logits(x, table.T)
        near = self.centroids(x)
        near = jnp.where(jnp.isnan(near), -jnp.inf, near)
        chosen = top_k(near, cfg.active_centroids)[1]
        ids = jnp.take(ordering, chosen, axis=0).reshape(*x.shape[:-1], -1)
        rows = layers.embed(table, ids, cfg.dtype)
        found = (rows.astype(jnp.float32) * x.astype(jnp.float32)[..., None, :]).sum(-1)
        out = jnp.full((*x.shape[:-1], cfg.vocab_size), -jnp.inf, jnp.float32)
        return jnp.put_along_axis(out, ids, found, axis=-1, inplace=False)


@pytree
@dataclasses.dataclass(frozen=True)
class Gemma4Assistant(FeatureHead):
    """The assistant of Gemma 4 with its parameters, a ``strategies.speculative.AssistantHead``.

    Attributes:
      params: the parameters of ``Gemma4AssistantNetwork``, of any float dtype.
      config: a ``Gemma4AssistantConfig``.
      embedding: ``[V, D]``, the target's embeddings.
      ordering: None, or the tokens of each group of ``num_centroids``, int32 ``[C, V / C]``.

    Example:
      >>> import jax
      >>> from decoding_jax.strategies.speculative import Assistant
      >>> config = Gemma4AssistantConfig(
      ...     vocab_size=9, emb_dim=4, num_heads=2, num_kv_heads=1, head_dim=2, global_head_dim=4,
      ...     mlp_dim=8, num_layers=2, max_positions=32, window=16, window_pattern=(True, False),
      ...     feature_layers=(6,), feature_dim=8)
      >>> head = Gemma4Assistant.init(config, jax.random.key(0), embedding=jnp.ones((9, 8)))
      >>> Assistant(head).feature_layers
      (6,)
    """

    ordering: Any = None

    network: ClassVar[type[Gemma4AssistantNetwork]] = Gemma4AssistantNetwork
    partition_rules: ClassVar[Mapping[str, PartitionSpec]] = {
        "*_projection/kernel": PartitionSpec(),
        "*centroids/kernel": PartitionSpec(),
        "ordering": PartitionSpec(),
        **gemma4.Gemma4.partition_rules,
    }

    @classmethod
    def init(cls, config: Gemma4AssistantConfig, key: Array, embedding: Any = None) -> Self:
        """An assistant with random parameters (float32)."""
        x = jnp.ones((1, 1, 1, config.feature_dim), config.dtype)

        def one(heads: int, size: int) -> LayerKeys:
            keys = jnp.ones((1, heads, 1, size), config.dtype)
            slots = caches.KeyValue(keys[:, None], keys[:, None])
            return LayerKeys(caches.KeyValue(keys, keys), slots)

        local_keys = one(config.num_kv_heads, config.head_dim)
        global_keys = one(config.global_kv_heads, config.global_head_dim)
        length, seen = jnp.ones(1, jnp.int32), jnp.zeros((1, 1), jnp.int32)
        keys = SharedKeys(local_keys, global_keys, length, seen)
        size = config.num_centroids
        order = jnp.arange(config.vocab_size).reshape(size, -1) if size else None
        params = cls.network(config).init(key, x, x, keys, order)["params"]
        return cls(params, config, embedding, order)

    def for_model_axis(self, size: int) -> Self:
        """See ``Llama.for_model_axis``. The keys are the target's, so nothing is repeated."""
        return self

    def fuse(self, features: tuple[Array, ...]) -> Array:
        """See ``AssistantHead.fuse``."""
        return features[0].astype(self.config.dtype)

    def draft(self, tokens: Array, states: Array, keys: SharedKeys) -> tuple[Array, Array]:
        """See ``AssistantHead.draft``."""
        cfg = self.config
        embedded = gemma4.embedded(self.embedding, tokens, cfg.feature_dim, cfg.dtype)
        return self.apply("__call__", embedded, states, keys, self.ordering)
