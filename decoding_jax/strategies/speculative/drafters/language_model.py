"""A language model that drafts for another."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax.numpy as jnp
from jax import lax

from decoding_jax.base import Array, Cache, LanguageModel, ModelOutput, Prompt, SupportsProject
from decoding_jax.loop import check_lengths, model_calls
from decoding_jax.pytrees import pytree
from decoding_jax.strategies.speculative.drafters.base import Path


@pytree
@dataclasses.dataclass(frozen=True)
class ModelDrafter:
    """Drafts with a language model, whose cache is rewound together with the target's.

    A block begins with the last two tokens of the text: where the block before was accepted whole,
    its last token is not in the cache yet. So K drafted tokens take K calls (on a CPU K and a part:
    see ``feed_in_turn``).

    Attributes:
      model: of the target's vocabulary, ``ragged``; an encoder-decoder bound to the same rows.
    """

    model: LanguageModel

    @property
    def vocab_size(self) -> int:
        return self.model.vocab_size

    def init(self, prompt: Prompt, *, lanes: int, max_new_tokens: int, spare: int = 0) -> Any:
        """See ``Drafter.init``. ``spare`` slots are for the nodes of a tree.

        Raises:
          ValueError: for a model that is not ragged, or cannot hold so long a text.
        """
        if not self.model.ragged:
            raise ValueError(
                "drafter: got a model whose rows advance in step (ragged=False); "
                "takes one with ragged=True"
            )
        try:
            check_lengths(self.model, prompt.tokens.shape[1], max_new_tokens)
        except ValueError as error:
            raise ValueError(f"drafter: {error}") from None
        slots = max(max_new_tokens - 1, 1) + spare
        return model_calls.prefill(self.model, prompt, lanes=lanes, slots=slots, name="drafter")[1]

    def begin(self, state: Any, path: Path) -> tuple[Array, Any]:
        """See ``Drafter.begin``."""
        start = path.length - 2
        index = jnp.clip(start[..., None] + jnp.arange(2, dtype=jnp.int32)[None, None], 0)
        last = jnp.take_along_axis(path.tokens, index, axis=-1)
        # Two tokens cost an accelerator, which waits for the weights, hardly more than one. They
        # cost a CPU twice as much, but one whose output is not read spares the last layer.
        return lax.platform_dependent(
            state, last, start, cpu=self.feed_in_turn, default=self.feed_at_once
        )

    def next(self, state: Any, token: Array, slot: Array) -> tuple[Array, Any]:
        """See ``Drafter.next``."""
        output, cache = self._extend(state, token[..., None], slot)
        return output.logits[:, :, 0], cache

    def feed_at_once(self, cache: Cache, tokens: Array, start: Array) -> tuple[Array, Cache]:
        """The logits ``[B, W, V]`` after two tokens ``[B, W, 2]``, by one call of the model."""
        output, cache = self._extend(cache, tokens, start)
        if isinstance(self.model, SupportsProject) and output.hidden is not None:
            # The first token's logits are not read: a compiler then leaves both projections out
            # that ``extend`` makes, and makes this one of half the size.
            hidden = output.hidden[:, :, 1]
            return model_calls.project(self.model, hidden, self.vocab_size, name="drafter"), cache
        return output.logits[:, :, 1], cache

    def feed_in_turn(self, cache: Cache, tokens: Array, start: Array) -> tuple[Array, Cache]:
        """As ``feed_at_once``, by two calls, of which the first only leaves keys and values."""
        _, cache = self._extend(cache, tokens[..., :1], start)
        return self.next(cache, tokens[..., 1], start + 1)

    def _extend(self, cache: Cache, tokens: Array, start: Array) -> tuple[ModelOutput, Cache]:
        return model_calls.extend(self.model, cache, tokens, start, name="drafter")
