"""The Llama family: rotary positions, grouped-query attention, RMS norm, gated feed-forward.

Covers Llama 2 and 3, TinyLlama, SmolLM, Mistral, Qwen2 and Qwen3. Touvron et al. 2023, "Llama 2";
Grattafiori et al. 2024, "The Llama 3 Herd of Models"; Ainslie et al. 2023, "GQA"; Shazeer 2020,
"GLU Variants Improve Transformer"; Yang et al. 2024, "Qwen2"; Yang et al. 2025, "Qwen3".
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax import traverse_util

from decoding_jax.base import Array
from decoding_jax.models import attention, caches, decoder, layers, positions, stack, view
from decoding_jax.models.attention_choice import attend
from decoding_jax.models.transposed import plain
from decoding_jax.pytrees import pytree


def repeated_heads(params: Any, config: Any, size: int) -> tuple[Any, Any]:
    """Parameters and config with key-value heads repeated for ``size`` devices, where it serves.

    The parameters may be those of a part of the network.
    """
    heads = math.lcm(config.num_kv_heads, size)
    if heads == config.num_kv_heads or config.num_heads % heads:
        return params, config
    times = heads // config.num_kv_heads

    def repeat(x: Array) -> Array:
        split = x.reshape(*x.shape[:-1], config.num_kv_heads, config.head_dim)
        return jnp.repeat(split, times, axis=-2).reshape(*x.shape[:-1], -1)

    flat = traverse_util.flatten_dict(plain(params), sep="/")
    for path, x in flat.items():
        if "attention/key/" in path or "attention/value/" in path:
            flat[path] = jax.tree.map(repeat, x)
    config = dataclasses.replace(config, num_kv_heads=heads)
    return traverse_util.unflatten_dict(flat, sep="/"), config


@dataclasses.dataclass(frozen=True)
class LlamaConfig(decoder.DecoderConfig):
    """The shape of a network of the Llama family, with the settings of ``decoder.DecoderConfig``.

    Attributes:
      vocab_size: the number of rows of the embedding table, unused rows included.
      num_heads: the number of query heads, a multiple of ``num_kv_heads``.
      num_kv_heads: the number of key-value heads, each shared by a group of query heads.
      head_dim: the size of a head, an even number.
      max_positions: the length of the longest text that the model supports.
      rope_theta: the base of the rotary frequencies.
      rope_scaling: the scaling of the rotary frequencies, or None.
      activation: the activation of the gate: ``silu``, ``gelu`` (by tanh), ``gelu_exact`` or
        ``relu``.
      qkv_bias: whether query, key and value have a bias (Qwen2).
      out_bias: whether the attention's output has one.
      mlp_bias: whether the feed-forward projections have one.
      qk_norm: whether each head's query and key are normalised before their rotation (Qwen3).
      window: the number of tokens that a token sees, itself included, or None for all (Mistral).
      window_pattern: whether each layer has the window, repeated over the layers.
      logits_via_embedding: whether the output is tied to the embedding (SmolLM).

    Raises:
      ValueError: if ``num_kv_heads`` does not divide ``num_heads``, ``head_dim`` is odd, or
        ``window`` or ``prefill_chunk`` is not positive.
    """

    vocab_size: int
    emb_dim: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    mlp_dim: int
    num_layers: int
    max_positions: int
    rope_theta: float = 10_000.0
    rope_scaling: positions.RopeScaling | None = None
    activation: str = "silu"
    norm_epsilon: float = 1e-6
    qkv_bias: bool = False
    out_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    window: int | None = None
    window_pattern: tuple[bool, ...] = (True,)
    logits_via_embedding: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        view.check_window(self.window, self.window_pattern)
        if self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"num_kv_heads: expected a divisor of num_heads = {self.num_heads}, got"
                f" {self.num_kv_heads}"
            )
        if self.head_dim % 2:
            raise ValueError(f"head_dim: expected even numbers, got {self.head_dim}")


class LlamaAttention(nn.Module):
    """Grouped-query attention with rotary positions.

    Attributes:
      config: the shape of the network.
      scale: the factor of the logits, or None for that of the size of a head.
      soft_cap: None, or the bound of the logits.
      norm_offset: the ``offset`` of the norms of query and key.
    """

    config: LlamaConfig
    scale: float | None = None
    soft_cap: float | None = None
    norm_offset: float = 0.0

    def setup(self) -> None:
        cfg = self.config

        def project(heads: int) -> layers.Dense:
            return layers.Dense(heads * cfg.head_dim, cfg.dtype, use_bias=cfg.qkv_bias)

        self.query = project(cfg.num_heads)
        self.key, self.value = project(cfg.num_kv_heads), project(cfg.num_kv_heads)
        self.out = layers.Dense(cfg.emb_dim, cfg.dtype, use_bias=cfg.out_bias)
        if cfg.qk_norm:
            self.query_norm = layers.RMSNorm(cfg.norm_epsilon, cfg.dtype, self.norm_offset)
            self.key_norm = layers.RMSNorm(cfg.norm_epsilon, cfg.dtype, self.norm_offset)

    def keys(self, x: Array) -> caches.KeyValue:
        """The keys and values of ``x``, which are not rotated."""
        new = layers.key_value(self.key(x), self.value(x), self.config.num_kv_heads)
        return new._replace(key=self.key_norm(new.key)) if self.config.qk_norm else new

    def read(
        self, x: Array, parts: list[attention.Part], angles: tuple[Array, Array] | None = None
    ) -> Array:
        """The attention of ``x`` to keys and values, with queries that are rotated or not.

        The keys may be those of another network, whose dtype the queries take.
        """
        cfg, held = self.config, parts[0].key
        heads = held.shape[-3]
        query = layers.split_heads(self.query(x), heads, cfg.num_heads // heads)
        query = self.query_norm(query) if cfg.qk_norm else query
        query = query if angles is None else positions.rotate(query, *angles)
        scale = cfg.head_dim**-0.5 if self.scale is None else self.scale
        query = query.astype(held.dtype)
        y = attend(query, parts, scale, self.soft_cap, implementation=cfg.attention)
        return self.out(layers.merge_heads(y).astype(cfg.dtype))

    def __call__(
        self, x: Array, layer_cache: view.LayerCache, angles: tuple[Array, Array]
    ) -> tuple[Array, caches.KeyValue]:
        new = self.keys(x)
        # Keys are stored after their rotation, which is applied once, when the token is new.
        parts, stored = layer_cache(new._replace(key=positions.rotate(new.key, *angles)))
        return self.read(x, parts, angles), stored


class LlamaMlp(nn.Module):
    config: LlamaConfig

    @nn.compact
    def __call__(self, x: Array) -> Array:
        cfg = self.config
        gate = layers.Dense(cfg.mlp_dim, cfg.dtype, use_bias=cfg.mlp_bias, name="gate")(x)
        up = layers.Dense(cfg.mlp_dim, cfg.dtype, use_bias=cfg.mlp_bias, name="up")(x)
        y = layers.ACTIVATIONS[cfg.activation](gate) * up
        return layers.Dense(cfg.emb_dim, cfg.dtype, use_bias=cfg.mlp_bias, name="down")(y)


class LlamaLayer(nn.Module):
    config: LlamaConfig

    def setup(self) -> None:
        cfg = self.config
        self.pre_attention_norm = layers.RMSNorm(cfg.norm_epsilon, cfg.dtype)
        self.attention = LlamaAttention(cfg)
        self.pre_mlp_norm = layers.RMSNorm(cfg.norm_epsilon, cfg.dtype)
        self.mlp = LlamaMlp(cfg)

    def __call__(
        self, x: Array, layer_cache: view.LayerCache, angles: tuple[Array, Array]
    ) -> tuple[Array, caches.KeyValue]:
        y, stored = self.attention(self.pre_attention_norm(x), layer_cache, angles)
        x += y
        return x + self.mlp(self.pre_mlp_norm(x)), stored


class LlamaNetwork(decoder.DecoderNetwork):
    """The network of ``Llama``."""

    config: LlamaConfig

    def setup(self) -> None:
        super().setup()
        cfg = self.config
        self.token_embedder = layers.embedder(cfg.vocab_size, cfg.emb_dim)
        self.layers = stack.make_layers(LlamaLayer, cfg)
        self.final_norm = layers.RMSNorm(cfg.norm_epsilon, cfg.dtype)

    def inputs(self, tokens: Array, position: Array) -> tuple[Array, Any]:
        cfg = self.config
        x = layers.embed(self.token_embedder.embedding, tokens, cfg.dtype)
        return x, positions.rotation(position, cfg.head_dim, cfg.rope_theta, cfg.rope_scaling)

    def window(self, index: int | Array) -> view.Window:
        return view.window_of(self.config.window, self.config.window_pattern, index)


@pytree
@dataclasses.dataclass(frozen=True)
class Llama(decoder.DecoderModel):
    """A network of the Llama family with its parameters, a ``LanguageModel``.

    Attributes:
      params: the parameters of ``LlamaNetwork``, of any float dtype.
      config: a ``LlamaConfig``.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> config = LlamaConfig(
      ...     vocab_size=9, emb_dim=4, num_heads=2, num_kv_heads=1, head_dim=2, mlp_dim=8,
      ...     num_layers=1, max_positions=32)
      >>> model = Llama.init(config, jax.random.key(0))
      >>> output, cache = model.prefill(jnp.array([[1, 2]]), jnp.array([2]), lanes=3, slots=5)
      >>> output, cache = model.extend(cache, jnp.ones((1, 3, 2), jnp.int32), 0)
      >>> output.logits.shape
      (1, 3, 2, 9)
    """

    network: ClassVar[type[decoder.DecoderNetwork]] = LlamaNetwork

    @property
    def sharded_sizes(self) -> dict[str, int]:
        """See ``sharding.SupportsPartitionRules``."""
        return {**super().sharded_sizes, "num_kv_heads": self.config.num_kv_heads}

    def for_model_axis(self, size: int) -> Llama:
        """The same function with enough key-value heads for each device of the axis ``model``.

        Each key-value head is repeated, and its group of query heads is divided among the copies. A
        device then computes and stores the heads that its own query heads read, and no others.

        Args:
          size: the number of devices of the axis.

        Returns:
          An equal model if no repetition is needed, or if none serves.
        """
        params, config = repeated_heads(self.params, self.config, size)
        return dataclasses.replace(self, params=params, config=config)
