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
from decoding_jax.models.cache import Layers
from decoding_jax.models.encoder_decoder_network import (
    EncoderDecoderNetwork,
    LayerCacheOf,
    run_decoder_layers,
    source_keys,
    source_mask,
)
from decoding_jax.models.layers import Output, embed, vocabulary_logits
from decoding_jax.models.relative import RelativePositionBiases
from decoding_jax.models.scores import Bias
from decoding_jax.models.stack import make_layers, run_layers
from decoding_jax.models.t5_layers import DecoderLayer, EncoderLayer, Layer, T5Config
from decoding_jax.models.view import Biases, View


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
        mask = source_mask(length, x.shape[2])
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
        return source_keys(self.layers, encoded, self.config.num_decoder_layers)

    def __call__(
        self,
        x: Array,
        cache_of: LayerCacheOf,
        source: Layers,
        source_length: Array,
        prompt: Layers | None = None,
        slots: Layers | None = None,
    ) -> tuple[Array, Layers]:
        """Runs all layers on ``x [B, W, T, D]``; see ``run_decoder_layers``."""
        count, x = self.config.num_decoder_layers, self.drop(x)
        x, new = run_decoder_layers(
            self.layers, x, cache_of, source, source_length, count, prompt, slots
        )
        return self.drop(self.decoder_norm(x)), new


class T5Network(EncoderDecoderNetwork):
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

    def inputs(self, tokens: Array, position: Array) -> Array:
        """See ``EncoderDecoderNetwork.inputs``."""
        return embed(self.token_embedder.embedding, tokens, self.config.dtype)

    def prompt_biases(self, position: Array, size: int) -> Callable[[Any], Bias]:
        """See ``EncoderDecoderNetwork.prompt_biases``."""
        return self.decoder.bias_of(lambda b: b.of_keys(position, size))

    def biases(self, view: View) -> Callable[[Any], Biases]:
        """See ``EncoderDecoderNetwork.biases``."""
        zero = jnp.zeros((1, 1, 1, 1), jnp.int32)
        size = view.prompt_mask.shape[-1]
        return self.decoder.bias_of(
            lambda b: Biases(b.of_keys(view.position, size), b(view.slot_distance), b(zero))
        )

    def project(self, hidden: Array) -> Array:
        """See ``EncoderDecoderNetwork.project``."""
        cfg = self.config
        if not cfg.logits_via_embedding:
            return self.decoder.logits_dense(hidden)
        x = hidden.astype(jnp.float32) / math.sqrt(cfg.emb_dim)
        return vocabulary_logits(x, self.token_embedder.embedding.T)
