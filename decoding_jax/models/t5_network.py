"""The T5 encoder-decoder network in Flax, with the parameter names of T5X.

It covers T5 1.0 (ungated, tied output), and T5 1.1, Flan-T5, mT5 and ByT5 (gated, untied output).
The parameters have the names of T5X's ``examples/t5`` without layer scanning.

Raffel et al. 2020, "Exploring the Limits of Transfer Learning"; Shazeer 2020, "GLU Variants Improve
Transformer".
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from flax import linen as nn

from decoding_jax.base import Array
from decoding_jax.models.cache import Cache, KeyValue, Layers, num_keys, prompt_part
from decoding_jax.models.layers import (
    Output,
    embed,
    vocabulary_logits,
)
from decoding_jax.models.relative import RelativePositionBiases
from decoding_jax.models.scores import Part
from decoding_jax.models.stack import make_layers, run_layers, stack_index
from decoding_jax.models.t5_layers import DecoderLayer, EncoderLayer, Layer, T5Config
from decoding_jax.models.view import (
    Biases,
    LayerCache,
    prompt_layer_cache,
    slot_layer_cache,
    view_of,
)


class Stack(Layer):
    """Layers and their relative position biases, shared or of each layer."""

    def bias_of(self, bias: Callable[[RelativePositionBiases], Any]) -> Callable[[Any], Any]:
        """A function of a layer that returns ``bias`` of its position biases.

        It is computed once if all layers share the biases.
        """
        if self.config.biases_per_layer:
            return lambda layer: bias(layer.relpos_bias)
        shared = bias(self.relpos_bias)
        return lambda _: shared


class Encoder(Stack):
    def setup(self) -> None:
        cfg = self.config
        if not cfg.biases_per_layer:
            self.relpos_bias = self.biases(bidirectional=True)
        self.layers = make_layers(
            lambda: EncoderLayer(cfg, self.training),
            cfg.num_encoder_layers,
            scanned=cfg.scan_layers,
        )
        self.encoder_norm = self.norm()
        self.drop = self.dropout()

    def __call__(self, x: Array, length: Array) -> Array:
        index = jnp.arange(x.shape[2], dtype=jnp.int32)
        mask = (index[None] < length[:, None])[:, None, None]
        x = self.drop(x)
        bias_of = self.bias_of(lambda b: b.of_keys(index[None, None], len(index)))

        def run(layer: Any, x: Array, *_: Any) -> tuple[Array, None]:
            return layer(x, mask, index[None, None], bias_of(layer)), None

        x, _ = run_layers(self.layers, run, x, self.config.num_encoder_layers)
        return self.drop(self.encoder_norm(x))


class Decoder(Stack):
    def setup(self) -> None:
        cfg = self.config
        if not cfg.biases_per_layer:
            self.relpos_bias = self.biases(bidirectional=False)
        self.layers = make_layers(
            lambda: DecoderLayer(cfg, self.training),
            cfg.num_decoder_layers,
            scanned=cfg.scan_layers,
        )
        self.decoder_norm = self.norm()
        self.drop = self.dropout()
        if not cfg.logits_via_embedding:
            self.logits_dense = Output(cfg.vocab_size)

    def source(self, encoded: Array) -> Layers:
        """The keys and values of each layer's cross-attention."""

        def run(layer: Any, x: Array, *_: Any) -> tuple[Array, KeyValue]:
            return x, prompt_part(layer.encoder_decoder_attention.keys(x))

        return run_layers(self.layers, run, encoded, self.config.num_decoder_layers)[1]

    def __call__(
        self,
        x: Array,
        cache_of: Callable[..., LayerCache],
        source: Layers,
        source_length: Array,
        prompt: Layers | None = None,
        slots: Layers | None = None,
    ) -> tuple[Array, Layers]:
        """Runs all layers.

        Args:
          x: ``[B, W, T, D]``.
          cache_of: ``(layer, index, prompt, slots) -> LayerCache``.
          source: from ``source``.
          source_length: int32 ``[B]``.
          prompt: None in a prefill; else the prompt's keys and values.
          slots: None in a prefill; else those of the slots.
        """
        index = jnp.arange(num_keys(source), dtype=jnp.int32)
        mask = (index[None] < source_length[:, None])[:, None, None]

        def run(layer: Any, x: Array, index: Any, read: Any, written: Any) -> tuple[Array, Any]:
            inputs, prompt = read
            layer_cache = cache_of(layer, index, prompt, written)
            return layer(x, layer_cache, Part(inputs.key, inputs.value, mask))

        read: Any = (source, prompt)
        if not self.config.scan_layers:
            read = [(kv, None if prompt is None else prompt[i]) for i, kv in enumerate(source)]
        num_layers = self.config.num_decoder_layers
        x, new = run_layers(self.layers, run, self.drop(x), num_layers, read=read, written=slots)
        return self.drop(self.decoder_norm(x)), new


class T5Network(nn.Module):
    """The network of ``T5`` and ``BoundT5``.

    Attributes:
      config: a ``T5Config``.
      training: whether dropout is on.
    """

    config: T5Config
    training: bool = False

    def setup(self) -> None:
        cfg = self.config
        self.token_embedder = nn.Embed(
            cfg.vocab_size, cfg.emb_dim, embedding_init=nn.initializers.normal(1.0)
        )
        self.encoder = Encoder(cfg, self.training)
        self.decoder = Decoder(cfg, self.training)

    def encode(self, tokens: Array, length: Array) -> Layers:
        """Runs the encoder.

        Args:
          tokens: int32 ``[B, P]``, right-padded.
          length: int32 ``[B]``.

        Returns:
          The keys and values ``[B, H, P, d]`` of each decoder layer's cross-attention.
        """
        x = embed(self.token_embedder.embedding, tokens, self.config.dtype)[:, None]
        return self.decoder.source(self.encoder(x, length))

    def prefill(
        self, tokens: Array, length: Array, source: Layers, source_length: Array
    ) -> tuple[Array, Layers]:
        """Runs the decoder on whole prompts.

        Args:
          tokens: int32 ``[B, P]``, right-padded.
          length: int32 ``[B]``.
          source: from ``encode``.
          source_length: int32 ``[B]``, the lengths of the encoder's inputs.

        Returns:
          The hidden states ``[B, 1, P, D]``, and each layer's keys and values ``[B, H, P, d]``.
        """
        index = jnp.arange(tokens.shape[1], dtype=jnp.int32)
        bias_of = self.decoder.bias_of(lambda b: b.of_keys(index[None, None], len(index)))
        x = embed(self.token_embedder.embedding, tokens, self.config.dtype)[:, None]

        def cache_of(layer: Any, *_: Any) -> LayerCache:
            return prompt_layer_cache(length, len(index), bias_of(layer))

        return self.decoder(x, cache_of, source, source_length)

    def extend(
        self,
        cache: Cache,
        tokens: Array,
        start: Array | int,
        visible: Array | None = None,
        position: Array | None = None,
    ) -> tuple[Array, Cache]:
        """Runs the decoder on the new tokens ``[B, W, T]``; see ``LanguageModel.extend``.

        Returns:
          The hidden states ``[B, W, T, D]``, and the cache with the new tokens.
        """
        view, cache = view_of(cache, tokens.shape[-1], start, visible, position)
        zero = jnp.zeros((1, 1, 1, 1), jnp.int32)
        size = view.prompt_mask.shape[-1]
        bias_of = self.decoder.bias_of(
            lambda b: Biases(b.of_keys(view.position, size), b(view.slot_distance), b(zero))
        )

        def cache_of(layer: Any, index: Any, prompt: KeyValue, slots: KeyValue) -> LayerCache:
            bias = bias_of(layer)
            return slot_layer_cache(prompt, slots, view, start, bias, stack_index(index))

        source, source_length = cache.source
        x = embed(self.token_embedder.embedding, tokens, self.config.dtype)
        hidden, slots = self.decoder(x, cache_of, source, source_length, cache.prompt, cache.slots)
        return hidden, cache._replace(slots=slots)

    def project(self, hidden: Array) -> Array:
        """Projects hidden states ``[..., D]`` to float32 logits ``[..., V]``."""
        cfg = self.config
        if not cfg.logits_via_embedding:
            return self.decoder.logits_dense(hidden)
        x = hidden.astype(jnp.float32) / math.sqrt(cfg.emb_dim)
        return vocabulary_logits(x, self.token_embedder.embedding.T)

    def __call__(self, source: Array, source_length: Array, tokens: Array, length: Array) -> Array:
        """The logits ``[B, P, V]`` after each of ``tokens [B, P]``, by teacher forcing."""
        hidden, _ = self.prefill(tokens, length, self.encode(source, source_length), source_length)
        return self.project(hidden)[:, 0]
