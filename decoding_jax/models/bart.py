"""BART and the encoder-decoders of its architecture: mBART, Pegasus, Marian, M2M-100 and NLLB.

They differ in their positions, in where their norms are, and in the bias of their logits.

Lewis et al. 2020, "BART: Denoising Sequence-to-Sequence Pre-training"; Liu et al. 2020,
"Multilingual Denoising Pre-training for Neural Machine Translation"; Zhang et al. 2020, "PEGASUS";
Junczys-Dowmunt et al. 2018, "Marian: Fast Neural Machine Translation in C++"; Fan et al. 2021,
"Beyond English-Centric Multilingual Machine Translation"; NLLB Team 2022, "No Language Left
Behind".
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, ClassVar

import jax.numpy as jnp
from flax import linen as nn

from decoding_jax.base import Array
from decoding_jax.models.bart_layers import (
    PARTITION_RULES,
    BartConfig,
    BartDecoderLayer,
    BartEncoderLayer,
    sinusoids,
)
from decoding_jax.models.cache import Layers
from decoding_jax.models.encoder_decoder import BoundEncoderDecoder, EncoderDecoder
from decoding_jax.models.encoder_decoder_network import (
    EncoderDecoderNetwork,
    LayerCacheOf,
    run_decoder_layers,
    source_keys,
    source_mask,
)
from decoding_jax.models.gpt2 import layer_norm
from decoding_jax.models.layers import embed, vocabulary_logits
from decoding_jax.models.stack import make_layers, run_layers
from decoding_jax.pytrees import pytree

INIT = nn.initializers.normal(0.02)


class BartStack(nn.Module):
    """The base of encoder and decoder: what comes before their layers, and after them."""

    config: BartConfig

    def setup(self) -> None:
        cfg = self.config
        if cfg.positions == "learned":
            rows = cfg.max_positions + cfg.position_offset
            self.position_embedder = nn.Embed(rows, cfg.emb_dim, embedding_init=INIT)
        if cfg.embedding_norm:
            self.embedding_norm = layer_norm(cfg)
        if cfg.norm_first:
            self.final_norm = layer_norm(cfg)

    def with_positions(self, x: Array, position: Array) -> Array:
        """The input of the first layer, from the embeddings of tokens."""
        cfg, position = self.config, position + self.config.position_offset
        if cfg.positions == "learned":
            x += embed(self.position_embedder.embedding, position, cfg.dtype)
        else:
            inclusive = cfg.positions == "sinusoidal_inclusive"
            x += sinusoids(position, cfg.emb_dim, inclusive=inclusive).astype(cfg.dtype)
        return self.embedding_norm(x) if cfg.embedding_norm else x

    def end(self, x: Array) -> Array:
        return self.final_norm(x) if self.config.norm_first else x


class BartEncoder(BartStack):
    def setup(self) -> None:
        super().setup()
        cfg = self.config
        count, scanned = cfg.num_encoder_layers, cfg.scan_layers
        self.layers = make_layers(lambda: BartEncoderLayer(cfg), count, scanned=scanned)

    def __call__(self, x: Array, length: Array) -> Array:
        mask = source_mask(length, x.shape[2])
        position = jnp.arange(x.shape[2], dtype=jnp.int32)[None, None]

        def run(layer: Any, x: Array, *_: Any) -> tuple[Array, None]:
            return layer(x, mask, position), None

        return self.end(run_layers(self.layers, run, x, self.config.num_encoder_layers)[0])


class BartDecoder(BartStack):
    def setup(self) -> None:
        super().setup()
        cfg = self.config
        count, scanned = cfg.num_decoder_layers, cfg.scan_layers
        self.layers = make_layers(lambda: BartDecoderLayer(cfg), count, scanned=scanned)

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
        count = self.config.num_decoder_layers
        x, new = run_decoder_layers(
            self.layers, x, cache_of, source, source_length, count, prompt, slots
        )
        return self.end(x), new


class BartNetwork(EncoderDecoderNetwork):
    """The network of ``Bart`` and ``BoundBart``."""

    config: BartConfig

    def setup(self) -> None:
        cfg = self.config
        self.token_embedder = nn.Embed(cfg.vocab_size, cfg.emb_dim, embedding_init=INIT)
        self.encoder = BartEncoder(cfg)
        self.decoder = BartDecoder(cfg)
        if cfg.logits_bias:
            zeros = nn.initializers.zeros_init()
            self.logits_bias = self.param("logits_bias", zeros, (1, cfg.vocab_size), jnp.float32)

    def embeddings(self, tokens: Array) -> Array:
        cfg = self.config
        x = embed(self.token_embedder.embedding, tokens, cfg.dtype)
        return x * jnp.asarray(math.sqrt(cfg.emb_dim), x.dtype) if cfg.scale_embedding else x

    def source_inputs(self, tokens: Array, position: Array) -> Array:
        """See ``EncoderDecoderNetwork.source_inputs``."""
        return self.encoder.with_positions(self.embeddings(tokens), position)

    def inputs(self, tokens: Array, position: Array) -> Array:
        """See ``EncoderDecoderNetwork.inputs``."""
        return self.decoder.with_positions(self.embeddings(tokens), position)

    def project(self, hidden: Array) -> Array:
        """See ``EncoderDecoderNetwork.project``."""
        logits = vocabulary_logits(hidden, self.token_embedder.embedding.T)
        if not self.config.logits_bias:
            return logits
        bias = self.logits_bias.astype(jnp.float32)
        return logits + bias.reshape((1,) * (logits.ndim - 1) + (-1,))


@pytree
@dataclasses.dataclass(frozen=True)
class BoundBart(BoundEncoderDecoder):
    """The decoder of a ``Bart`` that is bound to inputs, a ``LanguageModel``.

    Attributes:
      params: as in ``Bart``.
      source: int32 ``[B, P]``, the encoder inputs.
      source_length: int32 ``[B]``.
      config: as in ``Bart``.
    """

    params: Any
    source: Array
    source_length: Array
    config: BartConfig = dataclasses.field(metadata={"static": True})

    network: ClassVar[type[EncoderDecoderNetwork]] = BartNetwork
    partition_rules = PARTITION_RULES
    sharded_names = (
        "num_encoder_heads",
        "num_decoder_heads",
        "encoder_mlp_dim",
        "decoder_mlp_dim",
        "vocab_size",
    )

    @property
    def max_positions(self) -> int | None:
        """``max_positions`` of the config; None with ``sinusoidal_inclusive`` positions."""
        config = self.config
        return None if config.positions == "sinusoidal_inclusive" else config.max_positions


@pytree
@dataclasses.dataclass(frozen=True)
class Bart(EncoderDecoder):
    """A network of the architecture of BART. Bind it to inputs with ``bind`` to decode from it.

    Attributes:
      params: the parameters of ``BartNetwork``, of any float dtype.
      config: a ``BartConfig``.

    Example:
      >>> import jax
      >>> model = Bart.init(BartConfig(9, 4, 2, 2, 8, 8, 1, 1), jax.random.key(0))
      >>> model = model.bind(jnp.array([[0, 5, 7, 2]]), jnp.array([4]))
      >>> output, cache = model.prefill(*model.start_prompt(), lanes=2, slots=5)
      >>> output.logits.shape
      (1, 1, 1, 9)
    """

    params: Any
    config: BartConfig = dataclasses.field(metadata={"static": True})

    bound: ClassVar[type[BoundEncoderDecoder]] = BoundBart
