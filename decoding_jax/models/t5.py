"""T5: the encoder-decoder, and its decoder alone, with the parameter names of T5X.

The encoder-decoder covers T5 1.0 (ungated, tied output), T5 1.1, Flan-T5, mT5 and ByT5 (gated,
untied output), umT5 (position biases in each layer), Switch Transformers (experts in some layers)
and LongT5 (an encoder whose tokens see their neighbours, and summaries of blocks). Its parameters
have the names of T5X's ``examples/t5`` without layer scanning, and those of the decoder alone of
``examples/decoder_only``.

Raffel et al. 2020, "Exploring the Limits of Transfer Learning"; Shazeer 2020, "GLU Variants Improve
Transformer"; Fedus et al. 2022, "Switch Transformers: Scaling to Trillion Parameter Models with
Simple and Efficient Sparsity"; Guo et al. 2022, "LongT5: Efficient Text-To-Text Transformer for
Long Sequences".
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any, ClassVar

import jax.numpy as jnp
from flax import linen as nn

from decoding_jax import fields
from decoding_jax.base import Array
from decoding_jax.models import (
    attention,
    caches,
    decoder,
    encoder_decoder,
    experts,
    layers,
    positions,
    stack,
    view,
)
from decoding_jax.models.attention_choice import attend
from decoding_jax.pytrees import pytree


@dataclasses.dataclass(frozen=True)
class T5Config(decoder.NetworkConfig):
    """The shape of a T5 in T5X's names, with the settings of ``decoder.NetworkConfig``.

    Attributes:
      vocab_size: the number of rows of the embedding table, unused rows included.
      mlp_activations: one name (ungated) or two (gated), of ``relu, gelu, silu, linear``.
      logits_via_embedding: whether the output is tied to the embedding (T5 1.0).
      start_id: the first token of the decoder's prompt.
      biases_per_layer: whether each layer has its own relative position biases (umT5, and T5X's
        ``scalable_t5``). By default, all layers of a stack share the biases of the stack.
      num_buckets: the number of buckets of relative positions.
      max_distance: the distance from which all relative positions share a bucket.
      num_experts: None, or the number of experts of a layer that has them (Switch Transformers).
        Each token runs through its best one, times its probability. No token is dropped, whatever
        the capacity of experts was in training, so a row does not depend on its batch.
      router_bias: whether routers to experts have biases.
      encoder_sparse_step: the distance of layers with experts in the encoder, the second being the
        first of them; 1 if all layers have experts, and 0 if none has.
      decoder_sparse_step: the same of the decoder.
      local_radius: None, or how many inputs on each side of its own a token of the encoder sees
        (LongT5).
      global_block_size: None, or the number of inputs of a block. All tokens of the encoder see the
        normalised sum of each block too. A row's last inputs, where they fill no block, belong to
        the last block, and a row without a whole block has no sum.

    Raises:
      ValueError: for steps without experts, for experts with gates, for ``scan_layers`` where some
        layers have experts and others have none, or for blocks without ``local_radius``.
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
    biases_per_layer: bool = False
    num_experts: int | None = fields.count(default=None)
    router_bias: bool = False
    encoder_sparse_step: int = fields.count(0, default=0)
    decoder_sparse_step: int = fields.count(0, default=0)
    local_radius: int | None = fields.count(0, default=None)
    global_block_size: int | None = fields.count(default=None)

    sharded: ClassVar[tuple[str, ...]] = ("num_heads", "mlp_dim", "vocab_size", "num_experts")
    experts_per_token: ClassVar[int] = 1
    normalised_experts: ClassVar[bool] = False
    expert_bias: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        fields.check(self)
        for name in ("encoder_sparse_step", "decoder_sparse_step"):
            step = getattr(self, name)
            if step and self.num_experts is None:
                raise fields.error(name, "0 without num_experts", step)
            if step > 1 and self.scan_layers:
                expected = f"False where not all layers have experts ({name} = {step})"
                raise fields.error("scan_layers", expected, True)
        if self.num_experts is not None and len(self.mlp_activations) > 1:
            expected = "one name with num_experts"
            raise fields.error("mlp_activations", expected, self.mlp_activations)
        if self.global_block_size is not None and self.local_radius is None:
            expected = "None without local_radius"
            raise fields.error("global_block_size", expected, self.global_block_size)

    @property
    def activation(self) -> str:
        """The activation of experts."""
        return self.mlp_activations[0]


class Attention(nn.Module):
    config: Any

    def setup(self) -> None:
        cfg = self.config
        width = cfg.num_heads * cfg.head_dim
        # The initialisation of the query is scaled instead of the attention logits.
        self.query = layers.Dense(width, cfg.dtype, init_scale=1 / cfg.head_dim)
        self.key = layers.Dense(width, cfg.dtype)
        self.value = layers.Dense(width, cfg.dtype)
        self.out = layers.Dense(cfg.emb_dim, cfg.dtype)

    def keys(self, x: Array) -> caches.KeyValue:
        return layers.key_value(self.key(x), self.value(x), self.config.num_heads)

    def __call__(self, x: Array, parts: list[attention.Part]) -> Array:
        query = layers.split_heads(self.query(x), self.config.num_heads)
        way = self.config.attention
        return self.out(layers.merge_heads(attend(query, parts, 1.0, implementation=way)))


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
            gates.append(
                layers.ACTIVATIONS[name](layers.Dense(cfg.mlp_dim, cfg.dtype, name=label)(x))
            )
        y = math.prod(gates[1:], start=gates[0])
        y = nn.Dropout(cfg.dropout_rate, broadcast_dims=(-2,))(y, not self.training)
        return layers.Dense(cfg.emb_dim, cfg.dtype, name="wo")(y)


def norm(config: Any) -> layers.RMSNorm:
    return layers.RMSNorm(config.layer_norm_epsilon, config.dtype)


def dropout(config: Any, training: bool) -> nn.Dropout:
    return nn.Dropout(config.dropout_rate, broadcast_dims=(-2,), deterministic=not training)


def embedder(config: Any) -> nn.Embed:
    init = nn.initializers.normal(1.0)
    return nn.Embed(config.vocab_size, config.emb_dim, embedding_init=init)


def position_biases(config: Any, bidirectional: bool) -> positions.RelativePositionBiases:
    return positions.RelativePositionBiases(
        config.num_heads, config.num_buckets, config.max_distance, bidirectional=bidirectional
    )


class Layer(nn.Module):
    """The base of encoder and decoder layers: norms, dropout and biases of their own.

    Attributes:
      config: a ``T5Config`` or a ``T5DecoderConfig``.
      training: whether dropout is on.
      sparse: whether it has experts, in which there is no dropout.
    """

    config: Any
    training: bool = False
    sparse: bool = False
    bidirectional: ClassVar[bool] = False

    def setup(self) -> None:
        if self.config.biases_per_layer:
            self.relpos_bias = position_biases(self.config, self.bidirectional)
        self.pre_mlp_layer_norm = norm(self.config)
        cfg, training = self.config, self.training
        self.mlp = experts.UngatedExperts(cfg) if self.sparse else Mlp(cfg, training)
        self.drop = dropout(self.config, self.training)

    def fed_forward(self, x: Array) -> Array:
        """The output of the last part."""
        return x + self.drop(self.mlp(self.pre_mlp_layer_norm(x)))


def block_sums(x: Array, real: Array, size: int) -> tuple[Array, Array]:
    """The sums of the real tokens of each whole block, with those after the last in its sum.

    Args:
      x: ``[B, 1, P, D]``.
      real: bool ``[B, P]``, True up to the length of each row.
      size: the number of tokens of a block.

    Returns:
      The sums, float32 ``[B, 1, N, D]``, and how many of them a row has, int32 ``[B]``. The others
      are arbitrary.

    Example:
      >>> x, real = jnp.arange(5.0).reshape(1, 1, 5, 1), jnp.ones((1, 5), bool)
      >>> [x.tolist() for x in block_sums(x, real, 2)]
      [[[[[1.0], [9.0], [4.0]]]], [2]]
    """
    x = jnp.where(real[:, None, :, None], x.astype(jnp.float32), 0.0)
    x = jnp.pad(x, ((0, 0), (0, 0), (0, -x.shape[2] % size), (0, 0)))
    sums = x.reshape(*x.shape[:2], -1, size, x.shape[3]).sum(3)
    whole = real.sum(-1, dtype=jnp.int32) // size
    after = jnp.pad(sums[:, :, 1:], ((0, 0), (0, 0), (0, 1), (0, 0)))
    last = jnp.arange(sums.shape[2], dtype=jnp.int32)[None] == whole[:, None] - 1
    return sums + jnp.where(last[:, None, :, None], after, 0.0), whole


class EncoderLayer(Layer):
    bidirectional: ClassVar[bool] = True

    def setup(self) -> None:
        super().setup()
        self.pre_attention_layer_norm = norm(self.config)
        self.attention = Attention(self.config)
        if self.config.global_block_size is not None:
            self.summary_norm = norm(self.config)

    def __call__(
        self, x: Array, layer_cache: view.LayerCache, bias: attention.Bias | None
    ) -> tuple[Array, caches.KeyValue]:
        y = self.pre_attention_layer_norm(x)
        parts, stored = layer_cache(self.attention.keys(y))
        if bias is not None:
            parts = [*parts, self.summaries(y, parts[0].mask[:, 0, 0], bias)]
        return self.fed_forward(x + self.drop(self.attention(y, parts))), stored

    def summaries(self, y: Array, real: Array, bias: attention.Bias) -> attention.Part:
        """What all tokens see of the sums of blocks.

        Args:
          y: ``[B, 1, P, D]``, the input of the attention.
          real: bool ``[B, P]``, which tokens are real.
          bias: the position biases of distances in blocks.
        """
        size = self.config.global_block_size
        sums, whole = block_sums(y, real, size)
        key, value = caches.prompt_part(self.attention.keys(self.summary_norm(sums)))
        block = jnp.arange(sums.shape[2], dtype=jnp.int32)
        own = jnp.minimum(jnp.arange(y.shape[2], dtype=jnp.int32)[None] // size, whole[:, None] - 1)
        mask = (block[None] < whole[:, None])[:, None, None]
        return attention.Part(key, value, mask, bias, position=own[:, None])


class DecoderLayer(Layer):
    """A layer that attends to its own tokens, and then to the inputs if there are any."""

    def setup(self) -> None:
        super().setup()
        self.pre_self_attention_layer_norm = norm(self.config)
        self.self_attention = Attention(self.config)
        self.pre_cross_attention_layer_norm = norm(self.config)
        self.encoder_decoder_attention = Attention(self.config)

    def source(self, encoded: Array) -> caches.KeyValue:
        """The keys and values of the inputs."""
        return self.encoder_decoder_attention.keys(encoded)

    def __call__(
        self, x: Array, layer_cache: view.LayerCache, _: None, *sources: attention.Part
    ) -> tuple[Array, caches.KeyValue]:
        y = self.pre_self_attention_layer_norm(x)
        parts, stored = layer_cache(self.self_attention.keys(y))
        x += self.drop(self.self_attention(y, parts))
        if sources:
            y = self.pre_cross_attention_layer_norm(x)
            x += self.drop(self.encoder_decoder_attention(y, [*sources]))
        return self.fed_forward(x), stored


class Stack(decoder.DecoderNetwork):
    """An encoder or a decoder, with position biases of the stack or of each layer.

    Attributes:
      config: a ``T5Config`` or a ``T5DecoderConfig``.
      training: whether dropout is on.
      shared: None, or the embedding table that it shares with the other stack.
      layer: the class of its layers.
      side: ``encoder`` or ``decoder``, as it is called in settings and parameters.
    """

    training: bool = False
    shared: nn.Embed | None = None
    layer: ClassVar[type[Layer]]
    side: ClassVar[str]

    def setup(self) -> None:
        super().setup()
        cfg = self.config
        self.token_embedder = embedder(cfg) if self.shared is None else self.shared
        if not cfg.biases_per_layer:
            self.relpos_bias = position_biases(cfg, self.layer.bidirectional)
        layer = functools.partial(self.layer, training=self.training)
        sparse_step = getattr(cfg, f"{self.side}_sparse_step")
        sparse = functools.partial(experts.has_experts, sparse_step)
        self.layers = stack.make_layers(layer, cfg, self.num_layers, sparse=sparse)
        setattr(self, f"{self.side}_norm", norm(cfg))
        self.drop = dropout(cfg, self.training)

    @property
    def num_layers(self) -> int:
        return getattr(self.config, f"num_{self.side}_layers")

    def final_norm(self, x: Array) -> Array:
        return self.drop(getattr(self, f"{self.side}_norm")(x))

    def inputs(self, tokens: Array, position: Array) -> tuple[Array, Any]:
        x = layers.embed(self.token_embedder.embedding, tokens, self.config.dtype)
        return self.drop(x), None

    def bias_of(
        self, bias: Callable[[positions.RelativePositionBiases], Any]
    ) -> Callable[[Any], Any]:
        """A function of a layer that returns ``bias`` of its position biases.

        It is computed once if all layers share the biases.
        """
        if self.config.biases_per_layer:
            return lambda layer: bias(layer.relpos_bias)
        shared = bias(self.relpos_bias)
        return lambda _: shared

    def prompt_biases(
        self, position: Array, size: int, before: int = 0
    ) -> Callable[[Any], attention.Bias]:
        return self.bias_of(lambda b: b.of_keys(position, size))

    def biases(self, seen: view.View, before: int = 0) -> Callable[[Any], view.Biases]:
        zero = jnp.zeros((1, 1, 1, 1), jnp.int32)
        size = seen.prompt_mask.shape[-1]
        return self.bias_of(
            lambda b: view.Biases(b.of_keys(seen.position, size), b(seen.slot_distance), b(zero))
        )

    def project(self, hidden: Array) -> Array:
        """See ``DecoderNetwork.project``; a tied output divides the states by the root of D."""
        if self.config.logits_via_embedding:
            hidden = hidden.astype(jnp.float32) / math.sqrt(self.config.emb_dim)
        return super().project(hidden)


class Encoder(Stack):
    layer: ClassVar[type[Layer]] = EncoderLayer
    side: ClassVar[str] = "encoder"

    def setup(self) -> None:
        super().setup()
        if self.config.global_block_size is not None:
            self.global_relpos_bias = position_biases(self.config, bidirectional=True)

    def inputs(self, tokens: Array, position: Array) -> tuple[Array, attention.Bias | None]:
        x, _ = super().inputs(tokens, position)
        blocks = self.config.global_block_size is not None
        return x, self.global_relpos_bias.by_distance() if blocks else None

    def window(self, index: int | Array) -> int | None:
        radius = self.config.local_radius
        return None if radius is None else radius + 1

    def ahead(self, index: int | Array) -> int | None:
        return self.config.local_radius


class Decoder(Stack):
    layer: ClassVar[type[Layer]] = DecoderLayer
    side: ClassVar[str] = "decoder"


class T5Network(encoder_decoder.EncoderDecoderNetwork):
    """The network of ``T5`` and ``BoundT5``.

    Attributes:
      config: a ``T5Config``.
      training: whether dropout is on.
    """

    training: bool = False

    def setup(self) -> None:
        self.token_embedder = embedder(self.config)
        self.encoder = Encoder(self.config, self.training, self.token_embedder)
        self.decoder = Decoder(self.config, self.training, self.token_embedder)


@pytree
@dataclasses.dataclass(frozen=True)
class BoundT5(encoder_decoder.BoundEncoderDecoder):
    """A T5 decoder that is bound to encoder inputs, a ``LanguageModel``."""

    network = T5Network


@pytree
@dataclasses.dataclass(frozen=True)
class T5(encoder_decoder.EncoderDecoder):
    """A T5 network with its parameters. Bind it to inputs with ``bind`` to get a language model.

    Attributes:
      params: the tree under ``params`` of a T5X checkpoint with unscanned layers, of any float
        dtype.
      config: a ``T5Config``.
    """

    bound = BoundT5


@dataclasses.dataclass(frozen=True)
class T5DecoderConfig(decoder.DecoderConfig):
    """The shape of a T5 decoder in T5X's names, with the settings of ``decoder.DecoderConfig``.

    Attributes:
      vocab_size: the number of rows of the embedding table, unused rows included.
      mlp_activations: one name (ungated) or two (gated), of ``relu, gelu, silu, linear``.
      logits_via_embedding: whether the output is tied to the embedding.
      bidirectional_prompt: whether every token of a prompt sees all tokens of the prompt. The model
        is then a prefix language model (T5X's ``inputs_bidirectional_attention``).
      num_buckets: the number of buckets of relative positions.
      max_distance: the distance from which all relative positions share a bucket.

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
    biases_per_layer: ClassVar[bool] = False
    decoder_sparse_step: ClassVar[int] = 0


class T5DecoderNetwork(Decoder):
    """The network of ``T5Decoder``."""

    @property
    def num_layers(self) -> int:
        return self.config.num_layers

    def ahead(self, index: int | Array) -> int | None:
        return None if self.config.bidirectional_prompt else 0


@pytree
@dataclasses.dataclass(frozen=True)
class T5Decoder(decoder.DecoderModel):
    """A T5 decoder with its parameters, a ``LanguageModel`` with ``keep`` and ``select``.

    Attributes:
      params: the tree under ``params/decoder`` of a T5X checkpoint, of any float dtype.
      config: a ``T5DecoderConfig``.
    """

    network = T5DecoderNetwork
