"""GPT-NeoX: rotary positions in a part of each head, attention and feed-forward part in parallel.

Covers GPT-NeoX-20B and Pythia. Black et al. 2022, "GPT-NeoX-20B: An Open-Source Autoregressive
Language Model"; Biderman et al. 2023, "Pythia".
"""

from __future__ import annotations

import dataclasses
from typing import Any

from flax import linen as nn

from decoding_jax.base import Array
from decoding_jax.models import caches, decoder, gpt2, layers, positions, stack, view
from decoding_jax.models.attention_choice import attend
from decoding_jax.pytrees import pytree


@dataclasses.dataclass(frozen=True)
class GPTNeoXConfig(decoder.DecoderConfig):
    """The shape of a GPT-NeoX network, with the settings of ``decoder.DecoderConfig``.

    Attributes:
      vocab_size: the number of rows of the embedding table, unused rows included.
      emb_dim: the width of the network, a multiple of ``num_heads``.
      max_positions: the length of the longest text that the model supports.
      rotary_dim: the number of dimensions of a head that are rotated, an even number.
      rope_theta: the base of the rotary frequencies.
      rope_scaling: the scaling of the rotary frequencies, or None.
      parallel_residual: whether attention and feed-forward part of a layer have the same input,
        and not one after the other.
      attention_bias: whether the attention's projections have biases.
      activation: the activation of the feed-forward part: ``gelu`` (by tanh), ``gelu_exact``,
        ``relu`` or ``silu``.
      logits_via_embedding: whether the output is tied to the embedding.

    Raises:
      ValueError: if ``num_heads`` does not divide ``emb_dim``, ``rotary_dim`` is not an even number
        of dimensions of a head, or ``prefill_chunk`` is not positive.
    """

    vocab_size: int
    emb_dim: int
    num_heads: int
    mlp_dim: int
    num_layers: int
    max_positions: int
    rotary_dim: int
    rope_theta: float = 10_000.0
    rope_scaling: positions.RopeScaling | None = None
    parallel_residual: bool = True
    attention_bias: bool = True
    activation: str = "gelu_exact"
    layer_norm_epsilon: float = 1e-5
    logits_via_embedding: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.emb_dim % self.num_heads:
            raise ValueError(
                f"num_heads: expected a divisor of emb_dim = {self.emb_dim}, got {self.num_heads}"
            )
        if self.rotary_dim % 2 or not 2 <= self.rotary_dim <= self.head_dim:
            raise ValueError(
                f"rotary_dim: expected even numbers from 2 to the size of a head, {self.head_dim},"
                f" got {self.rotary_dim}"
            )

    @property
    def head_dim(self) -> int:
        """The size of a head."""
        return self.emb_dim // self.num_heads


class GPTNeoXAttention(nn.Module):
    config: GPTNeoXConfig

    @nn.compact
    def __call__(
        self, x: Array, layer_cache: view.LayerCache, angles: tuple[Array, Array]
    ) -> tuple[Array, caches.KeyValue]:
        cfg = self.config
        y = layers.Dense(3 * cfg.emb_dim, cfg.dtype, use_bias=cfg.attention_bias, name="qkv")(x)
        # The columns of a head's query, key and value follow each other, so that a device of a mesh
        # holds whole heads.
        y = y.reshape(*y.shape[:-1], cfg.num_heads, 3, cfg.head_dim)
        query, key, value = (y[..., i, :].reshape(x.shape) for i in range(3))
        new = layers.key_value(key, value, cfg.num_heads)
        parts, stored = layer_cache(new._replace(key=positions.rotate(new.key, *angles)))
        query = positions.rotate(layers.split_heads(query, cfg.num_heads), *angles)
        y = layers.merge_heads(
            attend(query, parts, cfg.head_dim**-0.5, implementation=cfg.attention)
        )
        return layers.Dense(cfg.emb_dim, cfg.dtype, use_bias=cfg.attention_bias, name="out")(
            y
        ), stored


class GPTNeoXLayer(nn.Module):
    config: GPTNeoXConfig

    def setup(self) -> None:
        self.pre_attention_norm = gpt2.layer_norm(self.config)
        self.attention = GPTNeoXAttention(self.config)
        self.pre_mlp_norm = gpt2.layer_norm(self.config)
        self.mlp = gpt2.GPT2Mlp(self.config)

    def __call__(
        self, x: Array, layer_cache: view.LayerCache, angles: tuple[Array, Array]
    ) -> tuple[Array, caches.KeyValue]:
        y, stored = self.attention(self.pre_attention_norm(x), layer_cache, angles)
        if self.config.parallel_residual:
            return x + y + self.mlp(self.pre_mlp_norm(x)), stored
        x += y
        return x + self.mlp(self.pre_mlp_norm(x)), stored


class GPTNeoXNetwork(decoder.DecoderNetwork):
    """The network of ``GPTNeoX``."""

    config: GPTNeoXConfig

    def setup(self) -> None:
        super().setup()
        cfg = self.config
        self.token_embedder = layers.embedder(cfg.vocab_size, cfg.emb_dim)
        self.layers = stack.make_layers(GPTNeoXLayer, cfg)
        self.final_norm = gpt2.layer_norm(cfg)

    def inputs(self, tokens: Array, position: Array) -> tuple[Array, Any]:
        cfg = self.config
        x = layers.embed(self.token_embedder.embedding, tokens, cfg.dtype)
        return x, positions.rotation(position, cfg.rotary_dim, cfg.rope_theta, cfg.rope_scaling)


@pytree
@dataclasses.dataclass(frozen=True)
class GPTNeoX(decoder.DecoderModel):
    """A GPT-NeoX network with its parameters, a ``LanguageModel``.

    Attributes:
      params: the parameters of ``GPTNeoXNetwork``, of any float dtype.
      config: a ``GPTNeoXConfig``.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> config = GPTNeoXConfig(
      ...     vocab_size=9, emb_dim=8, num_heads=2, mlp_dim=8, num_layers=1, max_positions=32,
      ...     rotary_dim=2)
      >>> def logits(key):
      ...     model = GPTNeoX.init(config, key)
      ...     output, cache = model.prefill(jnp.array([[1, 2]]), jnp.array([2]), lanes=3, slots=5)
      ...     return model.extend(cache, jnp.ones((1, 3, 2), jnp.int32), 0)[0].logits
      >>> jax.eval_shape(logits, jax.random.key(0)).shape
      (1, 3, 2, 9)
    """

    network = GPTNeoXNetwork
