"""A language model as a drafter."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax.numpy as jnp
from jax import lax

from decoding_jax import fields
from decoding_jax.base import Array, Cache, LanguageModel, ModelOutput, Prompt, SupportsProject
from decoding_jax.loop import check_lengths, model_calls
from decoding_jax.pytrees import pytree
from decoding_jax.sharding import meshes
from decoding_jax.strategies.speculative.drafters.base import Path, confidence


@pytree
@dataclasses.dataclass(frozen=True)
class ModelDrafter:
    """Drafts with a language model, whose cache is rewound together with the target's.

    Each block begins by feeding the last two tokens of the sequence, because the last drafted token
    of a fully accepted block is not in the cache yet. K drafted tokens therefore take K calls, or
    on a CPU K and a fraction (see ``feed_in_turn``).

    Attributes:
      model: a ``ragged`` model of the target's vocabulary; an encoder-decoder must be bound to the
        same rows.
      target_size: None, or the target's V, where the tables of both have the same tokens but are
        padded to different sizes. Only tokens of both are drafted.
      greedy: whether each drafted token is the most probable one after the transform, proposed with
        certainty, rather than drawn. Samples follow the target's distribution all the same.
      min_confidence: a draft ends with the first token whose probability, under the draft's
        transformed distribution, is below this number, from 0 to 1. It is the
        ``assistant_confidence_threshold`` of ``transformers``, except that earlier blocks do not
        change it.

    Raises:
      ValueError: for a ``min_confidence`` outside 0 to 1.

    Example:
      >>> import jax
      >>> from decoding_jax.testing import TableLM
      >>> drafter = ModelDrafter(TableLM.random(jax.random.key(0), 5), greedy=True)
      >>> drafter.greedy, drafter.vocab_size
      (True, 5)
    """

    model: LanguageModel
    greedy: bool = fields.switch(default=False)
    min_confidence: float = confidence()
    target_size: int | None = fields.count(default=None)

    def __post_init__(self) -> None:
        fields.check(self)

    @property
    def vocab_size(self) -> int:
        return self.target_size or self.model.vocab_size

    @property
    def widens(self) -> bool:
        return getattr(self.model, "widens", False)

    def bind(self, tokens: Array, length: Array) -> ModelDrafter:
        """See ``SupportsBind.bind``: binds a model that uses encoder inputs."""
        if not hasattr(self.model, "bind"):
            return self
        return dataclasses.replace(self, model=self.model.bind(tokens, length))

    def init(self, prompt: Prompt, *, lanes: int, max_new_tokens: int) -> Cache:
        """See ``Drafter.init``. Every lane has a slot for each new token but the last.

        Raises:
          ValueError: for a model that is not ragged, or has too few positions.
        """
        slots = max(max_new_tokens - 1, 1)
        return self.open(prompt, lanes=lanes, slots=slots, max_new_tokens=max_new_tokens)

    def open(
        self, prompt: Prompt, *, lanes: int, slots: int, max_new_tokens: int, **sizes: Any
    ) -> Cache:
        """See ``TreeDrafter.open``; errors as for ``init``."""
        if not self.model.ragged:
            raise ValueError(
                "drafter: expected a model with ragged=True, got one whose rows advance in step"
            )
        try:
            check_lengths(self.model, prompt.tokens.shape[1], max_new_tokens)
        except ValueError as error:
            raise ValueError(f"drafter: {error}") from None
        prompt = Prompt(self._known(prompt.tokens), prompt.length)
        return model_calls.prefill(self.model, prompt, lanes=lanes, slots=slots, name="drafter")[1]

    def _known(self, tokens: Array) -> Array:
        """The tokens, with one that the model knows in the place of each of the target's padding.

        Samples stay exact, whatever a draft has read.
        """
        if self.vocab_size <= self.model.vocab_size:
            return tokens
        return jnp.minimum(tokens, self.model.vocab_size - 1)

    def _of_target(self, logits: Array) -> Array:
        """Logits ``[..., V]``: without those of the model's padding, and -inf for the target's."""
        size = self.model.vocab_size
        if self.vocab_size == size:
            return logits
        logits = meshes.gathered(logits)[..., : self.vocab_size]
        padding = [(0, 0)] * (logits.ndim - 1) + [(0, max(self.vocab_size - size, 0))]
        return jnp.pad(logits, padding, constant_values=-jnp.inf)

    def begin(self, state: Any, path: Path) -> tuple[Array, Any]:
        """See ``Drafter.begin``."""
        start = path.length - 2
        last = path.tokens_from(start, 2)
        # An accelerator is limited by reading the weights, so two tokens take hardly longer than
        # one. A CPU takes twice as long in one call. In two calls, the compiler drops the parts of
        # the first call that only its unused output needs.
        return lax.platform_dependent(
            state, last, start, cpu=self.feed_in_turn, default=self.feed_at_once
        )

    def next(self, state: Any, token: Array, slot: Array) -> tuple[Array, Any]:
        """See ``Drafter.next``."""
        output, cache = self._extend(state, token[..., None], slot)
        return self._of_target(output.logits[:, :, 0]), cache

    def feed_at_once(self, cache: Cache, tokens: Array, start: Array) -> tuple[Array, Cache]:
        """The logits ``[B, W, V]`` after two tokens ``[B, W, 2]``, by one call of the model."""
        output, cache = self._extend(cache, tokens, start)
        if isinstance(self.model, SupportsProject) and output.hidden is not None:
            # The logits of ``extend`` are unused, so the compiler drops its projections of both
            # tokens and computes only this one.
            hidden = output.hidden[:, :, 1]
            size = self.model.vocab_size
            logits = model_calls.project(self.model, hidden, size, name="drafter")
            return self._of_target(logits), cache
        return self._of_target(output.logits[:, :, 1]), cache

    def feed_in_turn(self, cache: Cache, tokens: Array, start: Array) -> tuple[Array, Cache]:
        """As ``feed_at_once``, by two calls; of the first, only keys and values are used."""
        _, cache = self._extend(cache, tokens[..., :1], start)
        return self.next(cache, tokens[..., 1], start + 1)

    def _extend(self, cache: Cache, tokens: Array, start: Array) -> tuple[ModelOutput, Cache]:
        return model_calls.extend(self.model, cache, self._known(tokens), start, name="drafter")

    def next_level(
        self,
        state: Any,
        tokens: Array,
        start: Array,
        visible: Array,
        parent: Array | None = None,
    ) -> tuple[Array, Any]:
        """See ``TreeDrafter.next_level``."""
        new = self._known(tokens), start, visible
        output, cache = model_calls.extend(self.model, state, *new, name="drafter")
        return self._of_target(output.logits), cache

    def keep(self, state: Any, source: Array, start: Array) -> Any:
        """See ``TreeDrafter.keep``."""
        model: Any = self.model
        return model.keep(state, source, start)
