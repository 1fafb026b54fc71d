"""Decoder-only networks that differ by settings: the Llama family, and families that are data.

``LlamaConfig`` has a setting for each thing in which the layers of these families differ, so that a
family is a file of ``models.checkpoint.families``. Touvron et al. 2023, "Llama 2"; Grattafiori et
al. 2024, "The Llama 3 Herd of Models"; Ainslie et al. 2023, "GQA"; Shazeer 2020, "GLU Variants
Improve Transformer"; Yang et al. 2025, "Qwen3".
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, TypeAlias

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax import traverse_util
from jax import lax

from decoding_jax import fields
from decoding_jax.base import Array
from decoding_jax.models import attention, caches, decoder, layers, positions, stack, view
from decoding_jax.models.attention_choice import attend
from decoding_jax.models.experts import Experts
from decoding_jax.pytrees import pytree

Angles: TypeAlias = Any
"""The cosines and sines of the angles of positions, from ``positions.rotation``, and in some
networks factors of queries, ``[..., T]``; or None where queries and keys are not rotated."""


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

    flat = traverse_util.flatten_dict(params, sep="/")
    repeated = ["attention/key/", "attention/value/"]
    repeated += ["attention/key_norm/"] if config.qk_norm_whole else []
    for path, x in flat.items():
        if any(name in path for name in repeated):
            flat[path] = jax.tree.map(repeat, x)
    config = dataclasses.replace(config, num_kv_heads=heads)
    return traverse_util.unflatten_dict(flat, sep="/"), config


NORMS: dict[str, Callable[..., Any]] = {
    "rms": layers.RMSNorm,
    "rms_offset": functools.partial(layers.RMSNorm, offset=1.0),
    "layer": layers.LayerNorm,
    "layer_offset": functools.partial(layers.LayerNorm, offset=1.0),
    "layer_unbiased": functools.partial(layers.LayerNorm, use_bias=False),
    "layer_plain": functools.partial(layers.LayerNorm, use_bias=False, use_scale=False),
}
"""The norms that a network may have: by the root of the mean square or by mean and variance; with
the scale, its distance from 1, or neither a scale nor a bias."""


def _pattern(name: str, value: Any) -> tuple[bool, ...]:
    """Checks a pattern of layers."""
    if not isinstance(value, Sequence) or not value:
        raise fields.error(name, "one entry or more", value)
    return tuple(map(bool, value))


_above_zero = functools.partial(
    fields.static_number, "None, or numbers above 0", lambda x: x > 0, default=None
)


@dataclasses.dataclass(frozen=True)
class LlamaConfig(decoder.DecoderConfig):
    """The shape of a network of the Llama family, with the settings of ``decoder.DecoderConfig``.

    Attributes:
      vocab_size: the number of rows of the embedding table, unused rows included.
      num_heads: the number of query heads, a multiple of ``num_kv_heads``.
      num_kv_heads: the number of key-value heads, each shared by a group of query heads.
      head_dim: the size of a head, an even number unless no layer has rotary positions.
      max_positions: the length of the longest text that the model supports.
      rope_theta: the base of the rotary frequencies.
      rope_scaling: the scaling of the rotary frequencies, or None.
      activation: the activation of the feed-forward part: ``silu``, ``gelu`` (by tanh),
        ``gelu_exact``, ``relu`` or ``relu2`` (its square).
      qkv_bias: whether query, key and value have a bias (Qwen2).
      out_bias: whether the attention's output has one.
      mlp_bias: whether the feed-forward projections have one.
      qk_norm: whether each head's query and key are normalised before their rotation (Qwen3).
      window: the number of tokens that a token sees, itself included, or None for all (Mistral).
      window_pattern: whether each layer has the window, repeated over the layers.
      logits_via_embedding: whether the output is tied to the embedding (SmolLM).
      norm: the kind of the norms, a name in ``NORMS``.
      norm_place: where attention and feed-forward part have a norm: ``before`` them, ``after``
        them, before their output is added (OLMo 2), ``both`` (Gemma 2), or after it is added,
        ``sum``, without a norm behind the last layer (OPT-350M).
      normed_residual: whether their output is added to what the norm before them returns (BLOOM).
      parallel: None, or ``two_norms`` where attention and feed-forward part of a layer have the
        same input, and ``one_norm`` where they share its norm too (Cohere).
      gated: whether the feed-forward part is gated, or has two projections (Arcee).
      qk_norm_whole: whether ``qk_norm`` is over all heads together (OLMo 2).
      rotary_dim: the number of dimensions of a head that are rotated, or None for all (StableLM).
      rotary_interleaved: whether neighbouring dimensions are rotated together (Cohere).
      rotary_pattern: whether each layer has positions, repeated over the layers (SmolLM3).
      local_rope_theta: the base of the rotary frequencies of layers with the window, which are not
        scaled, or None for those of all layers (Gemma 3).
      query_scalar: the number whose inverse square root is the factor of the attention's logits, or
        None for the size of a head.
      attention_soft_cap: None, or the bound c of the attention's logits, ``c tanh(x / c)``.
      logit_soft_cap: None, or such a bound of the logits of the tokens.
      clip_qkv: None, or the bound of the numbers in queries, keys and values (OLMo).
      embedding_scale: None, or the factor of the embeddings, rounded to the dtype (Gemma).
      residual_scale: None, or the factor of what a layer's parts add (Granite).
      logit_scale: None, or the factor of the logits of the tokens (Cohere).
      logits_bias: whether the projection to the vocabulary has a bias (Phi).
      num_experts: None, or the number of experts, of ``mlp_dim`` each, of which each token runs
        through some in every layer (Mixtral).
      experts_per_token: how many each token runs through.
      normalised_experts: whether the weights of these have the sum 1.
      expert_bias: whether experts and their router have biases (gpt-oss).
      gate_slope: None, or the slope s of the experts' gates ``x sigmoid(s x)``, which multiply the
        projections plus 1 (gpt-oss).
      gate_bound: the upper bound of such an ``x``, and of the size of the projections.
      shared_mlp_dim: None, or the size of one more expert of all tokens, times a number that
        depends on the token (Qwen2-MoE).
      learned_positions: None, or the number of rows before those of the positions in a table of
        embeddings of positions, which are added to those of the tokens (OPT).
      token_dim: None, or the width of the table of tokens, with projections between it and the
        width of the layers (OPT-350M).
      embedding_norm: whether the embeddings are normalised (BLOOM).
      linear_biases: whether the attention's logits fall with the distance (ALiBi; BLOOM).
      rounded_biases: whether they grow with the position of the key instead, by products that are
        rounded to bfloat16 and divided by the root of the size of a head (Falcon).
      attention_sinks: whether each query head has one logit more, which no value belongs to
        (gpt-oss).

    Raises:
      ValueError: if ``num_kv_heads`` does not divide ``num_heads``, ``head_dim`` is odd,
        ``window`` or ``prefill_chunk`` is not positive, or for a value that a setting does not
        take.
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
    norm: str = fields.choice(*NORMS, default="rms")
    norm_place: str = fields.choice("before", "after", "both", "sum", default="before")
    normed_residual: bool = fields.switch(default=False)
    parallel: str | None = fields.choice("two_norms", "one_norm", default=None)
    gated: bool = fields.switch(default=True)
    qk_norm_whole: bool = fields.switch(default=False)
    rotary_dim: int | None = fields.count(2, default=None)
    rotary_interleaved: bool = fields.switch(default=False)
    rotary_pattern: tuple[bool, ...] = fields.field(_pattern, static=True, default=(True,))
    local_rope_theta: float | None = _above_zero()
    query_scalar: float | None = _above_zero()
    attention_soft_cap: float | None = _above_zero()
    logit_soft_cap: float | None = _above_zero()
    clip_qkv: float | None = _above_zero()
    embedding_scale: float | None = _above_zero()
    residual_scale: float | None = _above_zero()
    logit_scale: float | None = _above_zero()
    logits_bias: bool = fields.switch(default=False)
    learned_positions: int | None = fields.count(0, default=None)
    token_dim: int | None = fields.count(default=None)
    embedding_norm: bool = fields.switch(default=False)
    linear_biases: bool = fields.switch(default=False)
    rounded_biases: bool = fields.switch(default=False)
    attention_sinks: bool = fields.switch(default=False)
    num_experts: int | None = fields.count(default=None)
    experts_per_token: int = fields.count(default=1)
    normalised_experts: bool = fields.switch(default=True)
    expert_bias: bool = fields.switch(default=False)
    gate_slope: float | None = _above_zero()
    gate_bound: float | None = _above_zero()
    shared_mlp_dim: int | None = fields.count(default=None)

    sharded: ClassVar[tuple[str, ...]] = (
        *("num_heads", "mlp_dim", "vocab_size", "num_kv_heads", "num_experts", "shared_mlp_dim"),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        fields.check(self)
        view.check_window(self.window, self.window_pattern)
        if self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"num_kv_heads: expected a divisor of num_heads = {self.num_heads}, got"
                f" {self.num_kv_heads}"
            )
        if self.head_dim % 2 and any(self.rotary_pattern):
            raise ValueError(f"head_dim: expected even numbers, got {self.head_dim}")
        turned = self.rotary_dim
        if turned is not None and (turned % 2 or turned > self.head_dim):
            expected = f"None, or even numbers up to the size of a head, {self.head_dim}"
            raise fields.error("rotary_dim", expected, turned)
        for name in ("parallel", "normed_residual"):
            if getattr(self, name) and self.norm_place != "before":
                raise fields.error("norm_place", f"'before' with {name}", self.norm_place)
        if self.num_experts is not None:
            if self.experts_per_token > self.num_experts:
                expected = f"up to num_experts = {self.num_experts}"
                raise fields.error("experts_per_token", expected, self.experts_per_token)
            if self.mlp_bias or not self.gated:
                expected = "None without gated, or with mlp_bias"
                raise fields.error("num_experts", expected, self.num_experts)
        if self.logits_bias and self.logits_via_embedding:
            raise fields.error("logits_bias", "False with logits_via_embedding", True)
        if self.rounded_biases and not self.linear_biases:
            raise fields.error("rounded_biases", "False without linear_biases", True)

    def angles(self, position: Array) -> Angles:
        """The rotations at positions."""
        size, scaling = self.rotary_dim or self.head_dim, self.rope_scaling
        turns = positions.rotation(position, size, self.rope_theta, scaling)
        growth = 0.0 if scaling is None else scaling.query_growth
        return (*turns, scaling.query_factor(position)) if scaling and growth else turns


def refuse_switches(config: LlamaConfig, followed: Sequence[str] = ()) -> None:
    """Refuses settings of ``LlamaConfig`` that the network of a subclass does not follow.

    Args:
      config: the config of the subclass.
      followed: those that it follows.

    Raises:
      ValueError: for one that has not the default of the subclass.
    """
    for setting in dataclasses.fields(LlamaConfig):
        name = setting.name
        default = getattr(type(config), name, setting.default)
        is_switch = "check" in setting.metadata and name not in followed
        if is_switch and getattr(config, name) != default:
            raise fields.error(name, repr(default), getattr(config, name))


def norm(config: LlamaConfig) -> Any:
    """A norm of the network, over the last axis."""
    return NORMS[config.norm](config.norm_epsilon, config.dtype)


class LlamaAttention(nn.Module):
    """Grouped-query attention with rotary positions.

    Attributes:
      config: the shape of the network.
      scale: the factor of the logits, or None for that of the config.
    """

    config: LlamaConfig
    scale: float | None = None

    def setup(self) -> None:
        cfg = self.config

        def project(heads: int) -> layers.Dense:
            return layers.Dense(heads * cfg.head_dim, cfg.dtype, use_bias=cfg.qkv_bias)

        self.query = project(cfg.num_heads)
        self.key, self.value = project(cfg.num_kv_heads), project(cfg.num_kv_heads)
        self.out = layers.Dense(cfg.emb_dim, cfg.dtype, use_bias=cfg.out_bias)
        if cfg.qk_norm:
            self.query_norm, self.key_norm = norm(cfg), norm(cfg)
        if cfg.attention_sinks:
            zeros = nn.initializers.zeros_init()
            self.sinks = self.param("sinks", zeros, (cfg.num_heads,), jnp.float32)

    def projected(self, project: Any, x: Array, norm: Any = None) -> Array:
        """A projection of ``x``, with what is done to all its heads together."""
        y = project(x)
        y = norm(y) if norm is not None and self.config.qk_norm_whole else y
        clip = self.config.clip_qkv
        return y if clip is None else jnp.clip(y, -clip, clip)

    def keys(self, x: Array) -> caches.KeyValue:
        """The keys and values of ``x``, which are not rotated."""
        cfg = self.config
        norm = self.key_norm if cfg.qk_norm else None
        key = self.projected(self.key, x, norm)
        new = layers.key_value(key, self.projected(self.value, x), cfg.num_kv_heads)
        if norm is None or cfg.qk_norm_whole:
            return new
        return new._replace(key=norm(new.key))

    def read(self, x: Array, parts: list[attention.Part], angles: Angles = None) -> Array:
        """The attention of ``x`` to keys and values, with queries that are rotated or not.

        The keys may be those of another network, whose dtype the queries take.
        """
        cfg, held = self.config, parts[0].key
        heads = held.shape[-3]
        norm = self.query_norm if cfg.qk_norm else None
        query = self.projected(self.query, x, norm)
        query = layers.split_heads(query, heads, cfg.num_heads // heads)
        query = query if norm is None or cfg.qk_norm_whole else norm(query)
        query = query if angles is None else self.rotated(query, angles)
        if angles is not None and len(angles) > 2:
            query *= angles[2][:, :, None, None, :, None].astype(query.dtype)
        scale = self.scale
        if scale is None:
            scale = (cfg.query_scalar or cfg.head_dim) ** -0.5
        query = query.astype(held.dtype)
        parts = [*parts, self.sink(held)] if cfg.attention_sinks else parts
        y = attend(query, parts, scale, cfg.attention_soft_cap, implementation=cfg.attention)
        return self.out(layers.merge_heads(y).astype(cfg.dtype))

    def sink(self, held: Array) -> attention.Part:
        """A key of zeros with a value of zeros, whose bias is the logit of each head."""
        none = jnp.zeros((held.shape[-3], 1, held.shape[-1]), held.dtype)
        bias = self.sinks.astype(jnp.float32).reshape(1, 1, held.shape[-3], -1, 1, 1)
        return attention.Part(none, none, jnp.ones((1, 1, 1, 1), bool), bias)

    def rotated(self, x: Array, angles: Angles) -> Array:
        """Queries or keys at their positions."""
        cosine, sine = angles[:2]
        return positions.rotate(x, cosine, sine, interleaved=self.config.rotary_interleaved)

    def __call__(
        self, x: Array, layer_cache: view.LayerCache, angles: Angles
    ) -> tuple[Array, caches.KeyValue]:
        new = self.keys(x)
        # Keys are stored after their rotation, which is applied once, when the token is new.
        new = new if angles is None else new._replace(key=self.rotated(new.key, angles))
        parts, stored = layer_cache(new)
        return self.read(x, parts, angles), stored


class LlamaMlp(nn.Module):
    config: LlamaConfig

    @nn.compact
    def __call__(self, x: Array) -> Array:
        cfg = self.config

        def project(size: int, name: str) -> layers.Dense:
            return layers.Dense(size, cfg.dtype, use_bias=cfg.mlp_bias, name=name)

        activation = layers.ACTIVATIONS[cfg.activation]
        y = project(cfg.mlp_dim, "up")(x)
        y = activation(project(cfg.mlp_dim, "gate")(x)) * y if cfg.gated else activation(y)
        return project(cfg.emb_dim, "down")(y)


class LlamaLayer(nn.Module):
    config: LlamaConfig

    def setup(self) -> None:
        cfg = self.config
        self.attention = LlamaAttention(cfg)
        self.mlp = LlamaMlp(cfg) if cfg.num_experts is None else Experts(cfg)
        if cfg.shared_mlp_dim is not None:
            self.shared_mlp = LlamaMlp(dataclasses.replace(cfg, mlp_dim=cfg.shared_mlp_dim))
            self.shared_router = layers.Dense(1, cfg.dtype)
        if cfg.norm_place in ("before", "both"):
            self.pre_attention_norm = norm(cfg)
            if cfg.parallel != "one_norm":
                self.pre_mlp_norm = norm(cfg)
        if cfg.norm_place != "before":
            self.post_attention_norm, self.post_mlp_norm = norm(cfg), norm(cfg)

    def attention_part(
        self, x: Array, layer_cache: view.LayerCache, angles: Angles
    ) -> tuple[Array, caches.KeyValue]:
        """What the attention adds to ``x``, and the updated cache."""
        place = self.config.norm_place
        y = self.pre_attention_norm(x) if place in ("before", "both") else x
        y, stored = self.attention(y, layer_cache, angles)
        return self.scaled(self.post_attention_norm(y) if place in ("after", "both") else y), stored

    def mlp_part(self, x: Array) -> Array:
        """What the feed-forward part adds to ``x``."""
        cfg = self.config
        if cfg.norm_place in ("before", "both"):
            shared = cfg.parallel == "one_norm"
            x = self.pre_attention_norm(x) if shared else self.pre_mlp_norm(x)
        y = self.mlp(x)
        if cfg.shared_mlp_dim is not None:
            y += jax.nn.sigmoid(self.shared_router(x)) * self.shared_mlp(x)
        return self.scaled(self.post_mlp_norm(y) if cfg.norm_place in ("after", "both") else y)

    def scaled(self, y: Array) -> Array:
        """What a part adds, times the factor of the config."""
        scale = self.config.residual_scale
        return y if scale is None else y * jnp.asarray(scale, y.dtype)

    def attended(
        self, x: Array, layer_cache: view.LayerCache, angles: Angles
    ) -> tuple[Array, caches.KeyValue]:
        """The output of the first part, and the updated cache."""
        y, stored = self.attention_part(x, layer_cache, angles)
        y += self.pre_attention_norm(x) if self.config.normed_residual else x
        return self.post_attention_norm(y) if self.config.norm_place == "sum" else y, stored

    def fed_forward(self, x: Array) -> Array:
        """The output of the last part."""
        y = self.mlp_part(x) + (self.pre_mlp_norm(x) if self.config.normed_residual else x)
        return self.post_mlp_norm(y) if self.config.norm_place == "sum" else y

    def __call__(
        self, x: Array, layer_cache: view.LayerCache, angles: Angles
    ) -> tuple[Array, caches.KeyValue]:
        y, stored = self.attended(x, layer_cache, angles)
        if self.config.parallel is not None:
            return y + self.mlp_part(x), stored
        return self.fed_forward(y), stored


def _either(flag: bool | Array, one: Angles, other: Angles) -> Angles:
    """One of two pairs of angles, where the flag may be an array."""
    if isinstance(flag, bool):
        return one if flag else other
    return jax.tree.map(lambda x, y: jnp.where(flag, x, y), one, other)


class LlamaNetwork(decoder.DecoderNetwork):
    """The network of ``Llama``.

    Attributes:
      config: a ``LlamaConfig``.
      layer: the class of its layers.
      of_index: settings of a layer, each a function of its index.
    """

    config: LlamaConfig
    layer: ClassVar[type[LlamaLayer]] = LlamaLayer
    of_index: ClassVar[Mapping[str, Any]] = {}

    def setup(self) -> None:
        super().setup()
        cfg = self.config
        self.token_embedder = self.embedder()
        if cfg.learned_positions is not None:
            rows = cfg.max_positions + cfg.learned_positions
            self.position_embedder = layers.embedder(rows, cfg.emb_dim)
        if cfg.token_dim is not None:
            self.embedding_in = layers.Dense(cfg.emb_dim, cfg.dtype)
            self.embedding_out = layers.Dense(cfg.token_dim, cfg.dtype)
        if cfg.embedding_norm:
            self.embedding_norm = norm(cfg)
        self.layers = stack.make_layers(self.layer, cfg, **self.of_index)
        self.final_norm = norm(cfg) if cfg.norm_place != "sum" else lambda x: x

    def embedder(self) -> nn.Module:
        """The module of the embedding table."""
        cfg = self.config
        return layers.embedder(cfg.vocab_size, cfg.token_dim or cfg.emb_dim)

    def inputs(self, tokens: Array, position: Array) -> tuple[Array, Any]:
        """See ``DecoderNetwork.inputs``. The positions are angles, or None: global, then local."""
        cfg = self.config
        x = layers.embed(self.token_embedder.embedding, tokens, cfg.dtype)
        if cfg.embedding_scale is not None:
            x *= jnp.asarray(cfg.embedding_scale, cfg.dtype)  # rounded, as in training
        x = x if cfg.token_dim is None else self.embedding_in(x)
        if cfg.learned_positions is not None:
            row = position + cfg.learned_positions
            x += layers.embed(self.position_embedder.embedding, row, cfg.dtype)
        x = self.embedding_norm(x) if cfg.embedding_norm else x
        angles = cfg.angles(position) if any(cfg.rotary_pattern) else None
        if angles is None or cfg.local_rope_theta is None:
            return x, (angles, angles)
        size = cfg.rotary_dim or cfg.head_dim
        local = positions.rotation(position, size, cfg.local_rope_theta)
        return x, (angles, (*local, *angles[2:]))

    def positions_of(self, positions: Any, index: int | Array) -> Angles:
        cfg = self.config
        angles, for_local = positions
        if cfg.local_rope_theta is not None:
            angles = _either(view.is_local(cfg.window_pattern, index), for_local, angles)
        if angles is None or all(cfg.rotary_pattern):
            return angles
        none = (jnp.ones_like(angles[0]), jnp.zeros_like(angles[1]), *angles[2:])
        return _either(view.is_local(cfg.rotary_pattern, index), angles, none)

    def linear_bias(self, before: int, distance: Array, key: Array) -> Array:
        """The biases ``[b, w, H, G, T, K]`` of distances and positions of keys ``[b, w, T, K]``.

        Positions are counted from the first token after a shared prefix of ``before`` tokens. Those
        biases that are rounded grow with the position of a key in the whole text.
        """
        cfg = self.config
        slopes = positions.linear_slopes(cfg.num_heads).reshape(1, 1, cfg.num_kv_heads, -1, 1, 1)
        if not cfg.rounded_biases:
            return -jnp.asarray(slopes) * distance[:, :, None, None].astype(jnp.float32)

        def rounded(x: Array) -> Array:  # as a conversion to bfloat16, which XLA may leave out
            return lax.reduce_precision(x, exponent_bits=8, mantissa_bits=7)

        place = rounded((key + before)[:, :, None, None].astype(jnp.float32))
        return rounded(rounded(jnp.asarray(slopes)) * place) * cfg.head_dim**-0.5

    def prompt_biases(
        self, position: Array, size: int, before: int = 0
    ) -> Callable[[Any], attention.Bias | None]:
        bias = functools.partial(self.linear_bias, before) if self.config.linear_biases else None
        return lambda layer: bias

    def biases(self, seen: view.View, before: int = 0) -> Callable[[Any], view.Biases | None]:
        if not self.config.linear_biases:
            return lambda layer: None
        bias = functools.partial(self.linear_bias, before)
        new = seen.position[:, :, None]
        slots = bias(seen.slot_distance, seen.position[..., None] - seen.slot_distance)
        found = view.Biases(bias, slots, bias(jnp.zeros_like(new), new))
        return lambda layer: found

    def window(self, index: int | Array) -> view.Window:
        return view.window_of(self.config.window, self.config.window_pattern, index)

    def project(self, hidden: Array) -> Array:
        cfg = self.config
        logits = super().project(hidden if cfg.token_dim is None else self.embedding_out(hidden))
        logits = logits if cfg.logit_scale is None else logits * cfg.logit_scale
        return attention.soft_capped(logits, cfg.logit_soft_cap)


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


def for_long_texts(model: Llama) -> Llama:
    """The same network with ``longrope`` for texts that are longer than those of its training.

    It rotates all tokens by the long factors, whatever the length of a row, as vLLM does. A network
    as it is read has the short ones, and takes texts of up to ``original_max_positions``.
    ``transformers`` chooses by the longest text of a batch, and computes all keys again where it
    grows beyond that length. The two agree where each prompt is longer.

    Args:
      model: a network whose ``rope_scaling`` is ``longrope``, such as a Phi-3 with 128k positions.

    Raises:
      ValueError: for another network.

    Example:
      >>> scaling = positions.RopeScaling(
      ...     "longrope", 4.0, original_max_positions=32, short_factors=(1.0,), long_factors=(3.0,))
      >>> config = LlamaConfig(
      ...     vocab_size=9, emb_dim=4, num_heads=2, num_kv_heads=1, head_dim=2, mlp_dim=8,
      ...     num_layers=1, max_positions=32, rope_scaling=scaling)
      >>> for_long_texts(Llama({}, config)).max_positions
      128
    """
    expected = "a Llama whose rope_scaling is longrope"
    if not isinstance(model, Llama):
        raise fields.error("model", expected, model)
    scaling = model.config.rope_scaling
    if scaling is None or scaling.kind != "longrope":
        raise fields.error("model", expected, None if scaling is None else scaling.kind)
    longest = scaling.extended_positions
    scaling = dataclasses.replace(scaling, long_texts=True)
    config = dataclasses.replace(model.config, rope_scaling=scaling, max_positions=longest)
    return dataclasses.replace(model, config=config)
