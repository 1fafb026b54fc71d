"""A T5 decoder without an encoder, with the parameter names of T5X's ``examples/decoder_only``."""

from __future__ import annotations

import dataclasses
import math
from typing import ClassVar

import jax.numpy as jnp
from flax import linen as nn

from decoding_jax.base import Array
from decoding_jax.models.attention import Biases, Past, attend, prompt_past, slot_pasts, view_of
from decoding_jax.models.cache import Cache, KeyValue
from decoding_jax.models.decoder import DecoderModel, DecoderNetwork
from decoding_jax.models.layers import (
    Dense,
    RMSNorm,
    embed,
    key_value,
    merge_heads,
    split_heads,
    vocabulary_logits,
)
from decoding_jax.models.relative import RelativePositionBiases
from decoding_jax.models.t5_network import Mlp
from decoding_jax.pytrees import pytree


@dataclasses.dataclass(frozen=True)
class T5DecoderConfig:
    """The shape of the network, in T5X's words.

    Attributes:
      vocab_size: rows of the embedding table, unused ones included.
      mlp_activations: one name (ungated) or two (gated), of ``relu, gelu, silu, linear``.
      logits_via_embedding: whether the output is tied to the embedding.
      bidirectional_prompt: whether the tokens of a prompt see each other whatever their order (a
        prefix language model, T5X's ``inputs_bidirectional_attention``).
      num_buckets: of the relative positions.
      max_distance: from which all relative positions share a bucket.
      dtype: of activations and of the cache, ``float32`` or ``bfloat16``.
    """

    vocab_size: int
    emb_dim: int
    num_heads: int
    head_dim: int
    mlp_dim: int
    num_layers: int
    mlp_activations: tuple[str, ...] = ("relu",)
    logits_via_embedding: bool = False
    bidirectional_prompt: bool = False
    dropout_rate: float = 0.0
    num_buckets: int = 32
    max_distance: int = 128
    layer_norm_epsilon: float = 1e-6
    dtype: str = "float32"


class T5DecoderAttention(nn.Module):
    config: T5DecoderConfig

    @nn.compact
    def __call__(self, x: Array, past: Past) -> tuple[Array, KeyValue]:
        cfg = self.config
        width = cfg.num_heads * cfg.head_dim
        # The logits are not scaled by 1 / sqrt(head_dim): the query's initialisation is.
        query = Dense(width, cfg.dtype, init_scale=1 / cfg.head_dim, name="query")(x)
        key, value = (Dense(width, cfg.dtype, name=name)(x) for name in ("key", "value"))
        parts, stored = past(key_value(key, value, cfg.num_heads))
        y = merge_heads(attend(split_heads(query, cfg.num_heads), parts, 1.0))
        return Dense(cfg.emb_dim, cfg.dtype, name="out")(y), stored


class T5DecoderLayer(nn.Module):
    config: T5DecoderConfig

    def setup(self) -> None:
        cfg = self.config
        self.pre_self_attention_layer_norm = RMSNorm(cfg.layer_norm_epsilon, cfg.dtype)
        self.self_attention = T5DecoderAttention(cfg)
        self.pre_mlp_layer_norm = RMSNorm(cfg.layer_norm_epsilon, cfg.dtype)
        self.mlp = Mlp(cfg, training=False)

    def __call__(self, x: Array, past: Past) -> tuple[Array, KeyValue]:
        y, stored = self.self_attention(self.pre_self_attention_layer_norm(x), past)
        x += y
        return x + self.mlp(self.pre_mlp_layer_norm(x)), stored


class T5DecoderNetwork(DecoderNetwork):
    """The network; its methods are the steps that ``T5Decoder`` makes the verbs of."""

    config: T5DecoderConfig

    def setup(self) -> None:
        super().setup()
        cfg = self.config
        init = nn.initializers.normal(1.0)
        self.token_embedder = nn.Embed(cfg.vocab_size, cfg.emb_dim, embedding_init=init)
        self.relpos_bias = RelativePositionBiases(
            cfg.num_heads, cfg.num_buckets, cfg.max_distance, bidirectional=False
        )
        self.layers = [T5DecoderLayer(cfg) for _ in range(cfg.num_layers)]
        self.decoder_norm = RMSNorm(cfg.layer_norm_epsilon, cfg.dtype)

    def _through(self, tokens: Array, pasts: list[Past]) -> tuple[Array, tuple[KeyValue, ...]]:
        x = embed(self.token_embedder.embedding, tokens, self.config.dtype)
        stored = []
        for layer, past in zip(self.layers, pasts, strict=True):
            x, new = layer(x, past)
            stored.append(new)
        return self.decoder_norm(x), tuple(stored)

    def prefill(self, tokens: Array, length: Array) -> tuple[Array, tuple[KeyValue, ...]]:
        """Runs whole prompts: hidden ``[B, 1, P, D]``, and keys and values ``[B, H, P, d]``."""
        cfg, index = self.config, jnp.arange(tokens.shape[1], dtype=jnp.int32)
        bias = self.relpos_bias((index[:, None] - index[None, :])[None, None])
        past = prompt_past(length, len(index), bias, causal=not cfg.bidirectional_prompt)
        return self._through(tokens[:, None], [past] * cfg.num_layers)

    def extend(
        self,
        cache: Cache,
        tokens: Array,
        start: Array | int,
        visible: Array | None = None,
        position: Array | None = None,
    ) -> tuple[Array, Cache]:
        """Feeds a block ``[B, W, T]``: hidden ``[B, W, T, D]`` and the cache with it."""
        view, cache = view_of(cache, tokens.shape[-1], start, visible, position)
        relpos, here = self.relpos_bias, jnp.zeros((1, 1, 1, 1), jnp.int32)
        bias = Biases(relpos(view.prompt_distance), relpos(view.slot_distance), relpos(here))
        pasts = slot_pasts(cache, view, start, [bias] * self.config.num_layers)
        hidden, slots = self._through(tokens, pasts)
        return hidden, cache._replace(slots=slots)

    def project(self, hidden: Array) -> Array:
        """Hidden states ``[..., D]`` to float32 logits ``[..., V]``."""
        cfg = self.config
        if not cfg.logits_via_embedding:
            return self.logits_dense(hidden)
        x = hidden.astype(jnp.float32) / math.sqrt(cfg.emb_dim)
        return vocabulary_logits(x, self.token_embedder.embedding.T)


@pytree
@dataclasses.dataclass(frozen=True)
class T5Decoder(DecoderModel):
    """A T5 decoder with its parameters: a ``LanguageModel``, ``keep`` and ``select``.

    Attributes:
      params: the tree under ``params/decoder`` of a T5X checkpoint, any float dtype.
      config: a ``T5DecoderConfig``.
    """

    network: ClassVar[type[DecoderNetwork]] = T5DecoderNetwork

    @property
    def max_positions(self) -> None:  # type: ignore[override]
        """Relative positions have no end."""
        return None
