"""A model whose law is the transformed one, so that log-probabilities are of what is drawn from."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from decoding_jax.base import Array, LanguageModel, ModelOutput, Prefix, Prompt, Transform
from decoding_jax.ops.logits import clean


class RescaledCache(NamedTuple):
    """The model's cache, the prompts, and the new tokens int32 ``[B, W, S]``."""

    inner: Any
    prompt: Prompt
    tokens: Array


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Rescaled:
    """A model with a transform as part of it, for strategies that grow one token a call in step.

    A strategy's ``log_prob`` is under the model, before any transform; T5X's
    ``rescale_log_probs`` asks for it after them.

    Attributes:
      model: the model.
      transform: of its logits.
    """

    model: LanguageModel
    transform: Transform

    ragged = False
    tree = False

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
        none = jnp.zeros((batch, 1, 1, 1), jnp.int32)
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
        """See ``LanguageModel.extend``.

        Raises:
          ValueError: for more than one token a lane, lanes out of step, or a tree.
        """
        if tokens.shape[-1] != 1 or jnp.ndim(start) or visible is not None:
            raise ValueError(
                f"rescale_log_probs: got an extend by {tokens.shape[-1]} tokens from"
                f" {list(jnp.shape(start))} slots; takes strategies that grow in step by one"
            )
        output, inner = self.model.extend(cache.inner, tokens, start, None, position)
        path = lax.dynamic_update_slice(cache.tokens, tokens, (0, 0, jnp.asarray(start)))
        length = jnp.broadcast_to(jnp.asarray(start) + 1, tokens.shape)
        logits = self.transform(
            clean(output.logits), Prefix(*cache.prompt, path[:, :, None], length)
        )
        return output._replace(logits=logits), RescaledCache(inner, cache.prompt, path)
