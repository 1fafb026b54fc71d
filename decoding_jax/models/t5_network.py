"""The T5 encoder-decoder network in Flax, with the parameter names of T5X.

Covers T5 1.0 (ungated, tied output), T5 1.1, Flan-T5, mT5 and ByT5 (gated, untied output). Raffel
et al. 2020, "Exploring the Limits of Transfer Learning"; Shazeer 2020, "GLU Variants Improve
Transformer"; the tree of names is that of T5X's ``examples/t5`` without layer scanning.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from flax import linen as nn

from decoding_jax.base import Array
from decoding_jax.models.attention import (
    Biases,
    Part,
    Past,
    attend,
    prompt_past,
    slot_pasts,
    view_of,
)
from decoding_jax.models.cache import Cache, KeyValue, prompt_part
from decoding_jax.models.layers import (
    ACTIVATIONS,
    Dense,
    Output,
    RMSNorm,
    embed,
    key_value,
    merge_heads,
    split_heads,
    vocabulary_logits,
)
from decoding_jax.models.relative import RelativePositionBiases


@dataclasses.dataclass(frozen=True)
class T5Config:
    """The shape of a T5 network, in T5X's words.

    Attributes:
      vocab_size: rows of the embedding table, unused ones included.
      mlp_activations: one name (ungated) or two (gated), of ``relu, gelu, silu, linear``.
      logits_via_embedding: whether the output is tied to the embedding (T5 1.0).
      dtype: of activations and of the cache, ``float32`` or ``bfloat16``.
      start_id: the token a decoder starts from.
      biases_per_layer: whether every layer has relative position biases of its own (umT5, and
        T5X's ``scalable_t5``) or all of a stack share those of the stack.
      num_buckets: of the relative positions.
      max_distance: from which all relative positions share a bucket.
    """

    vocab_size: int
    emb_dim: int
    num_heads: int
    head_dim: int
    mlp_dim: int
    num_encoder_layers: int
    num_decoder_layers: int
    mlp_activations: tuple[str, ...] = ("relu",)
    logits_via_embedding: bool = False
    dropout_rate: float = 0.0
    num_buckets: int = 32
    max_distance: int = 128
    layer_norm_epsilon: float = 1e-6
    start_id: int = 0
    dtype: str = "float32"
    biases_per_layer: bool = False


class Attention(nn.Module):
    config: T5Config

    def setup(self) -> None:
        cfg = self.config
        width = cfg.num_heads * cfg.head_dim
        # The logits are not scaled by 1 / sqrt(head_dim): the query's initialisation is.
        self.query = Dense(width, cfg.dtype, init_scale=1 / cfg.head_dim)
        self.key = Dense(width, cfg.dtype)
        self.value = Dense(width, cfg.dtype)
        self.out = Dense(cfg.emb_dim, cfg.dtype)

    def keys(self, x: Array) -> KeyValue:
        return key_value(self.key(x), self.value(x), self.config.num_heads)

    def __call__(self, x: Array, parts: list[Part]) -> Array:
        query = split_heads(self.query(x), self.config.num_heads)
        return self.out(merge_heads(attend(query, parts, 1.0)))


class Mlp(nn.Module):
    """The feed-forward part, of any config that has it in the words of ``T5Config``."""

    config: Any
    training: bool

    @nn.compact
    def __call__(self, x: Array) -> Array:
        cfg = self.config
        gates = []
        for i, name in enumerate(cfg.mlp_activations):
            label = "wi" if len(cfg.mlp_activations) == 1 else f"wi_{i}"
            gates.append(ACTIVATIONS[name](Dense(cfg.mlp_dim, cfg.dtype, name=label)(x)))
        y = math.prod(gates[1:], start=gates[0])
        y = nn.Dropout(cfg.dropout_rate, broadcast_dims=(-2,))(y, not self.training)
        return Dense(cfg.emb_dim, cfg.dtype, name="wo")(y)


class Block(nn.Module):
    """What encoder and decoder layers have in common: norms and dropout around residuals."""

    config: T5Config
    training: bool = False

    def norm(self) -> RMSNorm:
        return RMSNorm(self.config.layer_norm_epsilon, self.config.dtype)

    def dropout(self) -> nn.Dropout:
        rate = self.config.dropout_rate
        return nn.Dropout(rate, broadcast_dims=(-2,), deterministic=not self.training)

    def biases(self, *, bidirectional: bool) -> RelativePositionBiases:
        cfg = self.config
        return RelativePositionBiases(
            cfg.num_heads, cfg.num_buckets, cfg.max_distance, bidirectional=bidirectional
        )


class EncoderLayer(Block):
    def setup(self) -> None:
        if self.config.biases_per_layer:
            self.relpos_bias = self.biases(bidirectional=True)
        self.pre_attention_layer_norm = self.norm()
        self.attention = Attention(self.config)
        self.pre_mlp_layer_norm = self.norm()
        self.mlp = Mlp(self.config, self.training)
        self.drop = self.dropout()

    def __call__(self, x: Array, mask: Array, bias: Array) -> Array:
        y = self.pre_attention_layer_norm(x)
        itself = prompt_part(self.attention.keys(y))
        x += self.drop(self.attention(y, [Part(itself.key, itself.value, mask, bias)]))
        return x + self.drop(self.mlp(self.pre_mlp_layer_norm(x)))


class DecoderLayer(Block):
    def setup(self) -> None:
        if self.config.biases_per_layer:
            self.relpos_bias = self.biases(bidirectional=False)
        self.pre_self_attention_layer_norm = self.norm()
        self.self_attention = Attention(self.config)
        self.pre_cross_attention_layer_norm = self.norm()
        self.encoder_decoder_attention = Attention(self.config)
        self.pre_mlp_layer_norm = self.norm()
        self.mlp = Mlp(self.config, self.training)
        self.drop = self.dropout()

    def __call__(self, x: Array, past: Past, source: Part) -> tuple[Array, KeyValue]:
        """Returns the block's output and the keys and values that ``past`` stored of it."""
        y = self.pre_self_attention_layer_norm(x)
        parts, stored = past(self.self_attention.keys(y))
        x += self.drop(self.self_attention(y, parts))
        y = self.pre_cross_attention_layer_norm(x)
        x += self.drop(self.encoder_decoder_attention(y, [source]))
        return x + self.drop(self.mlp(self.pre_mlp_layer_norm(x))), stored


class Stack(Block):
    """Layers and their biases, which the stack or each layer owns."""

    def each_layers(self, bias: Callable[[RelativePositionBiases], Any]) -> list[Any]:
        """What ``bias`` makes of each layer's table; once where all share one."""
        if self.config.biases_per_layer:
            return [bias(layer.relpos_bias) for layer in self.layers]
        return [bias(self.relpos_bias)] * len(self.layers)


class Encoder(Stack):
    def setup(self) -> None:
        cfg = self.config
        if not cfg.biases_per_layer:
            self.relpos_bias = self.biases(bidirectional=True)
        self.layers = [EncoderLayer(cfg, self.training) for _ in range(cfg.num_encoder_layers)]
        self.encoder_norm = self.norm()
        self.drop = self.dropout()

    def __call__(self, x: Array, length: Array) -> Array:
        index = jnp.arange(x.shape[2], dtype=jnp.int32)
        distance = (index[:, None] - index[None, :])[None, None]
        mask = (index[None] < length[:, None])[:, None, None]
        x = self.drop(x)
        for layer, bias in zip(self.layers, self.each_layers(lambda b: b(distance)), strict=True):
            x = layer(x, mask, bias)
        return self.drop(self.encoder_norm(x))


class Decoder(Stack):
    def setup(self) -> None:
        cfg = self.config
        if not cfg.biases_per_layer:
            self.relpos_bias = self.biases(bidirectional=False)
        self.layers = [DecoderLayer(cfg, self.training) for _ in range(cfg.num_decoder_layers)]
        self.decoder_norm = self.norm()
        self.drop = self.dropout()
        if not cfg.logits_via_embedding:
            self.logits_dense = Output(cfg.vocab_size)

    def source(self, encoded: Array) -> tuple[KeyValue, ...]:
        return tuple(
            prompt_part(layer.encoder_decoder_attention.keys(encoded)) for layer in self.layers
        )

    def __call__(
        self, x: Array, pasts: list[Past], source: tuple[KeyValue, ...], source_length: Array
    ) -> tuple[Array, tuple[KeyValue, ...]]:
        mask = (
            jnp.arange(source[0].key.shape[-2], dtype=jnp.int32)[None] < source_length[:, None]
        )[:, None, None]
        x = self.drop(x)
        stored = []
        for layer, past, kv in zip(self.layers, pasts, source, strict=True):
            x, new = layer(x, past, Part(kv.key, kv.value, mask))
            stored.append(new)
        return self.drop(self.decoder_norm(x)), tuple(stored)


class T5Network(nn.Module):
    """The network; its methods are the steps that ``models.t5`` makes the verbs of.

    Attributes:
      config: a ``T5Config``.
      training: whether dropout is on.
    """

    config: T5Config
    training: bool = False

    def setup(self) -> None:
        cfg = self.config
        self.token_embedder = nn.Embed(
            cfg.vocab_size, cfg.emb_dim, embedding_init=nn.initializers.normal(1.0)
        )
        self.encoder = Encoder(cfg, self.training)
        self.decoder = Decoder(cfg, self.training)

    def encode(self, tokens: Array, length: Array) -> tuple[KeyValue, ...]:
        """int32 ``[B, P]`` and ``[B]`` to the cross-attention's keys and values of each layer."""
        x = embed(self.token_embedder.embedding, tokens, self.config.dtype)[:, None]
        return self.decoder.source(self.encoder(x, length))

    def prefill(
        self, tokens: Array, length: Array, source: tuple[KeyValue, ...], source_length: Array
    ) -> tuple[Array, tuple[KeyValue, ...]]:
        """Runs whole prompts: hidden ``[B, 1, P, D]``, and keys and values ``[B, H, P, d]``."""
        index = jnp.arange(tokens.shape[1], dtype=jnp.int32)
        distance = (index[:, None] - index[None, :])[None, None]
        pasts = self.decoder.each_layers(lambda b: prompt_past(length, len(index), b(distance)))
        x = embed(self.token_embedder.embedding, tokens, self.config.dtype)[:, None]
        return self.decoder(x, pasts, source, source_length)

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
        here = jnp.zeros((1, 1, 1, 1), jnp.int32)
        biases = self.decoder.each_layers(
            lambda b: Biases(b(view.prompt_distance), b(view.slot_distance), b(here))
        )
        pasts = slot_pasts(cache, view, start, biases)
        source, source_length = cache.source
        x = embed(self.token_embedder.embedding, tokens, self.config.dtype)
        hidden, slots = self.decoder(x, pasts, source, source_length)
        return hidden, cache._replace(slots=slots)

    def project(self, hidden: Array) -> Array:
        """Hidden states ``[..., D]`` to float32 logits ``[..., V]``."""
        cfg = self.config
        if not cfg.logits_via_embedding:
            return self.decoder.logits_dense(hidden)
        x = hidden.astype(jnp.float32) / math.sqrt(cfg.emb_dim)
        return vocabulary_logits(x, self.token_embedder.embedding.T)

    def __call__(self, source: Array, source_length: Array, tokens: Array, length: Array) -> Array:
        """Teacher forcing: the logits ``[B, P, V]`` after each of ``tokens [B, P]``."""
        hidden, _ = self.prefill(tokens, length, self.encode(source, source_length), source_length)
        return self.project(hidden)[:, 0]
