"""Gemma 4, text: heads of two sizes, and later layers that read the keys of earlier ones.

The layers are Gemma's, with norms around each part. Local layers, which have the window (sliding
attention), and global ones, which have none (full attention), have heads of their own sizes and
rotary positions of their own. The last layers make no keys and values, and read those of the last
layer of their kind that does (KV sharing). Each layer may have a small embedding of the token as a
further input (per-layer embeddings, PLE). Google DeepMind 2026, "Gemma 4"
(huggingface.co/docs/transformers/model_doc/gemma4).
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping
from typing import Any, ClassVar, Self

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jax.sharding import PartitionSpec

from decoding_jax import fields
from decoding_jax.base import Array
from decoding_jax.models import caches, decoder, layers, llama, positions, shared_keys, view
from decoding_jax.models.attention import Part
from decoding_jax.models.experts import Experts
from decoding_jax.pytrees import pytree

FOLLOWED = ("local_rope_theta", "logit_soft_cap", "num_experts", "experts_per_token")
"""The settings of Llama networks that these follow, of those that are off by default."""


@dataclasses.dataclass(frozen=True)
class Gemma4Config(llama.LlamaConfig):
    """The shape of a Gemma 4 text network: that of a Llama network, and these.

    ``head_dim`` and ``num_kv_heads`` are those of local layers, which have the window, and
    ``rope_theta`` and ``rope_scaling`` those of global layers, which have none.

    Attributes:
      global_head_dim: the size of a head in global layers, an even number.
      num_global_kv_heads: the number of key-value heads there, or None for ``num_kv_heads``.
      local_rope_theta: the base of the rotary frequencies of local layers.
      rotary_fraction: the fraction of the frequencies by which global layers rotate.
      key_is_value: whether global layers use what they project to keys as values too.
      num_kv_layers: the number of first layers that make keys and values, or None for all. The
        others share the keys and values of these (KV sharing).
      wide_mlp: whether the other layers have twice the ``mlp_dim``.
      per_layer_dim: the size of each layer's own embedding of a token (per-layer embeddings, PLE),
        or 0 for none.
      per_layer_vocab_size: the number of rows of these embeddings, or None for ``vocab_size``.
      expert_dim: the size of each expert, where each layer has experts beside its feed-forward
        part, with ``num_experts`` and ``experts_per_token``.

    Raises:
      ValueError: as ``LlamaConfig``; for no window, scanned layers, queries and keys without norms,
        or a scaling that is not linear; if one of these is out of its range; or if a kind of layers
        has no keys to read.
    """

    activation: str = "gelu"
    qk_norm: bool = True
    logits_via_embedding: bool = True
    norm_place: str = "both"
    local_rope_theta: float = fields.static_number(
        "numbers above 0", lambda x: x > 0, default=10_000.0
    )
    rotary_fraction: float = fields.static_number("0 to 1", lambda x: 0 <= x <= 1, default=0.25)
    key_is_value: bool = False
    num_global_kv_heads: int | None = fields.count(default=None)
    num_kv_layers: int | None = fields.count(default=None)
    wide_mlp: bool = False
    per_layer_dim: int = fields.count(0, default=0)
    per_layer_vocab_size: int | None = fields.count(default=None)
    expert_dim: int | None = fields.count(default=None)
    global_head_dim: int = fields.static_number(
        "even numbers above 0", lambda x: x > 0 and x % 2 == 0, kw_only=True
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        llama.refuse_switches(self, FOLLOWED)
        if self.scan_layers:
            expected = "False, because the layers of Gemma 4 have two shapes"
            raise fields.error("scan_layers", expected, True)
        if self.window is None:
            raise fields.error("window", "1 and above", None)
        if not self.qk_norm:
            raise fields.error("qk_norm", "True, because the factor of the logits is 1", False)
        if self.rope_scaling is not None and self.rope_scaling.kind != "linear":
            raise fields.error("rope_scaling", "None or linear", self.rope_scaling.kind)
        if self.num_heads % self.global_kv_heads:
            expected = f"a divisor of num_heads = {self.num_heads}"
            raise fields.error("num_global_kv_heads", expected, self.num_global_kv_heads)
        kinds = [self.is_local(i) for i in range(self.num_layers)]
        if self.num_own and set(kinds) != set(kinds[: self.num_own]):
            expected = "local and global layers among those that make keys and values"
            raise fields.error("num_kv_layers", expected, self.num_kv_layers)

    @property
    def global_kv_heads(self) -> int:
        given = self.num_global_kv_heads
        return self.num_kv_heads if given is None else given

    @property
    def num_own(self) -> int:
        """The number of layers that make keys and values, which are the first ones."""
        given = self.num_layers if self.num_kv_layers is None else self.num_kv_layers
        return min(given, self.num_layers)

    def is_local(self, index: int) -> bool:
        """Whether the layer of this index is local: it has the window."""
        return bool(view.is_local(self.window_pattern, index))

    def of_layer(self, index: int) -> Gemma4Config:
        """The shape whose ``head_dim``, ``num_kv_heads`` and ``mlp_dim`` are those of a layer."""
        twice = self.wide_mlp and index >= self.num_own
        own: dict[str, Any] = {"mlp_dim": 2 * self.mlp_dim if twice else self.mlp_dim}
        if not self.is_local(index):
            own |= {"head_dim": self.global_head_dim, "num_kv_heads": self.global_kv_heads}
        return dataclasses.replace(self, **own)

    def angles(self, position: Array) -> tuple[Any, Any]:
        """The rotations at positions in global layers, and in local ones."""
        radians = positions.frequencies(self.global_head_dim, self.rope_theta, self.rope_scaling)
        turned = int(self.rotary_fraction * self.global_head_dim // 2)
        radians = np.where(np.arange(radians.size) < turned, radians, np.float32(0.0))
        local = positions.rotation(position, self.head_dim, self.local_rope_theta)
        return positions.rotation_at(position, radians), local


class Gemma4Attention(llama.LlamaAttention):
    """Attention whose values are normalised, with keys of its own or of another layer.

    Attributes:
      makes_keys: whether it makes keys and values. Otherwise it has queries alone.
      key_is_value: whether the projection to keys is that to values too.
    """

    scale: float | None = 1.0
    makes_keys: bool = True
    key_is_value: bool = False

    def keys(self, x: Array) -> caches.KeyValue:
        """See ``LlamaAttention.keys``."""
        cfg = self.config
        key = self.key(x)
        value = key if self.key_is_value else self.value(x)
        new = layers.key_value(key, value, cfg.num_kv_heads)
        value = layers.rms_normed(new.value, cfg.norm_epsilon).astype(cfg.dtype)
        return caches.KeyValue(self.key_norm(new.key), value)

    def __call__(
        self, x: Array, layer_cache: Any, angles: tuple[Array, Array]
    ) -> tuple[Array, Any]:
        if self.makes_keys:
            return super().__call__(x, layer_cache, angles)
        parts, stored = layer_cache(None)
        return self.read(x, parts, angles), stored


class Gemma4Layer(llama.LlamaLayer):
    """A layer, whose ``LayerCache`` gives the keys of another layer if it makes none.

    Attributes:
      config: a ``Gemma4Config``.
      index: the index of the layer.
    """

    config: Any
    index: int

    def setup(self) -> None:
        network, index = self.config, self.index
        cfg = network.of_layer(index)
        norm = functools.partial(llama.norm, cfg)
        self.pre_attention_norm, self.post_attention_norm = norm(), norm()
        self.pre_mlp_norm, self.post_mlp_norm = norm(), norm()
        own = index < network.num_own
        same = network.key_is_value and not network.is_local(index)
        self.attention = Gemma4Attention(cfg, makes_keys=own, key_is_value=same)
        self.mlp = llama.LlamaMlp(cfg)
        if cfg.num_experts is not None:
            self.experts = Experts(dataclasses.replace(cfg, mlp_dim=cfg.expert_dim))
            self.router = layers.Dense(cfg.num_experts, cfg.dtype)
            ones = nn.initializers.ones_init()
            self.router_scale = self.param("router_scale", ones, (cfg.emb_dim,))
            self.expert_scale = self.param("expert_scale", ones, (cfg.num_experts,))
            self.post_dense_norm, self.pre_experts_norm = norm(), norm()
            self.post_experts_norm = norm()
        self.layer_scalar = self.param("layer_scalar", nn.initializers.ones_init(), (1,))
        if cfg.per_layer_dim:
            self.per_layer_gate = layers.Dense(cfg.per_layer_dim, cfg.dtype)
            self.per_layer_out = layers.Dense(cfg.emb_dim, cfg.dtype)
            self.per_layer_norm = norm()

    def mlp_part(self, x: Array) -> Array:
        """See ``LlamaLayer.mlp_part``. Experts have another input, and their router a third."""
        cfg = self.config
        if cfg.num_experts is None:
            return super().mlp_part(x)
        factor = self.router_scale.astype(cfg.dtype).reshape((1,) * (x.ndim - 1) + (-1,))
        normed = layers.rms_normed(x, cfg.norm_epsilon).astype(cfg.dtype) * factor
        scores = self.router(normed * jnp.asarray(cfg.emb_dim**-0.5, cfg.dtype))
        y = self.experts(self.pre_experts_norm(x), scores, self.expert_scale)
        dense = self.post_dense_norm(self.mlp(self.pre_mlp_norm(x)))
        return self.post_mlp_norm(dense + self.post_experts_norm(y))

    def __call__(self, x: Array, layer_cache: Any, positions: Any) -> tuple[Array, Any]:
        """Runs the layer; the positions are its angles, and its own embeddings of the tokens."""
        angles, own = positions
        x, stored = self.attended(x, layer_cache, angles)
        x = self.fed_forward(x)
        if own is not None:
            gate = layers.ACTIVATIONS[self.config.activation](self.per_layer_gate(x))
            x += self.per_layer_norm(self.per_layer_out(gate * own))
        return x * self.layer_scalar.astype(x.dtype)[0], stored


class Gemma4Network(llama.LlamaNetwork):
    """The network of ``Gemma4``."""

    config: Gemma4Config
    layer: ClassVar[type[llama.LlamaLayer]] = Gemma4Layer
    of_index: ClassVar[Mapping[str, Any]] = {"index": lambda index: index}

    def setup(self) -> None:
        super().setup()
        cfg = self.config
        if cfg.per_layer_dim:
            rows = cfg.per_layer_vocab_size or cfg.vocab_size
            size = cfg.num_layers * cfg.per_layer_dim
            self.per_layer_token_embedder = layers.embedder(rows, size)
            self.per_layer_projection = layers.Dense(size, cfg.dtype)
            self.per_layer_projection_norm = layers.RMSNorm(cfg.norm_epsilon, cfg.dtype)

    def inputs(self, tokens: Array, position: Array) -> tuple[Array, Any]:
        """See ``DecoderNetwork.inputs``.

        The positions are the angles of global layers, those of local ones, and None or each layer's
        own embeddings ``[B, W, T, N, d]``.
        """
        cfg = self.config
        x = embedded(self.token_embedder.embedding, tokens, cfg.emb_dim, cfg.dtype)
        return x, (*cfg.angles(position), self.per_layer_inputs(tokens, x))

    def per_layer_inputs(self, tokens: Array, x: Array) -> Array | None:
        """Each layer's own embeddings of tokens, mixed with a projection of their embeddings."""
        cfg = self.config
        if not cfg.per_layer_dim:
            return None
        shape = (*tokens.shape, cfg.num_layers, cfg.per_layer_dim)
        table = self.per_layer_token_embedder.embedding
        own = embedded(table, tokens, cfg.per_layer_dim, cfg.dtype).reshape(shape)
        projected = self.per_layer_projection(x) * jnp.asarray(cfg.emb_dim**-0.5, cfg.dtype)
        projected = self.per_layer_projection_norm(projected.reshape(shape))
        return (projected + own) * jnp.asarray(2.0**-0.5, cfg.dtype)

    def positions_of(self, positions: Any, index: Any) -> Any:
        """See ``Gemma4Layer``."""
        for_global, for_local, own = positions
        angles = for_local if self.config.is_local(index) else for_global
        return angles, None if own is None else own[..., index, :]

    def run_layers(
        self,
        tokens: Array,
        position: Array,
        cache_of: decoder.LayerCacheOf,
        *,
        read: Any = None,
        written: Any = None,
        **settings: Any,
    ) -> tuple[decoder.States, caches.Layers]:
        """See ``DecoderNetwork.run_layers``; the cache has the layers that make keys alone."""
        cfg = self.config
        last: dict[bool, list[Part]] = {}  # what the last layer of each kind attended to

        def cache_of_layer(layer: Any, index: Any, *held: Any) -> Any:
            local = cfg.is_local(index)
            if index >= cfg.num_own:
                return lambda new: (last[local], None)
            own = cache_of(layer, index, *held)

            def layer_cache(new: caches.KeyValue) -> tuple[list[Part], caches.KeyValue]:
                last[local], stored = own(new)
                return last[local], stored

            return layer_cache

        none = (None,) * (cfg.num_layers - cfg.num_own)
        read, written = (None if x is None else (*x, *none) for x in (read, written))
        given = {"read": read, "written": written, **settings}
        states, new = super().run_layers(tokens, position, cache_of_layer, **given)
        return states, new[: cfg.num_own]  # type: ignore[return-value]


def embedded(table: Any, tokens: Array, size: int, dtype: str) -> Array:
    """The embeddings of tokens times the root of ``size``, which is rounded to the dtype."""
    return layers.embed(table, tokens, dtype) * jnp.asarray(math.sqrt(size), dtype)


@pytree
@dataclasses.dataclass(frozen=True)
class Gemma4(llama.Llama):
    """A dense Gemma 4 text network with its parameters, a ``LanguageModel``.

    Drafters may read its keys and values (``SupportsSharedKeys``).

    Attributes:
      params: the parameters of ``Gemma4Network``, of any float dtype.
      config: a ``Gemma4Config``.

    Example:
      >>> config = Gemma4Config(
      ...     vocab_size=9, emb_dim=4, num_heads=2, num_kv_heads=1, head_dim=2, global_head_dim=4,
      ...     mlp_dim=8, num_layers=4, max_positions=32, window=16, window_pattern=(True, False),
      ...     num_kv_layers=2)
      >>> def run(key):
      ...     model = Gemma4.init(config, key)
      ...     output, cache = model.prefill(jnp.array([[1, 2]]), jnp.array([2]), lanes=3, slots=5)
      ...     return model.extend(cache, jnp.ones((1, 3, 2), jnp.int32), 0)
      >>> output, cache = jax.eval_shape(run, jax.random.key(0))
      >>> output.logits.shape, [layer.key.shape for layer in cache.slots]
      ((1, 3, 2, 9), [(1, 3, 1, 5, 2), (1, 3, 1, 5, 4)])
    """

    network: ClassVar[type[decoder.DecoderNetwork]] = Gemma4Network
    partition_rules: ClassVar[Mapping[str, PartitionSpec]] = {
        **layers.PARTITION_RULES,
        "*layer_scalar": PartitionSpec(),
        "*router_scale": PartitionSpec(),
        "*expert_scale": PartitionSpec(),
        "*per_layer_*/kernel": PartitionSpec(),
    }

    @property
    def sharded_sizes(self) -> dict[str, int]:
        """See ``sharding.SupportsPartitionRules``."""
        cfg = self.config
        sizes = {**super().sharded_sizes, "num_global_kv_heads": cfg.global_kv_heads}
        rows = cfg.per_layer_vocab_size
        return {**sizes, "per_layer_vocab_size": rows} if cfg.per_layer_dim and rows else sizes

    def for_model_axis(self, size: int) -> Self:
        """See ``Llama.for_model_axis``, for the layers of each kind."""
        cfg, params = self.config, dict(self.params)
        heads = {True: cfg.num_kv_heads, False: cfg.global_kv_heads}
        for i in range(cfg.num_layers):
            name = f"layers_{i}"
            layer, own = llama.repeated_heads(params.get(name, {}), cfg.of_layer(i), size)
            heads[cfg.is_local(i)] = own.num_kv_heads
            if name in params:  # which may be those of a part of the network
                params[name] = layer
        config = dataclasses.replace(
            cfg, num_kv_heads=heads[True], num_global_kv_heads=heads[False]
        )
        return dataclasses.replace(self, params=params, config=config)

    def early_exit(self, num_layers: int) -> Self:
        """See ``DecoderModel.early_exit``."""
        model = super().early_exit(num_layers)
        size = num_layers * self.config.per_layer_dim
        if not size:
            return model
        # The embeddings of all layers are side by side in one table.
        params = dict(model.params)
        for name in ("per_layer_token_embedder", "per_layer_projection"):
            params[name] = jax.tree.map(lambda x: x[:, :size], params[name])
        return dataclasses.replace(model, params=params)

    def shared_keys(
        self, cache: caches.Cache, length: Array, prefix: Any = None
    ) -> shared_keys.SharedKeys:
        """See ``SupportsSharedKeys.shared_keys``: those of the last layer of each kind.

        After a ``prefix`` that all rows share, its keys are read too.
        """
        cfg = self.config
        last = {cfg.is_local(i): i for i in range(cfg.num_own)}
        return shared_keys.of_layers(cache, length, last.get(True), last.get(False), prefix)
