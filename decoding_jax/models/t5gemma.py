"""T5Gemma and T5Gemma 2: encoder-decoders of the layers of Gemma 2 and Gemma 3.

Zhang et al. 2025, "Encoder-Decoder Gemma: Improving the Quality-Efficiency Trade-Off via
Adaptation"; Zhang et al. 2025, "T5Gemma 2: Seeing, Reading, and Understanding Longer".
"""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import jax.numpy as jnp
from flax import linen as nn

from decoding_jax.base import Array
from decoding_jax.models import caches, encoder_decoder, gemma, llama, view
from decoding_jax.models.attention import Part
from decoding_jax.pytrees import pytree

FOLLOWED = (
    *("attention_soft_cap", "embedding_scale", "local_rope_theta", "logit_soft_cap"),
    "query_scalar",
)
"""The settings of ``LlamaConfig`` that both stacks follow, besides those of its layers."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class T5GemmaConfig(gemma.GemmaConfig):
    """The shape of a T5Gemma: that of its decoder, as a Gemma's, and these.

    Attributes:
      encoder: the shape of the encoder, with the same vocabulary. Its ``dtype`` and ``scan_layers``
        are those of the decoder, whatever is given.
      start_id: the first token of the decoder's prompt.
      merged: whether the decoder attends to the inputs and to its own tokens in one softmax, with
        the same keys and values (T5Gemma 2). It then shares the encoder's embedding table, unless
        another table gives the logits. By default, the layers of the decoder have a
        cross-attention, and each stack has a table.
      image_end_id: with ``merged``, the token that has an embedding beside the table, which is not
        scaled.

    Raises:
      ValueError: as ``GemmaConfig``, for ``prefill_chunk``, or for an encoder whose vocabulary, or
        with ``merged`` whose width, is not the decoder's.
    """

    encoder: gemma.GemmaConfig
    start_id: int = 2
    merged: bool = False
    image_end_id: int = 256_000

    def __post_init__(self) -> None:
        super().__post_init__()
        llama.refuse_switches(self, FOLLOWED)
        if self.prefill_chunk is not None:
            raise ValueError(f"prefill_chunk: expected None, got {self.prefill_chunk}")
        for name in ("vocab_size", "emb_dim") if self.merged else ("vocab_size",):
            theirs, ours = getattr(self.encoder, name), getattr(self, name)
            if theirs != ours:
                raise ValueError(
                    f"encoder.{name}: expected that of the decoder, {ours}, got {theirs}"
                )
        same = dataclasses.replace(self.encoder, dtype=self.dtype, scan_layers=self.scan_layers)
        object.__setattr__(self, "encoder", same)

    @property
    def position_limit(self) -> int:
        """The maximum of the decoder or of the encoder, whichever is smaller."""
        return min(self.max_positions, self.encoder.max_positions)

    @property
    def sharded_sizes(self) -> dict[str, int]:
        """See ``sharding.SupportsPartitionRules``; those of the encoder too."""
        sizes = {f"encoder.{name}": x for name, x in self.encoder.sharded_sizes.items()}
        return sizes | super().sharded_sizes


class Embedder(nn.Module):
    """The embedding table of a T5Gemma 2, and the embedding of one token beside it."""

    config: T5GemmaConfig

    def setup(self) -> None:
        cfg, init = self.config, nn.initializers.normal(0.02)
        self.embedding = self.param("embedding", init, (cfg.vocab_size, cfg.emb_dim), jnp.float32)
        self.image_end = self.param("image_end", init, (cfg.emb_dim,), jnp.float32)


class T5GemmaStack(llama.LlamaNetwork):
    """An encoder or a decoder.

    Attributes:
      given: None, or its embeddings, which are not a part of it.
    """

    given: Embedder | None = None

    def embedder(self) -> nn.Module:
        return super().embedder() if self.given is None else self.given

    def inputs(self, tokens: Array, position: Array) -> tuple[Array, Any]:
        x, angles = super().inputs(tokens, position)
        if self.given is not None:
            image_end = self.given.image_end.astype(x.dtype).reshape(1, 1, 1, -1)
            x = jnp.where((tokens == self.given.config.image_end_id)[..., None], image_end, x)
        return x, angles


class T5GemmaEncoder(T5GemmaStack):
    """Layers in which a token sees the tokens on both sides."""

    def window(self, index: int | Array) -> view.Window:
        """See ``DecoderNetwork.window``. T5Gemma 2 divides the window among both sides."""
        window = super().window(index)
        if window is None:
            return None
        return window + 1 if self.given is None else (window + 1) // 2

    def ahead(self, index: int | Array) -> view.Window:
        window = super().window(index)
        return window if window is None or self.given is None else window // 2


class T5GemmaDecoderLayer(llama.LlamaLayer):
    """A layer that attends to the inputs, after its own tokens or together with them."""

    config: T5GemmaConfig

    def setup(self) -> None:
        super().setup()
        if not self.config.merged:
            self.pre_cross_attention_norm = llama.norm(self.config)
            self.encoder_decoder_attention = llama.LlamaAttention(self.config)
            self.post_cross_attention_norm = llama.norm(self.config)

    def source(self, encoded: Array) -> caches.KeyValue:
        """The keys and values of the inputs."""
        merged = self.config.merged
        return (self.attention if merged else self.encoder_decoder_attention).keys(encoded)

    def __call__(
        self, x: Array, layer_cache: view.LayerCache, angles: tuple[Array, Array], *sources: Part
    ) -> tuple[Array, caches.KeyValue]:
        def merged_cache(new: caches.KeyValue) -> tuple[list[Part], caches.KeyValue]:
            parts, stored = layer_cache(new)
            return [*parts, *sources], stored

        if self.config.merged:
            return super().__call__(x, merged_cache, angles)
        x, stored = self.attended(x, layer_cache, angles)
        y = self.encoder_decoder_attention.read(self.pre_cross_attention_norm(x), [*sources])
        return self.fed_forward(x + self.post_cross_attention_norm(y)), stored


class T5GemmaDecoder(T5GemmaStack):
    layer: ClassVar[type[llama.LlamaLayer]] = T5GemmaDecoderLayer


class T5GemmaNetwork(encoder_decoder.EncoderDecoderNetwork):
    """The network of ``T5Gemma`` and ``BoundT5Gemma``."""

    config: T5GemmaConfig

    def setup(self) -> None:
        cfg = self.config
        source = target = None
        if cfg.merged:
            source = target = self.token_embedder = Embedder(cfg)
            if not cfg.logits_via_embedding:
                source = self.source_token_embedder = Embedder(cfg)
        self.encoder = T5GemmaEncoder(cfg.encoder, source)
        self.decoder = T5GemmaDecoder(cfg, target)


def for_model_axis(model: Any, size: int) -> Any:
    """``Llama.for_model_axis`` of encoder and decoder."""
    params, encoder = dict(model.params), model.config.encoder
    if "encoder" in params:
        params["encoder"] = llama.repeated_heads(params["encoder"], encoder, size)[0]
    encoder = llama.repeated_heads({}, encoder, size)[1]
    decoder, config = llama.repeated_heads(params.get("decoder", {}), model.config, size)
    if "decoder" in params:
        params["decoder"] = decoder
    config = dataclasses.replace(config, encoder=encoder)
    return dataclasses.replace(model, params=params, config=config)


@pytree
@dataclasses.dataclass(frozen=True)
class BoundT5Gemma(encoder_decoder.BoundEncoderDecoder):
    """The decoder of a ``T5Gemma`` that is bound to inputs, a ``LanguageModel``."""

    network = T5GemmaNetwork
    for_model_axis = for_model_axis


@pytree
@dataclasses.dataclass(frozen=True)
class T5Gemma(encoder_decoder.EncoderDecoder):
    """A T5Gemma or T5Gemma 2 network. Bind it to inputs with ``bind`` to decode from it.

    Attributes:
      params: the parameters of ``T5GemmaNetwork``, of any float dtype. A ``scale`` is its distance
        from 1.
      config: a ``T5GemmaConfig``.

    Example:
      >>> import jax
      >>> sizes = dict(
      ...     vocab_size=9, emb_dim=4, num_heads=2, num_kv_heads=1, head_dim=2, mlp_dim=8,
      ...     num_layers=1, max_positions=32)
      >>> config = T5GemmaConfig(encoder=gemma.GemmaConfig(**sizes), **sizes)
      >>> def logits(key):
      ...     model = T5Gemma.init(config, key).bind(jnp.array([[5, 7, 1]]), jnp.array([3]))
      ...     return model.prefill(*model.start_prompt(), lanes=2, slots=5)[0].logits
      >>> jax.eval_shape(logits, jax.random.key(0)).shape
      (1, 1, 1, 9)
    """

    bound = BoundT5Gemma
    for_model_axis = for_model_axis
