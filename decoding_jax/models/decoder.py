"""Decoders: the network of a stack of layers, and the language models of decoder-only networks."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, NamedTuple, Self, TypeVar

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax import lax
from jax.sharding import PartitionSpec

from decoding_jax import fields
from decoding_jax.base import Array, ModelOutput
from decoding_jax.models import caches, fixed_shapes, layers, stack, view
from decoding_jax.models.attention import IMPLEMENTATIONS, Bias, Part
from decoding_jax.models.caches import Cache, KeyValue, Layers

M = TypeVar("M")

LayerCacheOf = Callable[[Any, int | Array, Any, Any], view.LayerCache]
"""``(layer, index, read, written) -> LayerCache``, with the arguments of ``stack.RunLayer``."""


class States(NamedTuple):
    """The hidden states of a network.

    Attributes:
      last: ``[B, W, T, D]``, after the final norm.
      features: those of the layers that were asked for, as ``ModelOutput.features``.
    """

    last: Array
    features: tuple[Array, ...] = ()


@dataclasses.dataclass(frozen=True)
class NetworkConfig:
    """The settings that all networks have.

    Attributes:
      dtype: the dtype of activations and of the cache, ``float32`` or ``bfloat16``.
      scan_layers: whether one layer is compiled and scanned, with parameters stacked over layers. A
        deep network then compiles as fast as a shallow one.
      attention: what computes attention, ``"auto"``, ``"xla"`` or ``"pallas"`` (see
        ``attention_choice.attend``). It changes results by rounding alone.
      reproducible_rows: None, or the number of lanes of a group, see ``models.reproducible``.
      sharded: the settings that the axis ``model`` of a mesh has to divide, or that are None.

    Raises:
      ValueError: for another ``attention``.
    """

    sharded: ClassVar[tuple[str, ...]] = ("num_heads", "mlp_dim", "vocab_size")

    dtype: str = dataclasses.field(default="float32", kw_only=True)
    scan_layers: bool = dataclasses.field(default=False, kw_only=True)
    attention: str = dataclasses.field(default="auto", kw_only=True)
    reproducible_rows: int | None = dataclasses.field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        if self.attention not in IMPLEMENTATIONS:
            expected = "'auto', 'xla' or 'pallas'"
            raise fields.error("attention", expected, self.attention)

    @property
    def position_limit(self) -> int | None:
        """The maximum number of positions of a text, or None without a limit."""
        return getattr(self, "max_positions", None)

    @property
    def sharded_sizes(self) -> dict[str, int]:
        """See ``sharding.SupportsPartitionRules``."""
        sizes = {name: getattr(self, name) for name in self.sharded}
        return {name: size for name, size in sizes.items() if size is not None}


@dataclasses.dataclass(frozen=True)
class DecoderConfig(NetworkConfig):
    """The settings that all decoder-only networks have.

    Attributes:
      prefill_chunk: the number of prompt tokens that run at a time, or None for whole prompts. In
        chunks, the memory that is held besides the cache does not grow with the prompt.

    Raises:
      ValueError: if ``prefill_chunk`` is not positive, or tokens of a prompt see later ones.
    """

    prefill_chunk: int | None = dataclasses.field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        chunk = self.prefill_chunk
        if chunk is not None and getattr(self, "bidirectional_prompt", False):
            raise ValueError(
                "prefill_chunk: expected None with bidirectional_prompt, where each token of a"
                f" prompt sees the later ones, got {chunk}"
            )
        if chunk is not None and (not isinstance(chunk, int) or chunk < 1):
            raise fields.error("prefill_chunk", "None or a positive integer", chunk)


class DecoderNetwork(nn.Module):
    """A stack of layers between an embedding and a projection to the vocabulary.

    A subclass sets up ``token_embedder``, ``layers`` and ``final_norm``, calls this ``setup`` for
    the projection, and defines ``inputs``. A layer takes its input, a ``LayerCache``, and the
    positions as ``inputs`` returns them. In the decoder of an encoder-decoder it also takes the
    ``Part`` of its cross-attention, and has a method ``source`` from the encoder's output to the
    keys and values of that part. An encoder is such a stack too, whose tokens see all others.

    Attributes:
      config: a config with ``vocab_size``, ``num_layers``, ``logits_via_embedding``, ``dtype``,
        ``prefill_chunk`` and ``scan_layers``.
    """

    config: Any

    def setup(self) -> None:
        if not self.config.logits_via_embedding:
            bias = getattr(self.config, "logits_bias", False)
            self.logits_dense = layers.Output(self.config.vocab_size, use_bias=bias)

    @property
    def num_layers(self) -> int:
        return self.config.num_layers

    def inputs(self, tokens: Array, position: Array) -> tuple[Array, Any]:
        """The input ``[B, W, T, D]`` of the first layer, and the positions for every layer.

        Args:
          tokens: int32 ``[B, W, T]``.
          position: int32, broadcastable to ``[B, W, T]``.

        Returns:
          The input, and what the layers need to know of positions, or None.
        """
        raise NotImplementedError

    def positions_of(self, positions: Any, index: int | Array) -> Any:
        """The positions for the layer of this index, from those that ``inputs`` returns."""
        return positions

    def window(self, index: int | Array) -> view.Window:
        """The distance from which the layer of this index sees no earlier key, or None.

        Args:
          index: the index of the layer, an int32 scalar where layers are scanned.
        """
        return None

    def ahead(self, index: int | Array) -> view.Window:
        """The number of later tokens of a prompt that a token sees in this layer; None for all."""
        return 0

    def prompt_biases(
        self, position: Array, size: int, before: int = 0
    ) -> Callable[[Any], Bias | None]:
        """A function from a layer to its position biases in a prompt.

        Args:
          position: int32 ``[b, w, T]``, the positions of the queries.
          size: the number of the prompt's keys.
          before: the number of tokens of a shared prefix before the prompt. Positions are counted
            from the first token after it.
        """
        return lambda layer: None

    def biases(self, seen: view.View, before: int = 0) -> Callable[[Any], view.Biases | None]:
        """A function from a layer to its position biases in an ``extend``.

        Args:
          seen: what the new tokens see.
          before: as for ``prompt_biases``.
        """
        return lambda layer: None

    def source(self, encoded: Array) -> Layers:
        """The keys and values ``[B, H, P, d]`` of the inputs in each layer.

        Args:
          encoded: ``[B, 1, P, D]``, the output of the encoder.
        """

        def run(layer: Any, x: Array, *_: Any) -> tuple[Array, KeyValue]:
            return x, caches.prompt_part(layer.source(x))

        return stack.run_layers(self.layers, run, encoded, self.num_layers)[1]

    def run_layers(
        self,
        tokens: Array,
        position: Array,
        cache_of: LayerCacheOf,
        *,
        source: tuple[Layers, Array] | None = None,
        read: Layers | None = None,
        written: Layers | None = None,
        features: tuple[int, ...] = (),
    ) -> tuple[States, Layers]:
        """Runs all layers and the final norm.

        Args:
          tokens: int32 ``[B, W, T]``.
          position: int32, broadcastable to ``[B, W, T]``.
          cache_of: makes the ``LayerCache`` of each layer.
          source: None, or the keys and values that ``source`` returns, and the lengths ``[B]`` of
            the inputs.
          read: as for ``stack.run_layers``.
          written: as for ``stack.run_layers``.
          features: as for ``SupportsFeatures.with_features``.
        """
        x, positions = self.inputs(tokens, position)
        keys: Any = None
        mask: Any = None
        if source is not None:
            keys, length = source
            mask = view.real_tokens(length, caches.num_keys(keys))

        def run(layer: Any, x: Array, index: Any, both: Any, held: Any) -> tuple[Array, KeyValue]:
            keys, read = both
            cross = () if keys is None else (Part(keys.key, keys.value, mask),)
            layer_cache = cache_of(layer, index, read, held)
            return layer(x, layer_cache, self.positions_of(positions, index), *cross)

        x, new, states = stack.run_layers(
            self.layers,
            run,
            x,
            self.num_layers,
            read=(keys, read),
            written=written,
            features=features,
        )
        last = self.final_norm(x)
        named = zip(features, states, strict=True)
        return States(last, tuple(last if n == self.num_layers else y for n, y in named)), new

    def _after(self, prefix: Layers | None, position: Array) -> tuple[Array, Callable[..., Any]]:
        """The positions of tokens after a shared prefix, and what adds it to a layer's cache.

        Args:
          prefix: None, or the prefix, as for ``prefill``.
          position: int32, broadcastable to ``[B, W, T]``, counted from the first token after it.
        """
        if prefix is None:
            return position, lambda layer, index, layer_cache: layer_cache
        size = caches.num_keys(prefix)
        position = position + size
        bias_of = self.prompt_biases(position, size)

        def after(layer: Any, index: Any, layer_cache: view.LayerCache) -> view.LayerCache:
            return view.after_shared_prefix(
                layer_cache, prefix, index, position, bias_of(layer), window=self.window(index)
            )

        return position, after

    def prefill(
        self,
        tokens: Array,
        length: Array,
        source: tuple[Layers, Array] | None = None,
        prefix: Layers | None = None,
        features: tuple[int, ...] = (),
    ) -> tuple[States, Layers]:
        """Runs whole prompts.

        Args:
          tokens: int32 ``[B, P]``, right-padded; with a prefix, the tokens after it.
          length: int32 ``[B]``.
          source: as for ``run_layers``.
          prefix: None, or each layer's keys and values ``[1, H, F, d]`` of F tokens that all rows
            begin with.
          features: as for ``run_layers``.

        Returns:
          The hidden states ``[B, 1, P, D]``, and each layer's keys and values ``[B, H, P, d]``.
        """
        size = tokens.shape[1]
        position = jnp.arange(size, dtype=jnp.int32)[None, None]
        bias_of = self.prompt_biases(position, size, caches.num_keys(prefix))
        position, after = self._after(prefix, position)

        def cache_of(layer: Any, index: Any, *_: Any) -> view.LayerCache:
            window, ahead = self.window(index), self.ahead(index)
            cache = view.prompt_layer_cache(
                length, size, bias_of(layer), window=window, ahead=ahead
            )
            return after(layer, index, cache)

        prompt = tokens[:, None]
        return self.run_layers(prompt, position, cache_of, source=source, features=features)

    def prefill_chunk(
        self,
        prompt: Layers,
        tokens: Array,
        length: Array,
        first: Array,
        prefix: Layers | None = None,
        features: tuple[int, ...] = (),
    ) -> tuple[States, Layers]:
        """Runs C tokens of causal prompts, after all earlier ones.

        Args:
          prompt: each layer's keys and values ``[B, H, P, d]`` of the earlier tokens.
          tokens: int32 ``[B, C]``.
          length: int32 ``[B]``, the lengths of the whole prompts.
          first: int32 scalar, the position of the first of the tokens in their prompts.
          prefix: as for ``prefill``.
          features: as for ``run_layers``.

        Returns:
          The hidden states ``[B, 1, C, D]``, and ``prompt`` with the tokens.
        """
        position = first + jnp.arange(tokens.shape[1], dtype=jnp.int32)[None, None]
        before = caches.num_keys(prefix)
        bias_of = self.prompt_biases(position, caches.num_keys(prompt), before)
        after_all, after = self._after(prefix, position)

        def cache_of(layer: Any, index: Any, _: None, held: KeyValue) -> view.LayerCache:
            cache = view.chunk_layer_cache(
                held,
                length,
                position,
                bias_of(layer),
                stack.stack_index(index),
                window=self.window(index),
            )
            return after(layer, index, cache)

        piece = tokens[:, None]
        return self.run_layers(piece, after_all, cache_of, written=prompt, features=features)

    def extend(
        self,
        cache: Cache,
        tokens: Array,
        start: Array | int,
        visible: Array | None = None,
        position: Array | None = None,
        prefix: Layers | None = None,
        features: tuple[int, ...] = (),
    ) -> tuple[States, Cache]:
        """Runs the new tokens ``[B, W, T]``; see ``LanguageModel.extend``.

        After a ``prefix``, as for ``prefill``, positions are counted from the first token after it.

        Returns:
          The hidden states ``[B, W, T, D]``, and the cache with the new tokens.
        """
        seen, cache = view.view_of(cache, tokens.shape[-1], start, visible, position)
        bias_of = self.biases(seen, caches.num_keys(prefix))
        after_all, after = self._after(prefix, seen.position)

        def cache_of(layer: Any, index: Any, prompt: KeyValue, slots: KeyValue) -> view.LayerCache:
            layer_cache = view.slot_layer_cache(
                prompt,
                slots,
                seen,
                start,
                bias_of(layer),
                stack.stack_index(index),
                window=self.window(index),
            )
            return after(layer, index, layer_cache)

        held = {"source": cache.source, "read": cache.prompt, "written": cache.slots}
        states, slots = self.run_layers(tokens, after_all, cache_of, **held, features=features)
        return states, cache._replace(slots=slots)

    def project(self, hidden: Array) -> Array:
        """Projects hidden states ``[..., D]`` to float32 logits ``[..., V]``."""
        if not self.config.logits_via_embedding:
            return self.logits_dense(hidden)
        return layers.vocabulary_logits(hidden, self.token_embedder.embedding.T)

    def __call__(self, tokens: Array, length: Array) -> Array:
        """The logits ``[B, P, V]`` after each of ``tokens [B, P]``."""
        return self.project(self.prefill(tokens, length)[0].last)[:, 0]


class DecoderShape:
    """What follows from the ``config`` of a model with a decoder, with an encoder or without one.

    A subclass is a dataclass with ``params`` and ``config``.
    """

    params: Any
    config: Any
    partition_rules: ClassVar[Mapping[str, PartitionSpec]] = layers.PARTITION_RULES

    @property
    def vocab_size(self) -> int:
        return self.config.vocab_size

    @property
    def num_layers(self) -> int:
        """The number of layers of the decoder."""
        return getattr(self.config, "num_layers", None) or self.config.num_decoder_layers

    @property
    def sharded_sizes(self) -> dict[str, int]:
        """See ``sharding.SupportsPartitionRules``."""
        return self.config.sharded_sizes

    def early_exit(self, num_layers: int) -> Self:
        """The same model with the first layers of its decoder, its final norm and its projection.

        It shares the weights, and can draft for the full model in speculative decoding. Its
        drafts are accepted more often if the model was trained for early exit (Elhoushi et al.
        2024, "LayerSkip: Enabling Early Exit Inference and Self-Speculative Decoding").

        Args:
          num_layers: the number of decoder layers to keep, from 1 to the network's number.

        Raises:
          ValueError: for another number of layers.
        """
        whole = self.params
        params = stack.first_layers(whole.get("decoder", whole), num_layers, self.num_layers)
        params = {**whole, "decoder": params} if "decoder" in whole else params
        # The config of a T5Gemma is that of its decoder, and its encoder's is a part of it.
        name = "num_layers" if hasattr(self.config, "num_layers") else "num_decoder_layers"
        config = dataclasses.replace(self.config, **{name: num_layers})
        return dataclasses.replace(self, params=params, config=config)  # type: ignore[type-var]


class NetworkModel(DecoderShape):
    """The methods of a ``LanguageModel`` that only call its network or move its cache.

    A subclass has ``network``, the class of the network, ``params`` and ``config``, and defines
    ``prefill``.
    """

    network: ClassVar[Any]
    feature_layers: tuple[int, ...]
    ragged = True
    tree = True
    widens = True

    @property
    def max_positions(self) -> int | None:
        """See ``LanguageModel``."""
        return self.config.position_limit

    def apply(self, method: Any, *args: Any, **settings: Any) -> Any:
        """Calls a method of the network."""
        network, variables = self.network(self.config), {"params": self.params}
        return network.apply(variables, *args, method=method, **settings)

    def with_features(self, layers: tuple[int, ...]) -> Self:
        """See ``SupportsFeatures.with_features``.

        Raises:
          ValueError: for a number outside 0 to that of the layers.
        """
        layers = fields.as_layers(layers, self.num_layers)
        return dataclasses.replace(self, feature_layers=layers)  # type: ignore[type-var]

    @fixed_shapes.in_groups_of_lanes
    def extend(
        self,
        cache: Cache,
        tokens: Array,
        start: Array | int,
        visible: Array | None = None,
        position: Array | None = None,
    ) -> tuple[ModelOutput, Cache]:
        """See ``LanguageModel.extend``."""
        new = cache, tokens, start, visible, position
        states, cache = self.apply(self.network.extend, *new, features=self.feature_layers)
        return ModelOutput(self.project(states.last), *states), cache

    @fixed_shapes.in_groups
    def project(self, hidden: Array) -> Array:
        """See ``SupportsProject.project``."""
        return self.apply(self.network.project, hidden)

    def keep(self, cache: Cache, source: Array, start: Array | int) -> Cache:
        """See ``SupportsKeep.keep``."""
        return caches.keep(cache, source, start)

    def select(self, cache: Cache, lanes: Array) -> Cache:
        """See ``SupportsSelect.select``."""
        return caches.select(cache, lanes)


@dataclasses.dataclass(frozen=True)
class DecoderModel(NetworkModel):
    """A decoder-only network with its parameters, a ``LanguageModel``.

    It has ``keep``, ``select`` and ``project`` too. A subclass defines ``network``, and is
    registered as a pytree.

    Attributes:
      params: the parameters of the network, of any float dtype.
      config: the shape of the network.
      feature_layers: as in ``with_features``.
    """

    params: Any
    config: Any = fields.field(static=True)
    feature_layers: tuple[int, ...] = fields.field(static=True, default=())

    network: ClassVar[type[DecoderNetwork]]

    @classmethod
    def init(cls, config: Any, key: Array) -> Self:
        """A network with random parameters (float32)."""
        one = jnp.ones((1, 1), jnp.int32)
        return cls(cls.network(config).init(key, one, one[0])["params"], config)

    @fixed_shapes.in_groups_of_rows
    def prefill(
        self, tokens: Array, length: Array, *, lanes: int, slots: int, with_hidden: bool = False
    ) -> tuple[ModelOutput, Cache]:
        """See ``LanguageModel.prefill``."""
        last, states, prompt = self.run_prompts(tokens, length, with_hidden=with_hidden)
        cache = caches.empty_slots(prompt, length, lanes=lanes, slots=slots)
        hidden = states.last if with_hidden else None
        return ModelOutput(self.project(last), hidden, states.features), cache

    def run_prompts(
        self,
        tokens: Array,
        length: Array,
        *,
        with_hidden: bool = False,
        prefix: Layers | None = None,
    ) -> tuple[Array, States, Layers]:
        """Runs whole prompts, ``config.prefill_chunk`` tokens at a time if it is set.

        Args:
          tokens: int32 ``[B, P]``, right-padded; with a prefix, the tokens after it.
          length: int32 ``[B]``.
          with_hidden: whether the hidden states of all tokens are asked for.
          prefix: as for ``DecoderNetwork.prefill``.

        Returns:
          The hidden states ``[B, 1, 1, D]`` of the last real tokens; those of all tokens,
          ``[B, 1, P, D]``, where ``last`` is undefined without ``with_hidden``; and the keys and
          values.
        """
        size, chunk = tokens.shape[1], self.config.prefill_chunk
        run_all = functools.partial(
            self.apply, self.network.prefill, prefix=prefix, features=self.feature_layers
        )
        if chunk is None or size <= chunk:
            states, prompt = run_all(tokens, length)
            return layers.last_real(states.last, length), states, prompt
        shapes, held = jax.eval_shape(run_all, tokens[:, :chunk], length)
        prompt = jax.tree.map(
            lambda x: jnp.zeros((*x.shape[:-2], size, x.shape[-1]), x.dtype), held
        )

        def places(x: Any, count: int) -> Array:
            return jnp.zeros((*x.shape[:2], count, x.shape[3]), x.dtype)

        kept = States(
            places(shapes.last, size if with_hidden else 1),
            tuple(places(x, size) for x in shapes.features),
        )
        end = jnp.clip(length - 1, 0, size - 1)

        def run(index: Array, state: tuple[Any, States]) -> tuple[Any, States]:
            prompt, kept = state
            first = jnp.minimum(index * chunk, size - chunk)  # the last chunk overlaps
            piece = lax.dynamic_slice_in_dim(tokens, first, chunk, 1)
            states, prompt = self.apply(
                self.network.prefill_chunk,
                prompt,
                piece,
                length,
                first,
                prefix,
                features=self.feature_layers,
            )

            def put(all_states: Array, new: Array) -> Array:
                return lax.dynamic_update_slice_in_dim(all_states, new, first, 2)

            features = tuple(map(put, kept.features, states.features))
            if with_hidden:
                return prompt, States(put(kept.last, states.last), features)
            here = ((first <= end) & (end < first + chunk))[:, None, None, None]
            last = layers.last_real(states.last, length - first)
            return prompt, States(jnp.where(here, last, kept.last), features)

        # Chunks of nothing but padding are left out.
        prompt, kept = lax.fori_loop(0, end.max() // chunk + 1, run, (prompt, kept))
        last = layers.last_real(kept.last, length) if with_hidden else kept.last
        return last, kept, prompt


def with_prefill_chunk(model: M, chunk: int) -> M:
    """The same model, whose prompts run ``chunk`` tokens at a time.

    Raises:
      ValueError: for an encoder-decoder, or a number that the model's config refuses.
    """
    if not isinstance(model, DecoderModel):
        raise ValueError(
            f"prefill_chunk: expected None for a {type(model).__name__}, because each input token"
            f" of an encoder-decoder sees the later ones, got {chunk}"
        )
    return dataclasses.replace(model, config=dataclasses.replace(model.config, prefill_chunk=chunk))


def with_attention(model: Any, implementation: str) -> Any:
    """The same network with another way of computing attention, see ``NetworkConfig.attention``.

    Raises:
      ValueError: for a way that is not known.
    """
    config = dataclasses.replace(model.config, attention=implementation)
    if isinstance(encoder := getattr(config, "encoder", None), NetworkConfig):
        encoder = dataclasses.replace(encoder, attention=implementation)
        config = dataclasses.replace(config, encoder=encoder)
    return dataclasses.replace(model, config=config)
