"""T5 as a language model: a T5 that is bound to encoder inputs decodes like any other model."""

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
from decoding_jax.models.t5_layers import PARTITION_RULES, T5Config, sharded_sizes
from decoding_jax.models.t5_network import T5Network
from decoding_jax.ops.mesh import over_rows
from decoding_jax.pytrees import pytree


@pytree
@dataclasses.dataclass(frozen=True)
class T5:
    """A T5 network with its parameters. Bind it to inputs with ``bind`` to get a language model.

    Attributes:
      params: the tree under ``params`` of a T5X checkpoint with unscanned layers, of any float
        dtype.
      config: a ``T5Config``.
    """

    params: Any
    config: T5Config = dataclasses.field(metadata={"static": True})

    partition_rules = PARTITION_RULES

    @property
    def sharded_sizes(self) -> dict[str, int]:
        """See ``sharding.SupportsPartitionRules``."""
        return sharded_sizes(self.config)

    @classmethod
    def init(cls, config: T5Config, key: Array) -> T5:
        """A network with random parameters (float32)."""
        one = jnp.ones((1, 1), jnp.int32)
        return cls(T5Network(config).init(key, one, one[0], one, one[0])["params"], config)

    def early_exit(self, num_layers: int) -> T5:
        """The network with the first layers of its decoder, and the same final norm and projection.

        It shares the weights, and can draft for the full model in speculative decoding. Its
        drafts are accepted more often if the model was trained for early exit (Elhoushi et al.
        2024, "LayerSkip: Enabling Early Exit Inference and Self-Speculative Decoding").

        Args:
          num_layers: the number of decoder layers to keep, from 1 to the network's number.

        Raises:
          ValueError: for another number of layers.
        """
        config = self.config
        decoder = first_layers(self.params["decoder"], num_layers, config.num_decoder_layers)
        config = dataclasses.replace(config, num_decoder_layers=num_layers)
        return T5({**self.params, "decoder": decoder}, config)

    def bind(self, tokens: Array, length: Array) -> BoundT5:
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
                f"tokens, length: got shapes {tokens.shape}, {length.shape}; takes [B, P] and [B]"
            )
        check_prompt_ids(Prompt(tokens, length), self.config.vocab_size, "inputs")
        return BoundT5(self.params, tokens, length, self.config)


@pytree
@dataclasses.dataclass(frozen=True)
class BoundT5:
    """A T5 decoder that is bound to encoder inputs, a ``LanguageModel``.

    It has ``keep``, ``select`` and ``project`` too. The encoder runs in ``prefill``. The keys and
    values of the cross-attention are shared by the lanes of a row.

    Attributes:
      params: as in ``T5``.
      source: int32 ``[B, P]``, the encoder inputs.
      source_length: int32 ``[B]``.
      config: as in ``T5``.
    """

    params: Any
    source: Array
    source_length: Array
    config: T5Config = dataclasses.field(metadata={"static": True})

    ragged = True
    tree = True
    max_positions = None
    partition_rules = PARTITION_RULES

    @property
    def sharded_sizes(self) -> dict[str, int]:
        """See ``sharding.SupportsPartitionRules``."""
        return sharded_sizes(self.config)

    @property
    def vocab_size(self) -> int:
        return self.config.vocab_size

    def early_exit(self, num_layers: int) -> BoundT5:
        """``T5.early_exit``, bound to the same inputs."""
        short = T5(self.params, self.config).early_exit(num_layers)
        return short.bind(self.source, self.source_length)

    def start_prompt(self, batch_size: int | None = None) -> Prompt:
        """The prompt that the decoder starts from: ``start_id`` alone, in every row."""
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
          ValueError: if the number of rows is not that of the bound inputs.
        """
        if tokens.shape[0] != self.source.shape[0]:
            raise ValueError(
                f"prompt: got {tokens.shape[0]} rows; takes the {self.source.shape[0]} rows of the"
                " inputs bound"
            )
        inputs, inputs_length = over_rows(self.source), over_rows(self.source_length)
        source = self._apply(T5Network.encode, inputs, inputs_length)
        hidden, prompt = self._apply(T5Network.prefill, tokens, length, source, inputs_length)
        logits = self.project(last_real(hidden, length))
        cache = caches.empty_slots(
            prompt, length, lanes=lanes, slots=slots, source=(source, inputs_length)
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
