"""BART and the encoder-decoders of its architecture: mBART, Pegasus, Marian, M2M-100 and NLLB.

They differ in their positions, in where their norms are, and in the bias of their logits.

Lewis et al. 2020, "BART: Denoising Sequence-to-Sequence Pre-training"; Liu et al. 2020,
"Multilingual Denoising Pre-training for Neural Machine Translation"; Zhang et al. 2020, "PEGASUS";
Junczys-Dowmunt et al. 2018, "Marian: Fast Neural Machine Translation in C++"; Fan et al. 2021,
"Beyond English-Centric Multilingual Machine Translation"; NLLB Team 2022, "No Language Left
Behind".
"""

from __future__ import annotations

import dataclasses
import math
from typing import ClassVar

import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from decoding_jax.base import Array
from decoding_jax.models import (
    attention,
    caches,
    decoder,
    encoder_decoder,
    layers,
    stack,
    view,
)
from decoding_jax.models.attention_choice import attend
from decoding_jax.pytrees import pytree

POSITIONS = ("learned", "sinusoidal", "sinusoidal_inclusive")


@dataclasses.dataclass(frozen=True)
class BartConfig(decoder.NetworkConfig):
    """The shape of a BART or a relative, with the settings of ``decoder.NetworkConfig``.

    Attributes:
      vocab_size: the number of rows of the decoder's embedding table, unused rows included.
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
      source_vocab_size: the number of rows of the encoder's own embedding table, or None where it
        has the decoder's.
      logits_via_embedding: whether the decoder's embedding table gives the logits too; otherwise,
        another table does.

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
    source_vocab_size: int | None = None
    logits_via_embedding: bool = True

    sharded: ClassVar[tuple[str, ...]] = (
        *("num_encoder_heads", "num_decoder_heads", "encoder_mlp_dim", "decoder_mlp_dim"),
        *("vocab_size", "source_vocab_size"),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("num_encoder_heads", "num_decoder_heads"):
            if self.emb_dim % getattr(self, name):
                raise ValueError(
                    f"{name}: expected a divisor of emb_dim = {self.emb_dim}, got"
                    f" {getattr(self, name)}"
                )
        if self.positions not in POSITIONS:
            raise ValueError(
                f"positions: expected one of {', '.join(POSITIONS)}, got {self.positions!r}"
            )
        if self.positions != "learned" and (self.emb_dim % 2 or self.emb_dim < 4):
            raise ValueError(
                f"emb_dim: expected an even number from 4 on with {self.positions} positions, got"
                f" {self.emb_dim}"
            )

    @property
    def position_limit(self) -> int | None:
        return None if self.positions == "sinusoidal_inclusive" else self.max_positions


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


def layer_norm(config: BartConfig) -> layers.LayerNorm:
    """A norm of the network."""
    return layers.LayerNorm(config.layer_norm_epsilon, config.dtype)


class BartAttention(nn.Module):
    config: BartConfig
    num_heads: int

    def setup(self) -> None:
        size, dtype = self.config.emb_dim, self.config.dtype
        self.query, self.key, self.value, self.out = (
            layers.Dense(size, dtype, use_bias=True) for _ in range(4)
        )

    def keys(self, x: Array) -> caches.KeyValue:
        return layers.key_value(self.key(x), self.value(x), self.num_heads)

    def __call__(self, x: Array, parts: list[attention.Part]) -> Array:
        query = layers.split_heads(self.query(x), self.num_heads)
        scale = (self.config.emb_dim // self.num_heads) ** -0.5
        way = self.config.attention
        y = attend(query, parts, scale, implementation=way)
        return self.out(layers.merge_heads(y))


class BartMlp(nn.Module):
    config: BartConfig
    mlp_dim: int

    @nn.compact
    def __call__(self, x: Array) -> Array:
        cfg = self.config
        x = layers.ACTIVATIONS[cfg.activation](
            layers.Dense(self.mlp_dim, cfg.dtype, use_bias=True, name="wi")(x)
        )
        return layers.Dense(cfg.emb_dim, cfg.dtype, use_bias=True, name="wo")(x)


class BartLayer(nn.Module):
    """The base of encoder and decoder layers, with the norm of each part before or after it."""

    config: BartConfig

    def before(self, norm: layers.LayerNorm, x: Array) -> Array:
        return norm(x) if self.config.norm_first else x

    def after(self, norm: layers.LayerNorm, x: Array) -> Array:
        return x if self.config.norm_first else norm(x)


class BartEncoderLayer(BartLayer):
    def setup(self) -> None:
        cfg = self.config
        self.attention = BartAttention(cfg, cfg.num_encoder_heads)
        self.attention_norm = layer_norm(cfg)
        self.mlp = BartMlp(cfg, cfg.encoder_mlp_dim)
        self.mlp_norm = layer_norm(cfg)

    def __call__(
        self, x: Array, layer_cache: view.LayerCache, _: None
    ) -> tuple[Array, caches.KeyValue]:
        y = self.before(self.attention_norm, x)
        parts, stored = layer_cache(self.attention.keys(y))
        x = self.after(self.attention_norm, x + self.attention(y, parts))
        x += self.mlp(self.before(self.mlp_norm, x))
        return self.after(self.mlp_norm, x), stored


class BartDecoderLayer(BartLayer):
    def setup(self) -> None:
        cfg = self.config
        self.self_attention = BartAttention(cfg, cfg.num_decoder_heads)
        self.self_attention_norm = layer_norm(cfg)
        self.encoder_decoder_attention = BartAttention(cfg, cfg.num_decoder_heads)
        self.cross_attention_norm = layer_norm(cfg)
        self.mlp = BartMlp(cfg, cfg.decoder_mlp_dim)
        self.mlp_norm = layer_norm(cfg)

    def source(self, encoded: Array) -> caches.KeyValue:
        """The keys and values of the inputs."""
        return self.encoder_decoder_attention.keys(encoded)

    def __call__(
        self, x: Array, layer_cache: view.LayerCache, _: None, source: attention.Part
    ) -> tuple[Array, caches.KeyValue]:
        y = self.before(self.self_attention_norm, x)
        parts, stored = layer_cache(self.self_attention.keys(y))
        x = self.after(self.self_attention_norm, x + self.self_attention(y, parts))
        y = self.before(self.cross_attention_norm, x)
        x += self.encoder_decoder_attention(y, [source])
        x = self.after(self.cross_attention_norm, x)
        x += self.mlp(self.before(self.mlp_norm, x))
        return self.after(self.mlp_norm, x), stored


class BartStack(decoder.DecoderNetwork):
    """The base of encoder and decoder.

    Attributes:
      config: a ``BartConfig``.
      token_embedder: its embedding table, which is not a part of it.
      layer: the class of its layers.
      side: ``encoder`` or ``decoder``, as it is called in settings.
    """

    config: BartConfig
    token_embedder: nn.Embed
    layer: ClassVar[type[BartLayer]]
    side: ClassVar[str]

    def setup(self) -> None:
        cfg = self.config
        if cfg.positions == "learned":
            rows = cfg.max_positions + cfg.position_offset
            self.position_embedder = layers.embedder(rows, cfg.emb_dim)
        if cfg.embedding_norm:
            self.embedding_norm = layer_norm(cfg)
        self.final_norm = layer_norm(cfg) if cfg.norm_first else lambda x: x
        self.layers = stack.make_layers(self.layer, cfg, self.num_layers)

    @property
    def num_layers(self) -> int:
        return getattr(self.config, f"num_{self.side}_layers")

    def inputs(self, tokens: Array, position: Array) -> tuple[Array, None]:
        cfg, position = self.config, position + self.config.position_offset
        x = layers.embed(self.token_embedder.embedding, tokens, cfg.dtype)
        x = x * jnp.asarray(math.sqrt(cfg.emb_dim), x.dtype) if cfg.scale_embedding else x
        if cfg.positions == "learned":
            x += layers.embed(self.position_embedder.embedding, position, cfg.dtype)
        else:
            inclusive = cfg.positions == "sinusoidal_inclusive"
            x += sinusoids(position, cfg.emb_dim, inclusive=inclusive).astype(cfg.dtype)
        return (self.embedding_norm(x) if cfg.embedding_norm else x), None


class BartEncoder(BartStack):
    layer: ClassVar[type[BartLayer]] = BartEncoderLayer
    side: ClassVar[str] = "encoder"

    def ahead(self, index: int | Array) -> None:
        return None


class BartDecoder(BartStack):
    layer: ClassVar[type[BartLayer]] = BartDecoderLayer
    side: ClassVar[str] = "decoder"


class BartNetwork(encoder_decoder.EncoderDecoderNetwork):
    """The network of ``Bart`` and ``BoundBart``."""

    config: BartConfig

    def setup(self) -> None:
        cfg = self.config
        self.token_embedder = layers.embedder(cfg.vocab_size, cfg.emb_dim)
        source = self.token_embedder
        if cfg.source_vocab_size is not None:
            source = layers.embedder(cfg.source_vocab_size, cfg.emb_dim)
            self.source_token_embedder = source
        self.encoder = BartEncoder(cfg, source)
        self.decoder = BartDecoder(cfg, self.token_embedder)
        if not cfg.logits_via_embedding:
            self.logits_dense = layers.Output(cfg.vocab_size)
        if cfg.logits_bias:
            zeros = nn.initializers.zeros_init()
            self.logits_bias = self.param("logits_bias", zeros, (1, cfg.vocab_size), jnp.float32)

    def project(self, hidden: Array) -> Array:
        if self.config.logits_via_embedding:
            logits = layers.vocabulary_logits(hidden, self.token_embedder.embedding.T)
        else:
            logits = self.logits_dense(hidden)
        if not self.config.logits_bias:
            return logits
        bias = self.logits_bias.astype(jnp.float32)
        return logits + bias.reshape((1,) * (logits.ndim - 1) + (-1,))


@pytree
@dataclasses.dataclass(frozen=True)
class BoundBart(encoder_decoder.BoundEncoderDecoder):
    """The decoder of a ``Bart`` that is bound to inputs, a ``LanguageModel``."""

    network = BartNetwork


@pytree
@dataclasses.dataclass(frozen=True)
class Bart(encoder_decoder.EncoderDecoder):
    """A network of the architecture of BART. Bind it to inputs with ``bind`` to decode from it.

    Attributes:
      params: the parameters of ``BartNetwork``, of any float dtype.
      config: a ``BartConfig``.

    Example:
      >>> import jax
      >>> model = Bart.init(BartConfig(9, 4, 2, 2, 8, 8, 1, 1), jax.random.key(0))
      >>> model = model.bind(jnp.array([[0, 5, 7, 2]]), jnp.array([4]))
      >>> output, cache = model.prefill(*model.start_prompt(), lanes=2, slots=5)
      >>> output.logits.shape
      (1, 1, 1, 9)
    """

    bound = BoundBart
