"""GPT-2: learned positions, layer norm with bias, one projection for query, key and value.

Radford et al. 2019, "Language Models are Unsupervised Multitask Learners".
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax.numpy as jnp
from flax import linen as nn

from decoding_jax.base import Array
from decoding_jax.models import caches, decoder, layers, stack, view
from decoding_jax.models.attention_choice import attend
from decoding_jax.models.transposed import kernel_of
from decoding_jax.pytrees import pytree


@dataclasses.dataclass(frozen=True)
class GPT2Config(decoder.DecoderConfig):
    """The shape of a GPT-2 network, with the settings of ``decoder.DecoderConfig``.

    Attributes:
      vocab_size: the number of rows of the embedding table, unused rows included.
      emb_dim: the width of the network, a multiple of ``num_heads``.
      max_positions: the number of rows of the position table. Larger positions are clipped.
      activation: the activation of the feed-forward part: ``gelu`` (by tanh), ``gelu_exact``,
        ``relu`` or ``silu``.
      logits_via_embedding: whether the output is tied to the embedding.

    Raises:
      ValueError: if ``num_heads`` does not divide ``emb_dim``, or ``prefill_chunk`` is not
        positive.
    """

    vocab_size: int
    emb_dim: int
    num_heads: int
    mlp_dim: int
    num_layers: int
    max_positions: int = 1024
    activation: str = "gelu"
    layer_norm_epsilon: float = 1e-5
    logits_via_embedding: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.emb_dim % self.num_heads:
            raise ValueError(
                f"num_heads: expected a divisor of emb_dim = {self.emb_dim}, got {self.num_heads}"
            )


def layer_norm(config: Any) -> layers.LayerNorm:
    return layers.LayerNorm(config.layer_norm_epsilon, config.dtype)


class QueryKeyValue(nn.Module):
    """The three projections of the attention, whose weights are one array.

    They have an axis of their own, so that each can be sharded by heads.
    """

    config: GPT2Config

    @nn.compact
    def __call__(self, x: Array) -> tuple[Array, Array, Array]:
        size, dtype = self.config.emb_dim, self.config.dtype
        init = nn.initializers.variance_scaling(1.0, "fan_in", "truncated_normal", 0, 2, 1)
        kernel = kernel_of(self, init, (size, 3, size))
        bias = self.param("bias", nn.initializers.zeros_init(), (3, size), jnp.float32)
        y = layers.matmul(x, kernel, dtype).astype(dtype)
        y += bias.astype(dtype).reshape((1,) * (x.ndim - 1) + bias.shape)
        return y[..., 0, :], y[..., 1, :], y[..., 2, :]


class GPT2Attention(nn.Module):
    config: GPT2Config

    @nn.compact
    def __call__(self, x: Array, layer_cache: view.LayerCache) -> tuple[Array, caches.KeyValue]:
        cfg = self.config
        query, key, value = QueryKeyValue(cfg, name="qkv")(x)
        parts, stored = layer_cache(layers.key_value(key, value, cfg.num_heads))
        scale = (cfg.emb_dim // cfg.num_heads) ** -0.5
        query = layers.split_heads(query, cfg.num_heads)
        y = attend(query, parts, scale, implementation=cfg.attention)
        y = layers.merge_heads(y)
        return layers.Dense(cfg.emb_dim, cfg.dtype, use_bias=True, name="out")(y), stored


class GPT2Mlp(nn.Module):
    """Two projections with biases and an activation between them."""

    config: GPT2Config

    @nn.compact
    def __call__(self, x: Array) -> Array:
        cfg = self.config
        x = layers.Dense(cfg.mlp_dim, cfg.dtype, use_bias=True, name="wi")(x)
        return layers.Dense(cfg.emb_dim, cfg.dtype, use_bias=True, name="wo")(
            layers.ACTIVATIONS[cfg.activation](x)
        )


class GPT2Layer(nn.Module):
    config: GPT2Config

    def setup(self) -> None:
        self.pre_attention_norm = layer_norm(self.config)
        self.attention = GPT2Attention(self.config)
        self.pre_mlp_norm = layer_norm(self.config)
        self.mlp = GPT2Mlp(self.config)

    def __call__(
        self, x: Array, layer_cache: view.LayerCache, _: None
    ) -> tuple[Array, caches.KeyValue]:
        y, stored = self.attention(self.pre_attention_norm(x), layer_cache)
        x += y
        return x + self.mlp(self.pre_mlp_norm(x)), stored


class GPT2Network(decoder.DecoderNetwork):
    """The network of ``GPT2``."""

    config: GPT2Config

    def setup(self) -> None:
        super().setup()
        cfg = self.config
        self.token_embedder = layers.embedder(cfg.vocab_size, cfg.emb_dim)
        self.position_embedder = layers.embedder(cfg.max_positions, cfg.emb_dim)
        self.layers = stack.make_layers(GPT2Layer, cfg)
        self.final_norm = layer_norm(cfg)

    def inputs(self, tokens: Array, position: Array) -> tuple[Array, Any]:
        dtype = self.config.dtype
        x = layers.embed(self.token_embedder.embedding, tokens, dtype)
        return x + layers.embed(self.position_embedder.embedding, position, dtype), None


@pytree
@dataclasses.dataclass(frozen=True)
class GPT2(decoder.DecoderModel):
    """A GPT-2 network with its parameters, a ``LanguageModel``.

    Attributes:
      params: the parameters of ``GPT2Network``, of any float dtype.
      config: a ``GPT2Config``.

    Example:
      >>> import jax
      >>> config = GPT2Config(vocab_size=9, emb_dim=4, num_heads=2, mlp_dim=8, num_layers=1)
      >>> model = GPT2.init(config, jax.random.key(0))
      >>> prompt = jnp.array([[1, 2, 3], [4, 0, 0]])
      >>> output, cache = model.prefill(prompt, jnp.array([3, 1]), lanes=2, slots=5)
      >>> output.logits.shape
      (2, 1, 1, 9)
      >>> output, cache = model.extend(cache, jnp.ones((2, 2, 1), jnp.int32), 0)
      >>> output.logits.shape
      (2, 2, 1, 9)
    """

    network = GPT2Network
