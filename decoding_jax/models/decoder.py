"""The language models of decoder-only networks."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any, ClassVar, Self, TypeVar

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec

from decoding_jax.base import Array, ModelOutput
from decoding_jax.models import cache as caches
from decoding_jax.models.cache import Cache, Layers
from decoding_jax.models.decoder_network import DecoderNetwork
from decoding_jax.models.early_exit import first_layers
from decoding_jax.models.layers import last_real
from decoding_jax.models.network_model import NetworkModel

M = TypeVar("M")


def check_prefill_chunk(chunk: int | None, *, causal: bool = True) -> None:
    """Refuses a ``prefill_chunk`` that is not None or a positive integer.

    Raises:
      ValueError: for another number, or for any where prompts are not causal.
    """
    if chunk is not None and not causal:
        raise ValueError(
            f"prefill_chunk: got {chunk} with bidirectional_prompt; takes None, because each token"
            " of such a prompt sees the later ones"
        )
    if chunk is not None and (not isinstance(chunk, int) or chunk < 1):
        raise ValueError(f"prefill_chunk: got {chunk!r}; takes None or a positive integer")


def with_prefill_chunk(model: M, chunk: int) -> M:
    """The same model, whose prompts run ``chunk`` tokens at a time.

    Raises:
      ValueError: for an encoder-decoder, or a number that the model's config refuses.
    """
    if not isinstance(model, DecoderModel):
        raise ValueError(
            f"prefill_chunk: got {chunk} for a {type(model).__name__}; takes None, because each"
            " input token of an encoder-decoder sees the later ones"
        )
    return dataclasses.replace(model, config=dataclasses.replace(model.config, prefill_chunk=chunk))


@dataclasses.dataclass(frozen=True)
class DecoderModel(NetworkModel):
    """A decoder-only network with its parameters, a ``LanguageModel``.

    It has ``keep``, ``select`` and ``project`` too. A subclass defines ``network`` and
    ``partition_rules``, and is registered as a pytree.

    Attributes:
      params: the parameters of the network, of any float dtype.
      config: the shape of the network.
    """

    params: Any
    config: Any = dataclasses.field(metadata={"static": True})

    network: ClassVar[type[DecoderNetwork]]
    partition_rules: ClassVar[Mapping[str, PartitionSpec]]

    @classmethod
    def init(cls, config: Any, key: Array) -> Self:
        """A network with random parameters (float32)."""
        one = jnp.ones((1, 1), jnp.int32)
        return cls(cls.network(config).init(key, one, one[0])["params"], config)

    @property
    def max_positions(self) -> int:
        return self.config.max_positions

    @property
    def sharded_sizes(self) -> dict[str, int]:
        """See ``sharding.SupportsPartitionRules``."""
        names = ("num_heads", "mlp_dim", "vocab_size")
        return {name: getattr(self.config, name) for name in names}

    def early_exit(self, num_layers: int) -> Self:
        """The language model of the first layers, under the same final norm and projection.

        It shares the weights, and can draft for the full model in speculative decoding. Its
        drafts are accepted more often if the model was trained for early exit (Elhoushi et al.
        2024, "LayerSkip: Enabling Early Exit Inference and Self-Speculative Decoding").

        Args:
          num_layers: the number of decoder layers to keep, from 1 to the network's number.

        Raises:
          ValueError: for another number of layers.
        """
        params = first_layers(self.params, num_layers, self.config.num_layers)
        config = dataclasses.replace(self.config, num_layers=num_layers)
        return dataclasses.replace(self, params=params, config=config)

    def prefill(
        self, tokens: Array, length: Array, *, lanes: int, slots: int, with_hidden: bool = False
    ) -> tuple[ModelOutput, Cache]:
        """See ``LanguageModel.prefill``."""
        last, hidden, prompt = self.run_prompts(tokens, length, with_hidden=with_hidden)
        cache = caches.empty_slots(prompt, length, lanes=lanes, slots=slots)
        return ModelOutput(self.project(last), hidden if with_hidden else None), cache

    def run_prompts(
        self,
        tokens: Array,
        length: Array,
        *,
        with_hidden: bool = False,
        prefix: Layers | None = None,
    ) -> tuple[Array, Array, Layers]:
        """Runs whole prompts, ``config.prefill_chunk`` tokens at a time if it is set.

        Args:
          tokens: int32 ``[B, P]``, right-padded; with a prefix, the tokens after it.
          length: int32 ``[B]``.
          with_hidden: whether the hidden states of all tokens are asked for.
          prefix: as for ``DecoderNetwork.prefill``.

        Returns:
          The hidden states ``[B, 1, 1, D]`` of the last real tokens; those of all tokens,
          ``[B, 1, P, D]``, or anything if they are not asked for; and the keys and values.
        """
        chunk = self.config.prefill_chunk
        if chunk is not None and tokens.shape[1] > chunk:
            return self._prefill_chunks(tokens, length, chunk, with_hidden, prefix)
        hidden, prompt = self.apply(self.network.prefill, tokens, length, None, prefix)
        return last_real(hidden, length), hidden, prompt

    def _prefill_chunks(
        self, tokens: Array, length: Array, chunk: int, with_hidden: bool, prefix: Layers | None
    ) -> tuple[Array, Array, Layers]:
        """Runs whole prompts, ``chunk`` tokens at a time.

        Returns:
          The hidden states ``[B, 1, 1, D]`` of the last real tokens; those of the prompt,
          ``[B, 1, P, D]``, or as the first if they are not asked for; and the prompt's cache.
        """
        size = tokens.shape[1]
        shape, held = jax.eval_shape(
            functools.partial(self.apply, self.network.prefill), tokens[:, :chunk], length
        )
        prompt = jax.tree.map(
            lambda x: jnp.zeros((*x.shape[:-2], size, x.shape[-1]), x.dtype), held
        )
        kept = jnp.zeros(
            (*shape.shape[:2], size if with_hidden else 1, shape.shape[3]), shape.dtype
        )
        end = jnp.clip(length - 1, 0, size - 1)

        def run(index: Array, state: tuple[Any, Array]) -> tuple[Any, Array]:
            prompt, kept = state
            first = jnp.minimum(index * chunk, size - chunk)  # the last chunk overlaps
            piece = lax.dynamic_slice_in_dim(tokens, first, chunk, 1)
            hidden, prompt = self.apply(
                self.network.prefill_chunk, prompt, piece, length, first, prefix
            )
            if with_hidden:
                return prompt, lax.dynamic_update_slice_in_dim(kept, hidden, first, 2)
            here = ((first <= end) & (end < first + chunk))[:, None, None, None]
            return prompt, jnp.where(here, last_real(hidden, length - first), kept)

        # Chunks of nothing but padding are left out.
        prompt, kept = lax.fori_loop(0, end.max() // chunk + 1, run, (prompt, kept))
        return last_real(kept, length) if with_hidden else kept, kept, prompt
