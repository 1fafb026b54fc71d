"""T5 as a language model: bind the inputs of an encoder-decoder, and it decodes like any other."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax.numpy as jnp

from decoding_jax.base import Array, ModelOutput, Prompt
from decoding_jax.loop.token_ids import check_prompt_ids
from decoding_jax.models import cache as caches
from decoding_jax.models.cache import Cache
from decoding_jax.models.early_exit import first_layers
from decoding_jax.models.layers import last_real
from decoding_jax.models.t5_network import T5Config, T5Network
from decoding_jax.pytrees import pytree


@pytree
@dataclasses.dataclass(frozen=True)
class T5:
    """A T5 network with its parameters. ``bind`` it to inputs to get a language model.

    Attributes:
      params: the tree under ``params`` of a T5X checkpoint (unscanned layers), any float dtype.
      config: a ``T5Config``.
    """

    params: Any
    config: T5Config = dataclasses.field(metadata={"static": True})

    @classmethod
    def init(cls, config: T5Config, key: Array) -> T5:
        """A network with random parameters (float32)."""
        one = jnp.ones((1, 1), jnp.int32)
        return cls(T5Network(config).init(key, one, one[0], one, one[0])["params"], config)

    def early_exit(self, num_layers: int) -> T5:
        """The network with its decoder's first layers, under the same final norm and projection.

        It shares this one's weights, and drafts for it in speculative decoding. How often its
        drafts stand depends on whether training prepared the layers for it (Elhoushi et al. 2024,
        "LayerSkip: Enabling Early Exit Inference and Self-Speculative Decoding").

        Args:
          num_layers: from 1 to the network's.

        Raises:
          ValueError: for another number.
        """
        config = self.config
        decoder = first_layers(self.params["decoder"], num_layers, config.num_decoder_layers)
        config = dataclasses.replace(config, num_decoder_layers=num_layers)
        return T5({**self.params, "decoder": decoder}, config)

    def bind(self, tokens: Array, length: Array) -> BoundT5:
        """The language model of decoder texts given these inputs.

        Args:
          tokens: int32 ``[B, P]``, right-padded encoder inputs, with their end token.
          length: int32 ``[B]``, from 1 to P.

        Raises:
          ValueError: for shapes that do not fit, and for lengths and ids out of range where they
            can be read.
        """
        if tokens.ndim != 2 or length.shape != tokens.shape[:1]:
            raise ValueError(
                f"tokens, length: got shapes {tokens.shape}, {length.shape}; takes [B, P] and [B]"
            )
        check_prompt_ids(Prompt(tokens, length), self.config.vocab_size, "inputs")
        return BoundT5(self.params, tokens, length, self.config)


@pytree
@dataclasses.dataclass(frozen=True)
class BoundT5:
    """A T5 decoder bound to its encoder inputs: a ``LanguageModel``.

    It has ``keep``, ``select`` and ``project`` too. The encoder runs in ``prefill``; the
    cross-attention's keys and values belong to the row and are shared by its lanes.
    """

    params: Any
    source: Array
    source_length: Array
    config: T5Config = dataclasses.field(metadata={"static": True})

    ragged = True
    tree = True
    max_positions = None

    @property
    def vocab_size(self) -> int:
        return self.config.vocab_size

    def early_exit(self, num_layers: int) -> BoundT5:
        """As ``T5.early_exit``, bound to the same inputs."""
        short = T5(self.params, self.config).early_exit(num_layers)
        return short.bind(self.source, self.source_length)

    def start_prompt(self, batch_size: int | None = None) -> Prompt:
        """The decoder's first prompt, ``start_id`` alone, for every row."""
        batch_size = self.source.shape[0] if batch_size is None else batch_size
        start = jnp.full((batch_size, 1), self.config.start_id, jnp.int32)
        return Prompt(start, jnp.ones(batch_size, jnp.int32))

    def _apply(self, method: Any, *args: Any) -> Any:
        return T5Network(self.config).apply({"params": self.params}, *args, method=method)

    def prefill(
        self, tokens: Array, length: Array, *, lanes: int, slots: int, with_hidden: bool = False
    ) -> tuple[ModelOutput, Cache]:
        """See ``LanguageModel.prefill``. Runs the encoder, then the decoder's prompt.

        Raises:
          ValueError: if the rows are not as many as the inputs bound.
        """
        if tokens.shape[0] != self.source.shape[0]:
            raise ValueError(
                f"prompt: got {tokens.shape[0]} rows; takes the {self.source.shape[0]} rows of the"
                " inputs bound"
            )
        source = self._apply(T5Network.encode, self.source, self.source_length)
        hidden, prompt = self._apply(T5Network.prefill, tokens, length, source, self.source_length)
        logits = self.project(last_real(hidden, length))
        cache = caches.empty_slots(
            prompt, length, lanes=lanes, slots=slots, source=(source, self.source_length)
        )
        return ModelOutput(logits, hidden if with_hidden else None), cache

    def extend(
        self,
        cache: Cache,
        tokens: Array,
        start: Array | int,
        visible: Array | None = None,
        position: Array | None = None,
    ) -> tuple[ModelOutput, Cache]:
        """See ``LanguageModel.extend``."""
        hidden, cache = self._apply(T5Network.extend, cache, tokens, start, visible, position)
        return ModelOutput(self.project(hidden), hidden), cache

    def project(self, hidden: Array) -> Array:
        """See ``SupportsProject.project``."""
        return self._apply(T5Network.project, hidden)

    def keep(self, cache: Cache, source: Array, start: Array | int) -> Cache:
        """See ``SupportsKeep.keep``."""
        return caches.keep(cache, source, start)

    def select(self, cache: Cache, lanes: Array) -> Cache:
        """See ``SupportsSelect.select``."""
        return caches.select(cache, lanes)
