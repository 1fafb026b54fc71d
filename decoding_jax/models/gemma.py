"""Gemma 2 and Gemma 3: local and global layers, norms around each part, soft caps.

The layers are Llama's, with norms after attention and feed-forward part too. Gemma Team 2024,
"Gemma 2: Improving Open Language Models at a Practical Size"; Gemma Team 2025, "Gemma 3 Technical
Report".
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from flax import linen as nn

from decoding_jax.base import Array
from decoding_jax.models import caches, decoder, layers, llama, stack, view
from decoding_jax.models.attention import soft_capped
from decoding_jax.models.positions import rotation
from decoding_jax.pytrees import pytree


@dataclasses.dataclass(frozen=True)
class GemmaConfig(llama.LlamaConfig):
    """The shape of a Gemma 2 or Gemma 3 network: that of a Llama network, and these.

    Attributes:
      query_scalar: the number whose inverse square root is the factor of the attention's logits, or
        None for the size of a head.
      attention_soft_cap: None, or the bound c of the attention's logits, ``c tanh(x / c)``.
      logit_soft_cap: None, or such a bound of the logits of the tokens.
      local_rope_theta: the base of the rotary frequencies of layers with the window, which are not
        scaled, or None for those of all layers (Gemma 3).

    Raises:
      ValueError: as ``LlamaConfig``, or if one of these is not positive.
    """

    activation: str = "gelu"
    logits_via_embedding: bool = True
    query_scalar: float | None = None
    attention_soft_cap: float | None = None
    logit_soft_cap: float | None = None
    local_rope_theta: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("query_scalar", "attention_soft_cap", "logit_soft_cap", "local_rope_theta"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise ValueError(f"{name}: expected None, or numbers above 0, got {value}")


def norm(config: GemmaConfig) -> layers.RMSNorm:
    """A norm whose parameter is the distance of its scale from 1."""
    return layers.RMSNorm(config.norm_epsilon, config.dtype, offset=1.0)


def attention(config: GemmaConfig) -> llama.LlamaAttention:
    size = config.head_dim if config.query_scalar is None else config.query_scalar
    return llama.LlamaAttention(config, size**-0.5, config.attention_soft_cap, norm_offset=1.0)


class GemmaLayer(nn.Module):
    config: GemmaConfig

    def setup(self) -> None:
        cfg = self.config
        self.pre_attention_norm = norm(cfg)
        self.attention = attention(cfg)
        self.post_attention_norm = norm(cfg)
        self.pre_mlp_norm = norm(cfg)
        self.mlp = llama.LlamaMlp(cfg)
        self.post_mlp_norm = norm(cfg)

    def attended(
        self, x: Array, layer_cache: view.LayerCache, angles: tuple[Array, Array]
    ) -> tuple[Array, caches.KeyValue]:
        """The output of the first part, and the updated cache."""
        y, stored = self.attention(self.pre_attention_norm(x), layer_cache, angles)
        return x + self.post_attention_norm(y), stored

    def fed_forward(self, x: Array) -> Array:
        """The output of the last part."""
        return x + self.post_mlp_norm(self.mlp(self.pre_mlp_norm(x)))

    def __call__(
        self, x: Array, layer_cache: view.LayerCache, angles: tuple[Array, Array]
    ) -> tuple[Array, caches.KeyValue]:
        x, stored = self.attended(x, layer_cache, angles)
        return self.fed_forward(x), stored


class GemmaNetwork(decoder.DecoderNetwork):
    """The network of ``Gemma``."""

    config: GemmaConfig
    layer: ClassVar[type[GemmaLayer]] = GemmaLayer

    def setup(self) -> None:
        super().setup()
        cfg = self.config
        self.token_embedder = self.embedder()
        self.layers = stack.make_layers(self.layer, cfg)
        self.final_norm = norm(cfg)

    def embedder(self) -> nn.Module:
        """The module of the embedding table."""
        cfg = self.config
        return layers.embedder(cfg.vocab_size, cfg.emb_dim)

    def inputs(self, tokens: Array, position: Array) -> tuple[Array, Any]:
        """See ``DecoderNetwork.inputs``. The positions are angles: global ones, then local ones."""
        cfg = self.config
        x = layers.embed(self.token_embedder.embedding, tokens, cfg.dtype)
        x *= jnp.asarray(math.sqrt(cfg.emb_dim), cfg.dtype)  # rounded to the dtype, as in training
        angles = rotation(position, cfg.head_dim, cfg.rope_theta, cfg.rope_scaling)
        if cfg.local_rope_theta is None:
            return x, (angles, angles)
        return x, (angles, rotation(position, cfg.head_dim, cfg.local_rope_theta))

    def positions_of(self, positions: Any, index: int | Array) -> tuple[Array, Array]:
        for_global, for_local = positions
        local = view.is_local(self.config.window_pattern, index)
        if isinstance(local, bool):
            return for_local if local else for_global
        return jax.tree.map(lambda x, y: jnp.where(local, x, y), for_local, for_global)

    def window(self, index: int | Array) -> view.Window:
        return view.window_of(self.config.window, self.config.window_pattern, index)

    def project(self, hidden: Array) -> Array:
        return soft_capped(super().project(hidden), self.config.logit_soft_cap)


@pytree
@dataclasses.dataclass(frozen=True)
class Gemma(llama.Llama):
    """A Gemma 2 or Gemma 3 network with its parameters, a ``LanguageModel``.

    Attributes:
      params: the parameters of ``GemmaNetwork``, of any float dtype. A ``scale`` is its distance
        from 1.
      config: a ``GemmaConfig``.

    Example:
      >>> config = GemmaConfig(
      ...     vocab_size=9, emb_dim=4, num_heads=2, num_kv_heads=1, head_dim=2, mlp_dim=8,
      ...     num_layers=2, max_positions=32, window=16, window_pattern=(True, False),
      ...     qk_norm=True, local_rope_theta=10_000.0, rope_theta=1_000_000.0)
      >>> def logits(key):
      ...     model = Gemma.init(config, key)
      ...     output, cache = model.prefill(jnp.array([[1, 2]]), jnp.array([2]), lanes=3, slots=5)
      ...     return model.extend(cache, jnp.ones((1, 3, 2), jnp.int32), 0)[0].logits
      >>> jax.eval_shape(logits, jax.random.key(0)).shape
      (1, 3, 2, 9)
    """

    network: ClassVar[type[decoder.DecoderNetwork]] = GemmaNetwork
