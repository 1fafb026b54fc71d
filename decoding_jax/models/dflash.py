"""The head of DFlash: a few layers that draft a block of tokens at once.

Chen et al. 2026, "DFlash: Block Diffusion for Flash Speculative Decoding" (arXiv:2602.06036).
Hidden states of some layers of the target are fused to one state for each token. Every layer makes
keys and values of these states, which are all that a block sees of the text before it. The block is
the last token and masks, which see each other; the state of a mask predicts its own token.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Self

import jax.numpy as jnp
from flax import linen as nn
from jax.sharding import PartitionSpec

from decoding_jax.base import Array
from decoding_jax.models import attention, caches, layers, positions, view
from decoding_jax.models.caches import KeyValue
from decoding_jax.models.feature_head import FeatureHead, FeatureHeadConfig
from decoding_jax.models.llama import LlamaLayer
from decoding_jax.pytrees import pytree


@dataclasses.dataclass(frozen=True)
class DFlashConfig(FeatureHeadConfig):
    """The shape of a head; see ``FeatureHeadConfig`` too.

    Attributes:
      block_size: b, the number of tokens of a block, the last token included.
      mask_token_id: the token of the masks.
    """

    block_size: int = dataclasses.field(kw_only=True)
    mask_token_id: int = dataclasses.field(kw_only=True)


class DFlashLayer(LlamaLayer):
    """A layer of a head, which makes keys and values of the target's states too."""

    def context(self, states: Array, angles: tuple[Array, Array]) -> KeyValue:
        """The keys and values ``[B, W, H, T, d]`` of the target's states ``[B, W, T, D']``."""
        new = self.attention.keys(states)
        return new._replace(key=positions.rotate(new.key, *angles[:2]))


class DFlashNetwork(nn.Module):
    """The network of ``DFlashHead``."""

    config: DFlashConfig

    def setup(self) -> None:
        cfg = self.config
        self.fusion = layers.Dense(cfg.emb_dim, cfg.dtype)
        self.state_norm = layers.RMSNorm(cfg.norm_epsilon, cfg.dtype)
        self.layers = [DFlashLayer(cfg) for _ in range(cfg.num_layers)]
        self.final_norm = layers.RMSNorm(cfg.norm_epsilon, cfg.dtype)

    def fuse(self, features: tuple[Array, ...]) -> Array:
        """See ``BlockHead.fuse``."""
        x = jnp.concatenate([x.astype(self.config.dtype) for x in features], -1)
        return self.state_norm(self.fusion(x))

    def prefill(self, states: Array) -> caches.Layers:
        """The keys and values of the prompts' states ``[B, 1, P, D']`` in each layer."""
        angles = self.config.angles(jnp.arange(states.shape[2], dtype=jnp.int32)[None, None])
        return tuple(caches.prompt_part(layer.context(states, angles)) for layer in self.layers)

    def draft(
        self, cache: caches.Cache, embedded: Array, states: Array, start: Array, length: Array
    ) -> tuple[Array, caches.Cache]:
        """Runs a block of the embeddings ``[B, W, b, D']``; see ``BlockHead.draft``.

        Returns:
          The states ``[B, W, b, D']`` after the final norm, and the cache.
        """

        def angles_from(first: Array, count: int) -> tuple[Array, Array]:
            place = jnp.arange(count, dtype=jnp.int32)[None, None]
            return self.config.angles(cache.length[:, None, None] + first[..., None] + place)

        size = embedded.shape[2]
        of_states, of_block = angles_from(start, states.shape[2]), angles_from(length - 1, size)
        prompt_mask = view.real_tokens(cache.length, caches.num_keys(cache.prompt))
        slot = jnp.arange(cache.num_slots, dtype=jnp.int32)[None, None, None]
        seen, used = slot < (length - 1)[..., None, None], jnp.max(length) - 1
        whole = jnp.ones((1, 1, size, size), bool)
        x, written = embedded, []
        for index, layer in enumerate(self.layers):
            new, slots = layer.context(states, of_states), cache.slots[index]
            stored = KeyValue(*map(caches.write, slots, new, (start, start)))
            prompt: Any = cache.prompt[index]
            held = [
                attention.Part(prompt.key, prompt.value, prompt_mask),
                attention.Part(stored.key, stored.value, seen, used=used),
            ]

            def block_cache(
                new: KeyValue, held: Any = held, stored: KeyValue = stored
            ) -> tuple[list[attention.Part], KeyValue]:
                return [*held, attention.Part(new.key, new.value, whole)], stored

            x, stored = layer(x, block_cache, of_block)
            written.append(stored)
        return self.final_norm(x), cache._replace(slots=tuple(written))

    def __call__(self, features: tuple[Array, ...], embedded: Array) -> Array:
        """The states of a block after states of ``features``, which makes all parameters."""
        states = self.fuse(features)
        length = jnp.full(states.shape[0], states.shape[2], jnp.int32)
        cache = caches.empty_slots(self.prefill(states), length, lanes=1, slots=1)
        one = jnp.ones((states.shape[0], 1), jnp.int32)
        return self.draft(cache, embedded, states, one, one)[0]


@pytree
@dataclasses.dataclass(frozen=True)
class DFlashHead(FeatureHead):
    """The head of DFlash with its parameters, a ``strategies.speculative.BlockHead``.

    Example:
      >>> import jax
      >>> config = DFlashConfig(
      ...     vocab_size=9, emb_dim=4, num_heads=2, num_kv_heads=1, head_dim=2, mlp_dim=8,
      ...     num_layers=1, max_positions=32, feature_layers=(1, 3), feature_dim=4, block_size=5,
      ...     mask_token_id=8)
      >>> head = DFlashHead.init(config, jax.random.key(0), embedding=jnp.ones((9, 4)))
      >>> head.fuse((jnp.ones((2, 1, 3, 4)),) * 2).shape
      (2, 1, 3, 4)

    Attributes:
      params: the parameters of ``DFlashNetwork``, of any float dtype.
      config: a ``DFlashConfig``.
      embedding: ``[V, D']``, the target's embeddings.
      output: ``[D', V']``, the projection to the head's vocabulary, or None where it is tied to the
        embeddings.
    """

    output: Any = None

    network = DFlashNetwork

    @classmethod
    def init(cls, config: DFlashConfig, key: Array, embedding: Any = None) -> Self:
        """A head with random parameters (float32), with tied embeddings."""
        x = jnp.ones((1, 1, 1, config.feature_dim), config.dtype)
        block = jnp.ones((1, 1, 1, config.emb_dim), config.dtype)
        network = DFlashNetwork(config)
        params = network.init(key, (x,) * len(config.feature_layers), block)["params"]
        return cls(params, config, embedding)

    @property
    def block_size(self) -> int:
        return self.config.block_size

    @property
    def partition_rules(self) -> Mapping[str, PartitionSpec]:
        """See ``sharding.SupportsPartitionRules``."""
        own = {"*fusion/kernel": PartitionSpec(), "output": layers.PARTITION_RULES["*logits_bias"]}
        return {**own, **layers.PARTITION_RULES}

    def prefill(self, states: Array, length: Array, *, lanes: int, slots: int) -> caches.Cache:
        """See ``BlockHead.prefill``."""
        prompt = self.apply(DFlashNetwork.prefill, states)
        return caches.empty_slots(prompt, length, lanes=lanes, slots=slots)

    def draft(
        self, cache: caches.Cache, token: Array, states: Array, start: Array, length: Array
    ) -> tuple[Array, caches.Cache]:
        """See ``BlockHead.draft``."""
        masks = jnp.full((*token.shape, self.block_size - 1), self.config.mask_token_id, jnp.int32)
        tokens = jnp.concatenate([token[..., None], masks], -1)
        embedded = layers.embed(self.embedding, tokens, self.config.dtype)
        x, cache = self.apply(DFlashNetwork.draft, cache, embedded, states, start, length)
        kernel = self.embedding.T if self.output is None else self.output
        return layers.vocabulary_logits(x[:, :, 1:], kernel), cache
