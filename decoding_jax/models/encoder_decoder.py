"""Encoder-decoders, and the language models that they are once they are bound to inputs."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar, Self

import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from decoding_jax import fields
from decoding_jax.base import Array, ModelOutput, Prompt
from decoding_jax.loop.inputs import check_prompt_ids
from decoding_jax.models import caches, fixed_shapes, layers
from decoding_jax.models.decoder import DecoderShape, NetworkModel, States
from decoding_jax.sharding import meshes


class EncoderDecoderNetwork(nn.Module):
    """An encoder, and a decoder that attends to its output.

    A subclass sets up ``encoder`` and ``decoder``, both of them a ``DecoderNetwork``.
    """

    config: Any

    def encode(self, tokens: Array, length: Array) -> caches.Layers:
        """Runs the encoder.

        Args:
          tokens: int32 ``[B, P]``, right-padded.
          length: int32 ``[B]``.

        Returns:
          The keys and values ``[B, H, P, d]`` of the inputs in each layer of the decoder.
        """
        return self.decoder.source(self.encoder.prefill(tokens, length)[0].last)

    def prefill(self, *args: Any, **settings: Any) -> tuple[States, caches.Layers]:
        """See ``DecoderNetwork.prefill``; the source is from ``encode``, with the lengths."""
        return self.decoder.prefill(*args, **settings)

    def extend(self, *args: Any, **settings: Any) -> tuple[States, caches.Cache]:
        """See ``DecoderNetwork.extend``."""
        return self.decoder.extend(*args, **settings)

    def project(self, hidden: Array) -> Array:
        """See ``DecoderNetwork.project``."""
        return self.decoder.project(hidden)

    def __call__(self, source: Array, source_length: Array, tokens: Array, length: Array) -> Array:
        """The logits ``[B, P, V]`` after each of ``tokens [B, P]``, by teacher forcing."""
        held = self.encode(source, source_length), source_length
        states, _ = self.prefill(tokens, length, held)
        return self.project(states.last)[:, 0]


@dataclasses.dataclass(frozen=True)
class EncoderDecoder(DecoderShape):
    """An encoder-decoder network with its parameters. ``bind`` makes it a language model.

    A subclass defines ``bound``, the class of that language model, and is registered as a pytree.

    Attributes:
      params: the parameters of the network, of any float dtype.
      config: the shape of the network, with ``start_id``, the first token of the decoder's prompt.
    """

    params: Any
    config: Any = fields.field(static=True)

    bound: ClassVar[type[BoundEncoderDecoder]]

    @property
    def source_vocab_size(self) -> int:
        """The number of tokens of inputs, which may have another vocabulary than the outputs."""
        return getattr(self.config, "source_vocab_size", None) or self.config.vocab_size

    @classmethod
    def init(cls, config: Any, key: Array) -> Self:
        """A network with random parameters (float32)."""
        one = jnp.ones((1, 1), jnp.int32)
        network = cls.bound.network(config)
        return cls(network.init(key, one, one[0], one, one[0])["params"], config)

    def bind(self, tokens: Array, length: Array) -> Any:
        """The language model of the decoder, given these encoder inputs.

        Args:
          tokens: int32 ``[B, P]``, right-padded encoder inputs, with their end token.
          length: int32 ``[B]``, from 1 to P.

        Raises:
          ValueError: for shapes that do not fit, and for lengths and ids out of range unless they
            are traced.
        """
        if tokens.ndim != 2 or length.shape != tokens.shape[:1]:
            raise ValueError(
                f"tokens, length: expected shapes [B, P] and [B], got {tokens.shape} and"
                f" {length.shape}"
            )
        check_prompt_ids(Prompt(tokens, length), self.source_vocab_size, "inputs")
        bound = self.bound(self.params, tokens, length, self.config)
        limit, lengths = bound.max_positions, fields.on_host(length)
        if limit is not None and lengths is not None and (lengths[0] > limit).any():
            row = int((lengths[0] > limit).argmax())
            raise ValueError(
                f"inputs.length: expected 1 to the model's {limit} positions, got"
                f" {lengths[0][row]} in row {row}"
            )
        return bound


@dataclasses.dataclass(frozen=True)
class BoundEncoderDecoder(NetworkModel):
    """The decoder of an encoder-decoder that is bound to inputs, a ``LanguageModel``.

    It has ``keep``, ``select`` and ``project`` too. The encoder runs in ``prefill``. The keys and
    values of the cross-attention are shared by the lanes of a row. A subclass defines ``network``,
    and is registered as a pytree.

    Attributes:
      params: as in ``EncoderDecoder``.
      source: int32 ``[B, P]``, the encoder inputs.
      source_length: int32 ``[B]``.
      config: as in ``EncoderDecoder``.
      feature_layers: as in ``with_features``, of the decoder.
    """

    params: Any
    source: Array
    source_length: Array
    config: Any = fields.field(static=True)
    feature_layers: tuple[int, ...] = fields.field(static=True, default=())

    network: ClassVar[type[EncoderDecoderNetwork]]

    def start_prompt(self, batch_size: int | None = None) -> Prompt:
        """The prompt that the decoder starts from: ``start_id`` alone, in every row."""
        batch_size = self.source.shape[0] if batch_size is None else batch_size
        start = np.full((batch_size, 1), self.config.start_id, np.int32)
        return Prompt(jnp.asarray(start), jnp.asarray(np.ones(batch_size, np.int32)))

    def check_rows(self, tokens: Array) -> None:
        """Refuses prompts ``[B, P]`` of another number of rows than that of the bound inputs."""
        if tokens.shape[0] != self.source.shape[0]:
            raise ValueError(
                f"prompt: expected {self.source.shape[0]} rows, as the inputs bound have, got"
                f" {tokens.shape[0]}"
            )

    @fixed_shapes.in_groups_of_rows
    def prefill(
        self, tokens: Array, length: Array, *, lanes: int, slots: int, with_hidden: bool = False
    ) -> tuple[ModelOutput, caches.Cache]:
        """See ``LanguageModel.prefill``. Runs the encoder, then the decoder's prompt.

        Raises:
          ValueError: if the number of rows is not that of the bound inputs.
        """
        self.check_rows(tokens)
        inputs, inputs_length = meshes.over_rows(self.source), meshes.over_rows(self.source_length)
        source = self.apply(self.network.encode, inputs, inputs_length), inputs_length
        states, prompt = self.apply(
            self.network.prefill, tokens, length, source, features=self.feature_layers
        )
        logits = self.project(layers.last_real(states.last, length))
        cache = caches.empty_slots(prompt, length, lanes=lanes, slots=slots, source=source)
        hidden = states.last if with_hidden else None
        return ModelOutput(logits, hidden, states.features), cache
