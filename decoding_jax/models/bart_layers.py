"""The shape and the layers of BART and its relatives."""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jax.sharding import PartitionSpec

from decoding_jax.base import Array
from decoding_jax.models.attention import attend
from decoding_jax.models.cache import KeyValue, prompt_part
from decoding_jax.models.gpt2 import layer_norm
from decoding_jax.models.layers import (
    ACTIVATIONS,
    Dense,
    LayerNorm,
    key_value,
    merge_heads,
    split_heads,
)
from decoding_jax.models.scores import Part
from decoding_jax.models.view import LayerCache
from decoding_jax.ops.mesh import DATA, MODEL

POSITIONS = ("learned", "sinusoidal", "sinusoidal_inclusive")


@dataclasses.dataclass(frozen=True)
class BartConfig:
    """The shape of a BART network, or of one of its relatives.

    Attributes:
      vocab_size: the number of rows of the embedding table, unused rows included.
      emb_dim: the width of the network, a multiple of both numbers of heads.
      start_id: the first token of the decoder's prompt.
      max_positions: the maximum number of positions of inputs, and of prompt and new tokens. With
        ``sinusoidal_inclusive``, there is no maximum.
      positions: ``learned``, a table each of encoder and decoder; ``sinusoidal``, the sines and
        cosines of Vaswani et al. 2017, whose smallest frequency is above 1/10,000; or
        ``sinusoidal_inclusive``, those of Tensor2Tensor, whose smallest is 1/10,000.
      position_offset: the number of the first position.
      norm_first: whether norms come before attention and feed-forward parts, with a final norm
        after the last layer; otherwise they come after each sum.
      embedding_norm: whether the sum of embeddings and positions is normalised.
      scale_embedding: whether embeddings are multiplied by the root of ``emb_dim``.
      logits_bias: whether a bias is added to the logits.
      activation: the activation of the feed-forward part: ``gelu`` (by tanh), ``gelu_exact``,
        ``relu`` or ``silu``.
      dtype: the dtype of activations and of the cache, ``float32`` or ``bfloat16``.
      scan_layers: whether one layer is compiled and scanned, with parameters stacked over layers. A
        deep network then compiles as fast as a shallow one.

    Raises:
      ValueError: if a number of heads does not divide ``emb_dim``, for unknown positions, or for an
        odd width with sinusoidal ones.
    """

    vocab_size: int
    emb_dim: int
    num_encoder_heads: int
    num_decoder_heads: int
    encoder_mlp_dim: int
    decoder_mlp_dim: int
    num_encoder_layers: int
    num_decoder_layers: int
    start_id: int = 2
    max_positions: int = 1024
    positions: str = "learned"
    position_offset: int = 2
    norm_first: bool = False
    embedding_norm: bool = True
    scale_embedding: bool = False
    logits_bias: bool = True
    activation: str = "gelu_exact"
    layer_norm_epsilon: float = 1e-5
    dtype: str = "float32"
    scan_layers: bool = False

    def __post_init__(self) -> None:
        for name in ("num_encoder_heads", "num_decoder_heads"):
            if self.emb_dim % getattr(self, name):
                raise ValueError(
                    f"{name}: got {getattr(self, name)}; takes a divisor of emb_dim = "
                    f"{self.emb_dim}"
                )
        if self.positions not in POSITIONS:
            raise ValueError(
                f"positions: got {self.positions!r}; takes one of {', '.join(POSITIONS)}"
            )
        if self.positions != "learned" and (self.emb_dim % 2 or self.emb_dim < 4):
            raise ValueError(
                f"emb_dim: got {self.emb_dim} with {self.positions} positions; takes an even number"
                " from 4 on"
            )


def sinusoids(position: Array, size: int, *, inclusive: bool) -> Array:
    """The sines and then the cosines of positions ``[...]``, float32 ``[..., size]``.

    Args:
      position: int32 positions.
      size: the even number of features.
      inclusive: whether the frequencies, a geometric series from 1, end with 1/10,000.

    Example:
      >>> (100 * sinusoids(jnp.array([0, 1]), 4, inclusive=False)).astype(int)
      Array([[  0,   0, 100, 100],
             [ 84,   0,  54,  99]], dtype=int32)
    """
    steps = np.arange(size // 2) / (size // 2 - inclusive)
    frequency = jnp.asarray(10_000.0**-steps, jnp.float32).reshape((1,) * position.ndim + (-1,))
    angle = position[..., None].astype(jnp.float32) * frequency
    return jnp.concatenate([jnp.sin(angle), jnp.cos(angle)], -1)


class BartAttention(nn.Module):
    config: BartConfig
    num_heads: int

    def setup(self) -> None:
        size, dtype = self.config.emb_dim, self.config.dtype
        self.query, self.key, self.value, self.out = (
            Dense(size, dtype, use_bias=True) for _ in range(4)
        )

    def keys(self, x: Array) -> KeyValue:
        return key_value(self.key(x), self.value(x), self.num_heads)

    def __call__(self, x: Array, parts: list[Part]) -> Array:
        query = split_heads(self.query(x), self.num_heads)
        scale = (self.config.emb_dim // self.num_heads) ** -0.5
        return self.out(merge_heads(attend(query, parts, scale)))


class BartMlp(nn.Module):
    config: BartConfig
    mlp_dim: int

    @nn.compact
    def __call__(self, x: Array) -> Array:
        cfg = self.config
        x = ACTIVATIONS[cfg.activation](Dense(self.mlp_dim, cfg.dtype, use_bias=True, name="wi")(x))
        return Dense(cfg.emb_dim, cfg.dtype, use_bias=True, name="wo")(x)


class BartLayer(nn.Module):
    """The base of encoder and decoder layers, with the norm of each part before or after it."""

    config: BartConfig

    def before(self, norm: LayerNorm, x: Array) -> Array:
        return norm(x) if self.config.norm_first else x

    def after(self, norm: LayerNorm, x: Array) -> Array:
        return x if self.config.norm_first else norm(x)


class BartEncoderLayer(BartLayer):
    def setup(self) -> None:
        cfg = self.config
        self.attention = BartAttention(cfg, cfg.num_encoder_heads)
        self.attention_norm = layer_norm(cfg)
        self.mlp = BartMlp(cfg, cfg.encoder_mlp_dim)
        self.mlp_norm = layer_norm(cfg)

    def __call__(self, x: Array, mask: Array, position: Array) -> Array:
        y = self.before(self.attention_norm, x)
        key, value = prompt_part(self.attention.keys(y))
        x += self.attention(y, [Part(key, value, mask, position=position)])
        x = self.after(self.attention_norm, x)
        x += self.mlp(self.before(self.mlp_norm, x))
        return self.after(self.mlp_norm, x)


class BartDecoderLayer(BartLayer):
    def setup(self) -> None:
        cfg = self.config
        self.self_attention = BartAttention(cfg, cfg.num_decoder_heads)
        self.self_attention_norm = layer_norm(cfg)
        self.encoder_decoder_attention = BartAttention(cfg, cfg.num_decoder_heads)
        self.cross_attention_norm = layer_norm(cfg)
        self.mlp = BartMlp(cfg, cfg.decoder_mlp_dim)
        self.mlp_norm = layer_norm(cfg)

    def __call__(self, x: Array, layer_cache: LayerCache, source: Part) -> tuple[Array, KeyValue]:
        """Returns the layer's output and its updated cache."""
        y = self.before(self.self_attention_norm, x)
        parts, stored = layer_cache(self.self_attention.keys(y))
        x = self.after(self.self_attention_norm, x + self.self_attention(y, parts))
        y = self.before(self.cross_attention_norm, x)
        x += self.encoder_decoder_attention(y, [source])
        x = self.after(self.cross_attention_norm, x)
        x += self.mlp(self.before(self.mlp_norm, x))
        return self.after(self.mlp_norm, x), stored


PARTITION_RULES = {
    "*token_embedder/embedding": PartitionSpec(MODEL, None),
    "*position_embedder/embedding": PartitionSpec(),
    "*attention/out/kernel": PartitionSpec(MODEL, None),
    "*attention/out/bias": PartitionSpec(),
    "*attention/*/kernel": PartitionSpec(None, MODEL),
    "*attention/*/bias": PartitionSpec(MODEL),
    "*mlp/wi/kernel": PartitionSpec(None, MODEL),
    "*mlp/wi/bias": PartitionSpec(MODEL),
    "*mlp/wo/kernel": PartitionSpec(MODEL, None),
    "*mlp/wo/bias": PartitionSpec(),
    "*norm/scale": PartitionSpec(),
    "*norm/bias": PartitionSpec(),
    "*logits_bias": PartitionSpec(None, MODEL),
    "source": PartitionSpec(DATA, None),
    "source_length": PartitionSpec(DATA),
}
"""The layout of a network on a mesh: heads, features and vocabulary over ``model``, and the rows of
bound inputs over ``data``."""
