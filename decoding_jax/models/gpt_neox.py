"""GPT-NeoX: rotary positions in a part of each head, attention and feed-forward part in parallel.

Covers GPT-NeoX-20B and Pythia. Black et al. 2022, "GPT-NeoX-20B: An Open-Source Autoregressive
Language Model"; Biderman et al. 2023, "Pythia".
"""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

from flax import linen as nn
from jax.sharding import PartitionSpec

from decoding_jax.base import Array
from decoding_jax.models import gpt2
from decoding_jax.models.attention import attend
from decoding_jax.models.cache import KeyValue
from decoding_jax.models.decoder import DecoderModel, check_prefill_chunk
from decoding_jax.models.decoder_network import DecoderNetwork
from decoding_jax.models.gpt2 import GPT2Mlp, layer_norm
from decoding_jax.models.layers import Dense, embed, key_value, merge_heads, split_heads
from decoding_jax.models.rotary import RopeScaling, rotate, rotation
from decoding_jax.models.stack import make_layers
from decoding_jax.models.view import LayerCache
from decoding_jax.ops.mesh import MODEL
from decoding_jax.pytrees import pytree


@dataclasses.dataclass(frozen=True)
class GPTNeoXConfig:
    """The shape of a GPT-NeoX network.

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
      dtype: the dtype of activations and of the cache, ``float32`` or ``bfloat16``.
      prefill_chunk: the number of prompt tokens that run at a time, or None for whole prompts. In
        chunks, the memory that is held besides the cache does not grow with the prompt.
      scan_layers: whether one layer is compiled and scanned, with parameters stacked over layers. A
        deep network then compiles as fast as a shallow one.

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
    rope_scaling: RopeScaling | None = None
    parallel_residual: bool = True
    attention_bias: bool = True
    activation: str = "gelu_exact"
    layer_norm_epsilon: float = 1e-5
    logits_via_embedding: bool = False
    dtype: str = "float32"
    prefill_chunk: int | None = None
    scan_layers: bool = False

    def __post_init__(self) -> None:
        check_prefill_chunk(self.prefill_chunk)
        if self.emb_dim % self.num_heads:
            raise ValueError(
                f"num_heads: got {self.num_heads}; takes a divisor of emb_dim = {self.emb_dim}"
            )
        if self.rotary_dim % 2 or not 2 <= self.rotary_dim <= self.head_dim:
            raise ValueError(
                f"rotary_dim: got {self.rotary_dim}; takes even numbers from 2 to the size of a"
                f" head, {self.head_dim}"
            )

    @property
    def head_dim(self) -> int:
        """The size of a head."""
        return self.emb_dim // self.num_heads


class GPTNeoXAttention(nn.Module):
    config: GPTNeoXConfig

    @nn.compact
    def __call__(
        self, x: Array, layer_cache: LayerCache, angles: tuple[Array, Array]
    ) -> tuple[Array, KeyValue]:
        cfg = self.config
        y = Dense(3 * cfg.emb_dim, cfg.dtype, use_bias=cfg.attention_bias, name="qkv")(x)
        # The columns of a head's query, key and value follow each other, so that a device of a mesh
        # holds whole heads.
        y = y.reshape(*y.shape[:-1], cfg.num_heads, 3, cfg.head_dim)
        query, key, value = (y[..., i, :].reshape(x.shape) for i in range(3))
        new = key_value(key, value, cfg.num_heads)
        parts, stored = layer_cache(new._replace(key=rotate(new.key, *angles)))
        query = rotate(split_heads(query, cfg.num_heads), *angles)
        y = merge_heads(attend(query, parts, cfg.head_dim**-0.5))
        return Dense(cfg.emb_dim, cfg.dtype, use_bias=cfg.attention_bias, name="out")(y), stored


class GPTNeoXLayer(nn.Module):
    config: GPTNeoXConfig

    def setup(self) -> None:
        self.pre_attention_norm = layer_norm(self.config)
        self.attention = GPTNeoXAttention(self.config)
        self.pre_mlp_norm = layer_norm(self.config)
        self.mlp = GPT2Mlp(self.config)

    def __call__(
        self, x: Array, layer_cache: LayerCache, angles: tuple[Array, Array]
    ) -> tuple[Array, KeyValue]:
        y, stored = self.attention(self.pre_attention_norm(x), layer_cache, angles)
        if self.config.parallel_residual:
            return x + y + self.mlp(self.pre_mlp_norm(x)), stored
        x += y
        return x + self.mlp(self.pre_mlp_norm(x)), stored


class GPTNeoXNetwork(DecoderNetwork):
    """The network of ``GPTNeoX``."""

    config: GPTNeoXConfig

    def setup(self) -> None:
        super().setup()
        cfg = self.config
        init = nn.initializers.normal(0.02)
        self.token_embedder = nn.Embed(cfg.vocab_size, cfg.emb_dim, embedding_init=init)
        self.layers = make_layers(
            lambda: GPTNeoXLayer(cfg), cfg.num_layers, scanned=cfg.scan_layers
        )
        self.final_norm = layer_norm(cfg)

    def inputs(self, tokens: Array, position: Array) -> tuple[Array, Any]:
        cfg = self.config
        x = embed(self.token_embedder.embedding, tokens, cfg.dtype)
        return x, rotation(position, cfg.rotary_dim, cfg.rope_theta, cfg.rope_scaling)


PARTITION_RULES = {
    **gpt2.PARTITION_RULES,
    "*attention/qkv/kernel": PartitionSpec(None, MODEL),
    "*attention/qkv/bias": PartitionSpec(MODEL),
}
"""The layout of the parameters on a mesh: heads, features and vocabulary over ``model``."""


@pytree
@dataclasses.dataclass(frozen=True)
class GPTNeoX(DecoderModel):
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

    params: Any
    config: GPTNeoXConfig = dataclasses.field(metadata={"static": True})

    network: ClassVar[type[DecoderNetwork]] = GPTNeoXNetwork
    partition_rules = PARTITION_RULES
