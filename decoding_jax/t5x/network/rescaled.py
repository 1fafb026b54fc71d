"""A model whose distribution is the transformed one, so that log-probabilities are of what is drawn from."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import lax

from decoding_jax.base import Array, LanguageModel, ModelOutput, Prefix, Prompt, Transform
from decoding_jax.ops.logits import clean
from decoding_jax.pytrees import pytree
from decoding_jax.strategies.speculative.appending import place_tokens


class RescaledCache(NamedTuple):
    """The model's cache, the prompts, and what each slot holds: tokens int32 ``[B, W, S]``."""

    inner: Any
    prompt: Prompt
    tokens: Array


@pytree
@dataclasses.dataclass(frozen=True)
class Rescaled:
    """A model with a transform as part of it.

    A strategy's ``log_prob`` is under the model, before any transform; T5X's
    ``rescale_log_probs`` asks for it after them.

    Attributes:
      model: the model.
      transform: of its logits.
    """

    model: LanguageModel
    transform: Transform

    @property
    def ragged(self) -> bool:
        return self.model.ragged

    @property
    def tree(self) -> bool:
        return self.model.tree

    @property
    def vocab_size(self) -> int:
        return self.model.vocab_size

    @property
    def max_positions(self) -> int | None:
        return self.model.max_positions

    def prefill(
        self, tokens: Array, length: Array, *, lanes: int, slots: int, with_hidden: bool = False
    ) -> tuple[ModelOutput, RescaledCache]:
        """See ``LanguageModel.prefill``."""
        output, inner = self.model.prefill(
            tokens, length, lanes=lanes, slots=slots, with_hidden=with_hidden
        )
        batch = tokens.shape[0]
        prompt = Prompt(tokens, length)
        none = jnp.zeros((*output.logits.shape[:3], 1), jnp.int32)
        logits = self.transform(clean(output.logits), Prefix(*prompt, none, none[..., 0]))
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
            held = place_tokens(cache.tokens, tokens, start)
        else:
            held = lax.dynamic_update_slice(cache.tokens, tokens, (0, 0, start))
        lanes = start[..., None] if start.ndim else start
        place = lanes + jnp.arange(tokens.shape[-1], dtype=jnp.int32)[None, None]
        if visible is None:
            length = jnp.broadcast_to(jnp.clip(place + 1, 0, held.shape[-1]), tokens.shape)
            paths = held[:, :, None]
        else:
            paths, length = _paths(held, visible, place)
        paths = jnp.broadcast_to(paths, (*tokens.shape, held.shape[-1]))
        logits = self.transform(clean(output.logits), Prefix(*cache.prompt, paths, length))
        return output._replace(logits=logits), RescaledCache(inner, cache.prompt, held)

    def keep(self, cache: RescaledCache, source: Array, start: Array | int) -> RescaledCache:
        """See ``SupportsKeep.keep``, which the model has."""
        model: Any = self.model
        moved = jnp.take_along_axis(cache.tokens, source, axis=-1, mode="clip")
        place = jnp.broadcast_to(jnp.asarray(start, jnp.int32), source.shape[:2])
        return cache._replace(
            inner=model.keep(cache.inner, source, start),
            tokens=place_tokens(cache.tokens, moved, place),
        )


def _paths(held: Array, visible: Array, place: Array) -> tuple[Array, Array]:
    """Of each node of a tree, its ancestors' tokens and its own, and how many they are.

    A path's slots rise from the root on.

    Args:
      held: int32 ``[B, W, S]``.
      visible: bool ``[B, W, T, S']``, S' at most S.
      place: int32 ``[B, W, T]``, each node's slot.

    Returns:
      int32 ``[B, W, T, S]`` and ``[B, W, T]``.
    """
    size = held.shape[-1]
    beyond = ((0, 0), (0, 0), (0, 0), (0, size - visible.shape[-1]))
    on_path = jnp.pad(visible, beyond)
    on_path |= jnp.arange(size, dtype=jnp.int32)[None, None, None] == place[..., None]
    order = jnp.argsort(~on_path, axis=-1, stable=True)
    wide = jnp.broadcast_to(held[:, :, None], on_path.shape)
    return jnp.take_along_axis(wide, order, axis=-1), on_path.sum(-1, dtype=jnp.int32)
