"""Decoder-only networks whose prompts all begin with the same tokens.

Few-shot examples and instructions are the same for every row. Their keys and values are computed
once and stored once, without an axis of rows, and attention reads them as one more part beside a
row's own prompt and its slots, under one softmax. Queries of all rows and lanes read them in one
matrix product a head (Juravsky et al. 2024, "Hydragen: High-Throughput LLM Inference with Shared
Prefixes").
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

from decoding_jax.base import Array, ModelOutput
from decoding_jax.loop import model_calls
from decoding_jax.models import caches, decoder, fixed_shapes
from decoding_jax.ops.jit import jit
from decoding_jax.pytrees import pytree
from decoding_jax.sharding import meshes


@pytree
@dataclasses.dataclass(frozen=True)
class SharedPrefixModel(decoder.NetworkModel):
    """A decoder-only model whose prompts begin with the same F tokens, from ``with_shared_prefix``.

    Prompts are whole: they contain these tokens, so strategies, transforms and drafters see no
    difference. Only the later tokens are computed for each row, and a prompt of P tokens needs
    P - F places in the cache. A row whose prompt does not begin with the tokens has logits that are
    NaN.

    Attributes:
      model: the decoder-only model.
      tokens: int32 ``[F]``, the shared tokens.
      layers: each layer's keys and values ``[1, H, F, d]`` of these tokens; stacked, ``[1, N, H, F,
        d]``.
      hidden: their hidden states, ``[1, 1, F, D]``.
    """

    model: decoder.DecoderModel
    tokens: Array
    layers: caches.Layers = dataclasses.field(metadata={"derived": True})
    hidden: Array = dataclasses.field(metadata={"derived": True})

    config = property(operator.attrgetter("model.config"))
    feature_layers = property(operator.attrgetter("model.feature_layers"))

    def with_features(self, layers: tuple[int, ...]) -> SharedPrefixModel:
        """See ``SupportsFeatures.with_features``. ``prefill`` then runs the shared tokens again."""
        return dataclasses.replace(self, model=self.model.with_features(layers))

    network = property(operator.attrgetter("model.network"))
    max_positions = property(operator.attrgetter("model.max_positions"))

    @property
    def partition_rules(self) -> dict[str, PartitionSpec]:  # type: ignore[override]
        """See ``sharding.SupportsPartitionRules``."""
        shared = {"layers/*": PartitionSpec(meshes.MODEL, None, None), "tokens": PartitionSpec()}
        return {**shared, "hidden": PartitionSpec(), **self.model.partition_rules}

    sharded_sizes = property(operator.attrgetter("model.sharded_sizes"))

    def for_model_axis(self, size: int) -> SharedPrefixModel:
        """See ``Llama.for_model_axis``."""
        if not hasattr(self.model, "for_model_axis"):
            return self
        return with_shared_prefix(self.model.for_model_axis(size), self.tokens)

    def early_exit(self, num_layers: int) -> SharedPrefixModel:
        """See ``DecoderModel.early_exit``: the first layers, after the same prefix."""
        return with_shared_prefix(self.model.early_exit(num_layers), self.tokens)

    @fixed_shapes.in_groups_of_rows
    def prefill(
        self, tokens: Array, length: Array, *, lanes: int, slots: int, with_hidden: bool = False
    ) -> tuple[ModelOutput, caches.Cache]:
        """See ``LanguageModel.prefill``.

        Raises:
          ValueError: if prompts have no room for the shared tokens.
        """
        shared, size = self.tokens.shape[0], tokens.shape[1]
        if size < shared:
            raise ValueError(
                f"prompt: expected at least the {shared} tokens of the shared prefix,"
                f" got {size} tokens"
            )
        rest = tokens[:, shared:]
        if size == shared:  # one place at least, which is padding here
            rest = jnp.zeros((tokens.shape[0], 1), jnp.int32)
        rest_length = jnp.maximum(length - shared, 0)
        last, states, prompt = self.model.run_prompts(
            rest, rest_length, with_hidden=with_hidden, prefix=self.layers
        )
        last = jnp.where((rest_length == 0)[:, None, None, None], self.hidden[:, :, -1:], last)
        begins = (tokens[:, :shared] == self.tokens[None]).all(-1) & (length >= shared)
        logits = jnp.where(begins[:, None, None, None], self.project(last), jnp.nan)
        cache = caches.empty_slots(prompt, rest_length, lanes=lanes, slots=slots)

        def whole(of_prefix: Array, of_rest: Array) -> Array:
            of_prefix = jnp.broadcast_to(of_prefix, (tokens.shape[0], *of_prefix.shape[1:]))
            return jnp.concatenate([of_prefix, of_rest], 2)[:, :, :size]

        features: tuple[Array, ...] = ()
        if self.feature_layers:
            of_prefix = _run_prefix(self.model, self.tokens)[0].features
            features = tuple(map(whole, of_prefix, states.features))
        hidden = whole(self.hidden, states.last) if with_hidden else None
        return ModelOutput(logits, hidden, features), cache

    @fixed_shapes.in_groups_of_lanes
    def extend(
        self,
        cache: caches.Cache,
        tokens: Array,
        start: Array | int,
        visible: Array | None = None,
        position: Array | None = None,
    ) -> tuple[ModelOutput, caches.Cache]:
        """See ``LanguageModel.extend``."""
        if position is not None:
            position = jnp.asarray(position, jnp.int32) - self.tokens.shape[0]
        states, cache = self.apply(
            self.network.extend,
            cache,
            tokens,
            start,
            visible,
            position,
            self.layers,
            features=self.feature_layers,
        )
        return ModelOutput(self.project(states.last), *states), cache

    def shared_keys(self, cache: caches.Cache, length: Array) -> Any:
        """See ``SupportsSharedKeys.shared_keys``; the model has to support it."""
        return model_calls.shared_keys(self.model, cache, length, prefix=self.layers)

    def apply(self, method: Any, *args: Any, **settings: Any) -> Any:
        return self.model.apply(method, *args, **settings)


def with_shared_prefix(model: Any, tokens: Sequence[int] | Array) -> SharedPrefixModel:
    """The same model for prompts that all begin with these tokens, which are run once, here.

    From the same prompts, every strategy decodes the same tokens as with ``model``; float32
    log-probabilities differ by rounding.

    Args:
      model: a decoder-only model of ``decoding_jax.models``, such as a ``Llama``.
      tokens: the F shared tokens, int32 ``[F]`` or a sequence of ids. With ``prefill_chunk``, they
        are run in chunks of that many tokens.

    Raises:
      ValueError: for a model of another kind, for no tokens, for ids outside the vocabulary, or for
        as many as the model has positions.

    Example:
      >>> import jax
      >>> from decoding_jax.models import Llama, LlamaConfig
      >>> config = LlamaConfig(
      ...     vocab_size=9, emb_dim=4, num_heads=2, num_kv_heads=1, head_dim=2, mlp_dim=8,
      ...     num_layers=1, max_positions=32)
      >>> def keys(key):
      ...     model = with_shared_prefix(Llama.init(config, key), [1, 2, 3])
      ...     prompt = jnp.array([[1, 2, 3, 4, 5], [1, 2, 3, 6, 0]])
      ...     output, cache = model.prefill(prompt, jnp.array([5, 4]), lanes=3, slots=5)
      ...     return cache.prompt[0].key, model.layers[0].key
      >>> [x.shape for x in jax.eval_shape(keys, jax.random.key(0))]
      [(2, 1, 2, 2), (1, 1, 3, 2)]
    """
    check_decoder(model)
    ids = np.asarray(tokens)
    limit = model.max_positions
    if ids.ndim != 1 or not ids.size or ids.dtype.kind not in "iu":
        raise ValueError(
            f"tokens: expected a sequence of one token id or more, got {ids.dtype}{list(ids.shape)}"
        )
    if ids.min() < 0 or ids.max() >= model.vocab_size:
        wrong = ids[(ids < 0) | (ids >= model.vocab_size)][0]
        raise ValueError(
            f"tokens: expected ids from 0 to {model.vocab_size - 1}, got the id {wrong}"
        )
    if limit is not None and ids.size >= limit:
        raise ValueError(
            f"tokens: expected fewer than the {limit} positions of the model, got {ids.size}"
        )
    shared = jnp.asarray(ids, jnp.int32)
    return SharedPrefixModel(model, shared, *_run(model, shared))


def prefix_of(model: Any) -> Array | None:
    """The tokens ``[F]`` that all prompts of a model, or of one that it guides, begin with."""
    inner = model if isinstance(model, SharedPrefixModel) else getattr(model, "model", None)
    return inner.tokens if isinstance(inner, SharedPrefixModel) else None


def check_decoder(model: Any) -> None:
    """Refuses a model whose prompts cannot begin with shared tokens.

    Raises:
      ValueError: for a model of another kind than decoder-only, or whose tokens see later ones.
    """
    if not isinstance(model, decoder.DecoderModel):
        raise ValueError(
            "model: expected a decoder-only model of decoding_jax.models with a shared prefix (an "
            f"encoder-decoder's input tokens see the later ones), got a {type(model).__name__}"
        )
    if getattr(model.config, "bidirectional_prompt", False):
        raise ValueError(
            "model: expected one whose tokens do not see later ones with a shared prefix, got one "
            "with bidirectional_prompt"
        )


def _run_prefix(model: decoder.DecoderModel, tokens: Array) -> tuple[decoder.States, caches.Layers]:
    """The hidden states of tokens ``[F]``, and their keys and values."""
    length = jnp.full((1,), tokens.shape[0], jnp.int32)
    _, states, layers = model.run_prompts(tokens[None], length, with_hidden=True)
    return states, layers


def _shared_keys(model: decoder.DecoderModel, tokens: Array) -> tuple[caches.Layers, Array]:
    """The keys and values, and the hidden states, of tokens ``[F]``."""
    states, layers = _run_prefix(model, tokens)
    return layers, states.last


_run = jit(_shared_keys, ())
