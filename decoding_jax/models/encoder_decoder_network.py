"""The base class of encoder-decoder networks, and the layers of their decoders."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
from flax import linen as nn

from decoding_jax.base import Array
from decoding_jax.models.cache import Cache, KeyValue, Layers, num_keys, prompt_part
from decoding_jax.models.scores import Bias, Part
from decoding_jax.models.stack import run_layers, stack_index
from decoding_jax.models.view import (
    Biases,
    LayerCache,
    View,
    prompt_layer_cache,
    slot_layer_cache,
    view_of,
)

LayerCacheOf = Callable[[Any, int | Array, Any, Any], LayerCache]
"""``(layer, index, prompt, slots) -> LayerCache``, with the arguments of ``stack.RunLayer``."""


def source_mask(length: Array, size: int) -> Array:
    """Which of ``size`` inputs are real, bool ``[B, 1, 1, P]``, for lengths ``[B]``."""
    index = jnp.arange(size, dtype=jnp.int32)
    return (index[None] < length[:, None])[:, None, None]


def cross_attention_keys(layer: Any, encoded: Array) -> KeyValue:
    """The keys and values of a layer's ``encoder_decoder_attention``."""
    return layer.encoder_decoder_attention.keys(encoded)


def source_keys(
    layers: Any,
    encoded: Array,
    num_layers: int,
    keys_of: Callable[[Any, Array], KeyValue] = cross_attention_keys,
) -> Layers:
    """The keys and values ``[B, H, P, d]`` of the inputs in each layer.

    Args:
      layers: the layers of the decoder, from ``stack.make_layers``.
      encoded: ``[B, 1, P, D]``, the output of the encoder.
      num_layers: the number of layers.
      keys_of: the keys and values of a layer, from the layer and ``encoded``.
    """

    def run(layer: Any, x: Array, *_: Any) -> tuple[Array, KeyValue]:
        return x, prompt_part(keys_of(layer, x))

    return run_layers(layers, run, encoded, num_layers)[1]


def read_with_source(
    layers: Any, source: Layers | None, prompt: Layers | None, num_layers: int
) -> Any:
    """Pairs of each layer's inputs and prompt, either of which may be None, for ``run_layers``."""
    if not isinstance(layers, Sequence):
        return source, prompt
    return [tuple(x if x is None else x[i] for x in (source, prompt)) for i in range(num_layers)]


def run_decoder_layers(
    layers: Any,
    x: Array,
    cache_of: LayerCacheOf,
    source: Layers,
    source_length: Array,
    num_layers: int,
    prompt: Layers | None = None,
    slots: Layers | None = None,
) -> tuple[Array, Layers]:
    """Runs the layers of a decoder.

    Args:
      layers: from ``stack.make_layers``. A layer takes its input, a ``LayerCache``, and the
        ``Part`` of its cross-attention.
      x: ``[B, W, T, D]``.
      cache_of: ``(layer, index, prompt, slots) -> LayerCache``.
      source: from ``source_keys``.
      source_length: int32 ``[B]``.
      num_layers: the number of layers.
      prompt: None in a prefill; else the prompt's keys and values.
      slots: None in a prefill; else those of the slots.
    """
    mask = source_mask(source_length, num_keys(source))

    def run(layer: Any, x: Array, index: Any, read: Any, written: Any) -> tuple[Array, Any]:
        inputs, prompt = read
        layer_cache = cache_of(layer, index, prompt, written)
        return layer(x, layer_cache, Part(inputs.key, inputs.value, mask))

    read = read_with_source(layers, source, prompt, num_layers)
    return run_layers(layers, run, x, num_layers, read=read, written=slots)


class EncoderDecoderNetwork(nn.Module):
    """An encoder, and a decoder that attends to its output.

    A subclass sets up ``encoder``, called with ``x [B, 1, P, D]`` and the lengths, and ``decoder``,
    called with the arguments of ``run_decoder_layers`` but the layers and their number, and with
    a method ``source`` from the encoder's output to ``source_keys``. It defines ``inputs`` and
    ``project``.

    Attributes:
      config: a config with ``vocab_size``, ``num_decoder_layers``, ``dtype`` and ``scan_layers``.
    """

    config: Any

    def inputs(self, tokens: Array, position: Array) -> Array:
        """The input ``[B, W, T, D]`` of the decoder's first layer.

        Args:
          tokens: int32 ``[B, W, T]``.
          position: int32, broadcastable to ``[B, W, T]``.
        """
        raise NotImplementedError

    def source_inputs(self, tokens: Array, position: Array) -> Array:
        """The input ``[B, 1, P, D]`` of the encoder's first layer; as ``inputs`` unless defined."""
        return self.inputs(tokens, position)

    def prompt_biases(self, position: Array, size: int) -> Callable[[Any], Bias | None]:
        """A function from a layer to its position biases in a prompt of ``size`` tokens."""
        return lambda layer: None

    def biases(self, view: View) -> Callable[[Any], Biases | None]:
        """A function from a layer to its position biases in an ``extend``."""
        return lambda layer: None

    def project(self, hidden: Array) -> Array:
        """Projects hidden states ``[..., D]`` to float32 logits ``[..., V]``."""
        raise NotImplementedError

    def encode(self, tokens: Array, length: Array) -> Layers:
        """Runs the encoder.

        Args:
          tokens: int32 ``[B, P]``, right-padded.
          length: int32 ``[B]``.

        Returns:
          The keys and values ``[B, H, P, d]`` of each decoder layer's cross-attention.
        """
        position = jnp.arange(tokens.shape[1], dtype=jnp.int32)[None, None]
        x = self.source_inputs(tokens[:, None], position)
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
        size = tokens.shape[1]
        position = jnp.arange(size, dtype=jnp.int32)[None, None]
        bias_of = self.prompt_biases(position, size)

        def cache_of(layer: Any, *_: Any) -> LayerCache:
            return prompt_layer_cache(length, size, bias_of(layer))

        return self.decoder(self.inputs(tokens[:, None], position), cache_of, source, source_length)

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
        bias_of = self.biases(view)

        def cache_of(layer: Any, index: Any, prompt: KeyValue, slots: KeyValue) -> LayerCache:
            bias = bias_of(layer)
            return slot_layer_cache(prompt, slots, view, start, bias, stack_index(index))

        source, source_length = cache.source
        x = self.inputs(tokens, view.position)
        hidden, slots = self.decoder(x, cache_of, source, source_length, cache.prompt, cache.slots)
        return hidden, cache._replace(slots=slots)

    def __call__(self, source: Array, source_length: Array, tokens: Array, length: Array) -> Array:
        """The logits ``[B, P, V]`` after each of ``tokens [B, P]``, by teacher forcing."""
        hidden, _ = self.prefill(tokens, length, self.encode(source, source_length), source_length)
        return self.project(hidden)[:, 0]
