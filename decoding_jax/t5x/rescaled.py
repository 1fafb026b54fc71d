"""A model with a transform built in, whose log-probabilities are those after the transform."""

from __future__ import annotations

import dataclasses
import operator
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import lax

from decoding_jax.base import Array, LanguageModel, ModelOutput, Prefix, Prompt, Transform
from decoding_jax.loop import model_calls
from decoding_jax.ops.logits import clean
from decoding_jax.pytrees import pytree
from decoding_jax.strategies.speculative.appending import place_tokens


class RescaledCache(NamedTuple):
    """The cache of the wrapped model, with the tokens that transforms are given.

    Attributes:
      inner: the cache of the wrapped model.
      prompt: the prompts.
      tokens: int32 ``[B, W, S]``, the token in each slot.
    """

    inner: Any
    prompt: Prompt
    tokens: Array


@pytree
@dataclasses.dataclass(frozen=True)
class Rescaled:
    """A model that applies a transform to its logits.

    A strategy's ``log_prob`` is under the model, before any transform. T5X's ``rescale_log_probs``
    asks for log-probabilities after temperature and truncation, so these become part of the model.

    Attributes:
      model: the wrapped model.
      transform: applied to the logits of ``model``.
    """

    model: LanguageModel
    transform: Transform

    ragged = property(operator.attrgetter("model.ragged"))
    tree = property(operator.attrgetter("model.tree"))
    vocab_size = property(operator.attrgetter("model.vocab_size"))
    max_positions = property(operator.attrgetter("model.max_positions"))

    @property
    def num_layers(self) -> int | None:
        return getattr(self.model, "num_layers", None)

    def with_features(self, layers: tuple[int, ...]) -> Rescaled:
        """See ``SupportsFeatures.with_features``; the wrapped model has to support it."""
        model: Any = self.model
        return dataclasses.replace(self, model=model.with_features(layers))

    def prefill(
        self, tokens: Array, length: Array, *, lanes: int, slots: int, with_hidden: bool = False
    ) -> tuple[ModelOutput, RescaledCache]:
        """See ``LanguageModel.prefill``."""
        output, inner = self.model.prefill(
            tokens, length, lanes=lanes, slots=slots, with_hidden=with_hidden
        )
        batch = tokens.shape[0]
        prompt = Prompt(tokens, length)
        no_tokens = jnp.zeros((*output.logits.shape[:3], 1), jnp.int32)
        prefix = Prefix(*prompt, no_tokens, no_tokens[..., 0])
        logits = self._transformed(output.logits, prefix)
        empty = jnp.zeros((batch, lanes, slots), jnp.int32)
        return output._replace(logits=logits), RescaledCache(inner, prompt, empty)

    def extend(
        self,
        cache: RescaledCache,
        tokens: Array,
        start: Array | int,
        visible: Array | None = None,
        position: Array | None = None,
    ) -> tuple[ModelOutput, RescaledCache]:
        """See ``LanguageModel.extend``."""
        output, inner = self.model.extend(cache.inner, tokens, start, visible, position)
        start = jnp.asarray(start, jnp.int32)
        if start.ndim:
            slot_tokens = place_tokens(cache.tokens, tokens, start)
        else:
            slot_tokens = lax.dynamic_update_slice(cache.tokens, tokens, (0, 0, start))
        first_slot = start[..., None] if start.ndim else start
        slot = first_slot + jnp.arange(tokens.shape[-1], dtype=jnp.int32)[None, None]
        if visible is None:
            length = jnp.broadcast_to(jnp.clip(slot + 1, 0, slot_tokens.shape[-1]), tokens.shape)
            paths = slot_tokens[:, :, None]
        else:
            paths, length = _paths(slot_tokens, visible, slot)
        paths = jnp.broadcast_to(paths, (*tokens.shape, slot_tokens.shape[-1]))
        logits = self._transformed(output.logits, Prefix(*cache.prompt, paths, length))
        return output._replace(logits=logits), RescaledCache(inner, cache.prompt, slot_tokens)

    def _transformed(self, logits: Array, prefix: Prefix) -> Array:
        """The logits after the transform; NaN stays, by which strategies know a faulty model."""
        return jnp.where(jnp.isnan(logits), jnp.nan, self.transform(clean(logits), prefix))

    def shared_keys(self, cache: RescaledCache, length: Array) -> Any:
        """See ``SupportsSharedKeys.shared_keys``; the wrapped model has to support it."""
        return model_calls.shared_keys(self.model, cache.inner, length)

    def keep(self, cache: RescaledCache, source: Array, start: Array | int) -> RescaledCache:
        """See ``SupportsKeep.keep``; the wrapped model has to support it."""
        model: Any = self.model
        moved = jnp.take_along_axis(cache.tokens, source, axis=-1, mode="clip")
        first_slot = jnp.broadcast_to(jnp.asarray(start, jnp.int32), source.shape[:2])
        return cache._replace(
            inner=model.keep(cache.inner, source, start),
            tokens=place_tokens(cache.tokens, moved, first_slot),
        )


def _paths(slot_tokens: Array, visible: Array, slot: Array) -> tuple[Array, Array]:
    """The path of each node of a tree: the tokens of its ancestors, then its own.

    Ancestors have smaller slots than their descendants.

    Args:
      slot_tokens: int32 ``[B, W, S]``, the token in each slot.
      visible: bool ``[B, W, T, S']``, S' at most S: the ancestors of each node.
      slot: int32 ``[B, W, T]``, the slot of each node.

    Returns:
      The paths, int32 ``[B, W, T, S]``, and their lengths, int32 ``[B, W, T]``.
    """
    size = slot_tokens.shape[-1]
    missing_slots = ((0, 0), (0, 0), (0, 0), (0, size - visible.shape[-1]))
    on_path = jnp.pad(visible, missing_slots)
    on_path |= jnp.arange(size, dtype=jnp.int32)[None, None, None] == slot[..., None]
    order = jnp.argsort(~on_path, axis=-1, stable=True)
    tokens = jnp.broadcast_to(slot_tokens[:, :, None], on_path.shape)
    return jnp.take_along_axis(tokens, order, axis=-1), on_path.sum(-1, dtype=jnp.int32)
