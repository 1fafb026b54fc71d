"""A T5 decoder without an encoder, with the parameter names of T5X's ``examples/decoder_only``."""

from __future__ import annotations

import dataclasses
import math
from typing import ClassVar

import jax.numpy as jnp
from flax import linen as nn

from decoding_jax.base import Array
from decoding_jax.models.attention import attend
from decoding_jax.models.cache import KeyValue
from decoding_jax.models.decoder import DecoderModel, check_prefill_chunk
from decoding_jax.models.decoder_network import DecoderNetwork
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
from decoding_jax.models.scores import Bias
from decoding_jax.models.stack import make_layers
from decoding_jax.models.t5_layers import PARTITION_RULES, Mlp
from decoding_jax.models.view import Biases, LayerCache, View
from decoding_jax.pytrees import pytree


@dataclasses.dataclass(frozen=True)
class T5DecoderConfig:
    """The shape of a T5 decoder, with the names of T5X.

    Attributes:
      vocab_size: the number of rows of the embedding table, unused rows included.
      mlp_activations: one name (ungated) or two (gated), of ``relu, gelu, silu, linear``.
      logits_via_embedding: whether the output is tied to the embedding.
      bidirectional_prompt: whether every token of a prompt sees all tokens of the prompt. The model
        is then a prefix language model (T5X's ``inputs_bidirectional_attention``).
      num_buckets: the number of buckets of relative positions.
      max_distance: the distance from which all relative positions share a bucket.
      dtype: the dtype of activations and of the cache, ``float32`` or ``bfloat16``.
      prefill_chunk: the number of prompt tokens that run at a time, or None for whole prompts. In
        chunks, the memory that is held besides the cache does not grow with the prompt.
      scan_layers: whether one layer is compiled and scanned, with parameters stacked over layers. A
        deep network then compiles as fast as a shallow one.

    Raises:
      ValueError: if ``prefill_chunk`` is not positive, or is given with ``bidirectional_prompt``.
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
    prefill_chunk: int | None = None
    scan_layers: bool = False

    def __post_init__(self) -> None:
        check_prefill_chunk(self.prefill_chunk, causal=not self.bidirectional_prompt)


class T5DecoderAttention(nn.Module):
    config: T5DecoderConfig

    @nn.compact
    def __call__(self, x: Array, layer_cache: LayerCache) -> tuple[Array, KeyValue]:
        cfg = self.config
        width = cfg.num_heads * cfg.head_dim
        # The initialisation of the query is scaled instead of the attention logits.
        query = Dense(width, cfg.dtype, init_scale=1 / cfg.head_dim, name="query")(x)
        key, value = (Dense(width, cfg.dtype, name=name)(x) for name in ("key", "value"))
        parts, stored = layer_cache(key_value(key, value, cfg.num_heads))
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

    def __call__(self, x: Array, layer_cache: LayerCache, _: None) -> tuple[Array, KeyValue]:
        y, stored = self.self_attention(self.pre_self_attention_layer_norm(x), layer_cache)
        x += y
        return x + self.mlp(self.pre_mlp_layer_norm(x)), stored


class T5DecoderNetwork(DecoderNetwork):
    """The network of ``T5Decoder``."""

    config: T5DecoderConfig

    def setup(self) -> None:
        super().setup()
        cfg = self.config
        init = nn.initializers.normal(1.0)
        self.token_embedder = nn.Embed(cfg.vocab_size, cfg.emb_dim, embedding_init=init)
        self.relpos_bias = RelativePositionBiases(
            cfg.num_heads, cfg.num_buckets, cfg.max_distance, bidirectional=False
        )
        self.layers = make_layers(
            lambda: T5DecoderLayer(cfg), cfg.num_layers, scanned=cfg.scan_layers
        )
        self.decoder_norm = RMSNorm(cfg.layer_norm_epsilon, cfg.dtype)

    def final_norm(self, x: Array) -> Array:
        return self.decoder_norm(x)

    def inputs(self, tokens: Array, position: Array) -> tuple[Array, None]:
        """See ``DecoderNetwork.inputs``."""
        return embed(self.token_embedder.embedding, tokens, self.config.dtype), None

    def prompt_bias(self, position: Array, size: int) -> Bias:
        return self.relpos_bias.of_keys(position, size)

    def ahead(self, index: int | Array) -> int | None:
        """See ``DecoderNetwork.ahead``."""
        return None if self.config.bidirectional_prompt else 0

    def biases(self, view: View) -> Biases:
        """See ``DecoderNetwork.biases``."""
        zero = jnp.zeros((1, 1, 1, 1), jnp.int32)
        prompt = self.prompt_bias(view.position, view.prompt_mask.shape[-1])
        return Biases(prompt, self.relpos_bias(view.slot_distance), self.relpos_bias(zero))

    def project(self, hidden: Array) -> Array:
        """See ``DecoderNetwork.project``."""
        cfg = self.config
        if not cfg.logits_via_embedding:
            return self.logits_dense(hidden)
        x = hidden.astype(jnp.float32) / math.sqrt(cfg.emb_dim)
        return vocabulary_logits(x, self.token_embedder.embedding.T)


@pytree
@dataclasses.dataclass(frozen=True)
class T5Decoder(DecoderModel):
    """A T5 decoder with its parameters, a ``LanguageModel`` with ``keep`` and ``select``.

    Attributes:
      params: the tree under ``params/decoder`` of a T5X checkpoint, of any float dtype.
      config: a ``T5DecoderConfig``.
    """

    network: ClassVar[type[DecoderNetwork]] = T5DecoderNetwork
    partition_rules = PARTITION_RULES

    @property
    def max_positions(self) -> None:  # type: ignore[override]
        """None, because relative positions do not limit the length."""
        return None
