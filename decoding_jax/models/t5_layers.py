"""The layers of the T5 encoder and decoder."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from flax import linen as nn
from jax.sharding import PartitionSpec

from decoding_jax.base import Array
from decoding_jax.models.attention import attend
from decoding_jax.models.cache import KeyValue, prompt_part
from decoding_jax.models.layers import (
    ACTIVATIONS,
    Dense,
    RMSNorm,
    key_value,
    merge_heads,
    split_heads,
)
from decoding_jax.models.relative import RelativePositionBiases
from decoding_jax.models.scores import Bias, Part
from decoding_jax.models.view import LayerCache
from decoding_jax.ops.mesh import DATA, MODEL


@dataclasses.dataclass(frozen=True)
class T5Config:
    """The shape of a T5 network, with the names of T5X.

    Attributes:
      vocab_size: the number of rows of the embedding table, unused rows included.
      mlp_activations: one name (ungated) or two (gated), of ``relu, gelu, silu, linear``.
      logits_via_embedding: whether the output is tied to the embedding (T5 1.0).
      dtype: the dtype of activations and of the cache, ``float32`` or ``bfloat16``.
      start_id: the first token of the decoder's prompt.
      biases_per_layer: whether each layer has its own relative position biases (umT5, and T5X's
        ``scalable_t5``). By default, all layers of a stack share the biases of the stack.
      num_buckets: the number of buckets of relative positions.
      max_distance: the distance from which all relative positions share a bucket.
      scan_layers: whether one layer is compiled and scanned, with parameters stacked over layers. A
        deep network then compiles as fast as a shallow one.
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
    scan_layers: bool = False


PARTITION_RULES = {
    "*token_embedder/embedding": PartitionSpec(MODEL, None),
    "*rel_embedding": PartitionSpec(MODEL, None),
    "*attention/query/kernel": PartitionSpec(None, MODEL),
    "*attention/key/kernel": PartitionSpec(None, MODEL),
    "*attention/value/kernel": PartitionSpec(None, MODEL),
    "*attention/out/kernel": PartitionSpec(MODEL, None),
    "*mlp/wi*/kernel": PartitionSpec(None, MODEL),
    "*mlp/wo/kernel": PartitionSpec(MODEL, None),
    "*norm/scale": PartitionSpec(),
    "*logits_dense/kernel": PartitionSpec(None, MODEL),
    "source": PartitionSpec(DATA, None),
    "source_length": PartitionSpec(DATA),
}
"""The layout of a T5 on a mesh: heads, features and vocabulary over ``model``, and the rows of
bound inputs over ``data``."""


SHARDED_NAMES = ("num_heads", "mlp_dim", "vocab_size")
"""The sizes that the axis ``model`` of a mesh has to divide, in a ``T5Config``."""


class Attention(nn.Module):
    config: T5Config

    def setup(self) -> None:
        cfg = self.config
        width = cfg.num_heads * cfg.head_dim
        # The initialisation of the query is scaled instead of the attention logits.
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
    """The feed-forward part.

    Attributes:
      config: a ``T5Config``, or a config with the same names for this part.
      training: whether dropout is on.
    """

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


class Layer(nn.Module):
    """The base of encoder and decoder layers and of their stacks: norm, dropout and biases."""

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


class EncoderLayer(Layer):
    def setup(self) -> None:
        if self.config.biases_per_layer:
            self.relpos_bias = self.biases(bidirectional=True)
        self.pre_attention_layer_norm = self.norm()
        self.attention = Attention(self.config)
        self.pre_mlp_layer_norm = self.norm()
        self.mlp = Mlp(self.config, self.training)
        self.drop = self.dropout()

    def __call__(self, x: Array, mask: Array, position: Array, bias: Bias) -> Array:
        y = self.pre_attention_layer_norm(x)
        key, value = prompt_part(self.attention.keys(y))
        x += self.drop(self.attention(y, [Part(key, value, mask, bias, position=position)]))
        return x + self.drop(self.mlp(self.pre_mlp_layer_norm(x)))


class DecoderLayer(Layer):
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

    def __call__(self, x: Array, layer_cache: LayerCache, source: Part) -> tuple[Array, KeyValue]:
        """Returns the layer's output and its updated cache."""
        y = self.pre_self_attention_layer_norm(x)
        parts, stored = layer_cache(self.self_attention.keys(y))
        x += self.drop(self.self_attention(y, parts))
        y = self.pre_cross_attention_layer_norm(x)
        x += self.drop(self.encoder_decoder_attention(y, [source]))
        return x + self.drop(self.mlp(self.pre_mlp_layer_norm(x))), stored
