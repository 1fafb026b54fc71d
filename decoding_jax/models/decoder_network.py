"""The base class of decoder-only networks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from flax import linen as nn

from decoding_jax.base import Array
from decoding_jax.models.cache import Cache, KeyValue, Layers, num_keys
from decoding_jax.models.encoder_decoder_network import read_with_source, source_mask
from decoding_jax.models.layers import Output, vocabulary_logits
from decoding_jax.models.scores import Bias, Part
from decoding_jax.models.stack import run_layers, stack_index
from decoding_jax.models.view import (
    Biases,
    LayerCache,
    View,
    after_shared_prefix,
    chunk_layer_cache,
    prompt_layer_cache,
    slot_layer_cache,
    view_of,
)

LayerCacheOf = Callable[[int | Array, Any, Any], LayerCache]
"""``(index, read, written) -> LayerCache``, with the arguments of ``stack.RunLayer``."""


class DecoderNetwork(nn.Module):
    """A stack of decoder layers between an embedding and a projection to the vocabulary.

    A subclass sets up ``token_embedder``, ``layers`` and ``final_norm``, calls this ``setup`` for
    the projection, and defines ``inputs``. A layer takes its input, a ``LayerCache``, and the
    positions as ``inputs`` returns them; and in the decoder of an encoder-decoder, the ``Part`` of
    its cross-attention.

    Attributes:
      config: a config with ``vocab_size``, ``num_layers``, ``logits_via_embedding``, ``dtype``,
        ``prefill_chunk`` and ``scan_layers``.
    """

    config: Any

    def setup(self) -> None:
        if not self.config.logits_via_embedding:
            self.logits_dense = Output(self.config.vocab_size)

    def inputs(self, tokens: Array, position: Array) -> tuple[Array, Any]:
        """The input ``[B, W, T, D]`` of the first layer, and the positions for every layer.

        Args:
          tokens: int32 ``[B, W, T]``.
          position: int32, broadcastable to ``[B, W, T]``.

        Returns:
          The input, and the data on positions that the layers need, or None.
        """
        raise NotImplementedError

    def positions_of(self, positions: Any, index: int | Array) -> Any:
        """The data on positions that the layer of this index needs, from those of ``inputs``."""
        return positions

    def window(self, index: int | Array) -> int | Array | None:
        """The distance from which the layer of this index sees no key, or None.

        Args:
          index: the index of the layer, an int32 scalar where layers are scanned.
        """
        return None

    def run_layers(
        self,
        tokens: Array,
        position: Array,
        cache_of: LayerCacheOf,
        *,
        source: tuple[Layers, Array] | None = None,
        read: Layers | None = None,
        written: Layers | None = None,
    ) -> tuple[Array, Layers]:
        """Runs all layers and the final norm.

        Args:
          tokens: int32 ``[B, W, T]``.
          position: int32, broadcastable to ``[B, W, T]``.
          cache_of: ``(index, read, written) -> LayerCache``, as in ``models.stack``.
          source: None, or the keys and values of each layer's cross-attention and the lengths
            ``[B]`` of the inputs. A layer then takes a ``Part`` of them too.
          read: as in ``models.stack.run_layers``.
          written: as in ``models.stack.run_layers``.
        """
        x, positions = self.inputs(tokens, position)
        num_layers = self.config.num_layers
        keys: Any = None
        mask: Any = None
        if source is not None:
            keys, length = source
            mask = source_mask(length, num_keys(keys))
        both = read_with_source(self.layers, keys, read, num_layers)

        def run(layer: Any, x: Array, index: Any, both: Any, held: Any) -> tuple[Array, KeyValue]:
            keys, read = both
            cross = () if keys is None else (Part(keys.key, keys.value, mask),)
            layer_cache = cache_of(index, read, held)
            return layer(x, layer_cache, self.positions_of(positions, index), *cross)

        x, new = run_layers(self.layers, run, x, num_layers, read=both, written=written)
        return self.final_norm(x), new

    def ahead(self, index: int | Array) -> int | Array | None:
        """The number of later tokens that a token of a prompt sees in a layer, or None for all.

        Args:
          index: as for ``window``.
        """
        return 0

    def _after(
        self, prefix: Layers | None, position: Array
    ) -> tuple[Array, Callable[[int | Array, LayerCache], LayerCache]]:
        """The positions of tokens after a shared prefix, and what adds it to a layer's cache.

        Args:
          prefix: None, or the prefix, as for ``prefill``.
          position: int32, broadcastable to ``[B, W, T]``, counted from the first token after it.
        """
        if prefix is None:
            return position, lambda _, layer_cache: layer_cache
        size = num_keys(prefix)
        position = position + size
        bias = self.prompt_bias(position, size)

        def after(index: int | Array, layer_cache: LayerCache) -> LayerCache:
            window = self.window(index)
            return after_shared_prefix(layer_cache, prefix, index, position, bias, window=window)

        return position, after

    def prefill(
        self,
        tokens: Array,
        length: Array,
        source: tuple[Layers, Array] | None = None,
        prefix: Layers | None = None,
    ) -> tuple[Array, Layers]:
        """Runs whole prompts.

        Args:
          tokens: int32 ``[B, P]``, right-padded; with a prefix, the tokens after it.
          length: int32 ``[B]``.
          source: as for ``run_layers``.
          prefix: None, or each layer's keys and values ``[1, H, F, d]`` of F tokens that all rows
            begin with.

        Returns:
          The hidden states ``[B, 1, P, D]``, and each layer's keys and values ``[B, H, P, d]``.
        """
        size = tokens.shape[1]
        position = jnp.arange(size, dtype=jnp.int32)[None, None]
        bias = self.prompt_bias(position, size)
        position, after = self._after(prefix, position)

        def cache_of(index: int | Array, *_: Any) -> LayerCache:
            window, ahead = self.window(index), self.ahead(index)
            cache = prompt_layer_cache(length, size, bias, window=window, ahead=ahead)
            return after(index, cache)

        return self.run_layers(tokens[:, None], position, cache_of, source=source)

    def prompt_bias(self, position: Array, size: int) -> Bias | None:
        """Position biases of queries at ``position [b, w, T]`` and a prompt of ``size`` keys."""
        return None

    def biases(self, view: View) -> Biases | None:
        """Position biases of the new tokens of an ``extend``."""
        return None

    def prefill_chunk(
        self,
        prompt: Layers,
        tokens: Array,
        length: Array,
        first: Array,
        prefix: Layers | None = None,
    ) -> tuple[Array, Layers]:
        """Runs C tokens of causal prompts, after all earlier ones.

        Args:
          prompt: each layer's keys and values ``[B, H, P, d]`` of the earlier tokens.
          tokens: int32 ``[B, C]``.
          length: int32 ``[B]``, the lengths of the whole prompts.
          first: int32 scalar, the position of the first of the tokens in their prompts.
          prefix: as for ``prefill``.

        Returns:
          The hidden states ``[B, 1, C, D]``, and ``prompt`` with the tokens.
        """
        position = first + jnp.arange(tokens.shape[1], dtype=jnp.int32)[None, None]
        bias = self.prompt_bias(position, num_keys(prompt))
        after_all, after = self._after(prefix, position)

        def cache_of(index: int | Array, _: None, held: KeyValue) -> LayerCache:
            layer, window = stack_index(index), self.window(index)
            cache = chunk_layer_cache(held, length, position, bias, layer, window=window)
            return after(index, cache)

        return self.run_layers(tokens[:, None], after_all, cache_of, written=prompt)

    def extend(
        self,
        cache: Cache,
        tokens: Array,
        start: Array | int,
        visible: Array | None = None,
        position: Array | None = None,
        prefix: Layers | None = None,
    ) -> tuple[Array, Cache]:
        """Runs the new tokens ``[B, W, T]``; see ``LanguageModel.extend``.

        After a ``prefix``, as for ``prefill``, positions are counted from the first token after it.

        Returns:
          The hidden states ``[B, W, T, D]``, and the cache with the new tokens.
        """
        view, cache = view_of(cache, tokens.shape[-1], start, visible, position)
        bias = self.biases(view)
        after_all, after = self._after(prefix, view.position)

        def cache_of(index: int | Array, prompt: KeyValue, slots: KeyValue) -> LayerCache:
            layer, window = stack_index(index), self.window(index)
            cache = slot_layer_cache(prompt, slots, view, start, bias, layer, window=window)
            return after(index, cache)

        hidden, slots = self.run_layers(
            tokens,
            after_all,
            cache_of,
            source=cache.source,
            read=cache.prompt,
            written=cache.slots,
        )
        return hidden, cache._replace(slots=slots)

    def project(self, hidden: Array) -> Array:
        """Projects hidden states ``[..., D]`` to float32 logits ``[..., V]``."""
        if not self.config.logits_via_embedding:
            return self.logits_dense(hidden)
        return vocabulary_logits(hidden, self.token_embedder.embedding.T)

    def __call__(self, tokens: Array, length: Array) -> Array:
        """The logits ``[B, P, V]`` after each of ``tokens [B, P]``."""
        return self.project(self.prefill(tokens, length)[0])[:, 0]
