"""Counts how often a function is traced, with the model that is passed to it."""

from __future__ import annotations

import dataclasses
from typing import Any

from decoding_jax.base import Array, Cache, ModelOutput
from decoding_jax.pytrees import pytree


class Counter:
    """A counter. Two counters are never equal."""

    def __init__(self) -> None:
        self.count = 0


@pytree
@dataclasses.dataclass(frozen=True)
class CountTraces:
    """A model that counts the calls of its ``prefill``, and so how often ``jit`` traces it.

    Attributes:
      model: the model that computes the results.
      counter: its ``count`` increases by one with each call.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from decoding_jax.testing import TableLM
      >>> model = CountTraces(TableLM.random(jax.random.key(0), 3))
      >>> logits = jax.jit(lambda m, t, n: m.prefill(t, n, lanes=1, slots=1)[0].logits)
      >>> for token in (0, 1, 2):
      ...     _ = logits(model, jnp.array([[token]]), jnp.array([1]))
      >>> model.counter.count
      1
    """

    model: Any
    counter: Counter = dataclasses.field(default_factory=Counter, metadata={"static": True})

    @property
    def vocab_size(self) -> int:
        return self.model.vocab_size

    @property
    def max_positions(self) -> int | None:
        return self.model.max_positions

    @property
    def ragged(self) -> bool:
        return self.model.ragged

    @property
    def tree(self) -> bool:
        return self.model.tree

    def prefill(self, tokens: Array, length: Array, **settings: Any) -> tuple[ModelOutput, Cache]:
        """Counts the call, and calls the model."""
        self.counter.count += 1
        return self.model.prefill(tokens, length, **settings)

    def extend(self, *args: Any, **settings: Any) -> tuple[ModelOutput, Cache]:
        """Calls the model."""
        return self.model.extend(*args, **settings)

    def keep(self, *args: Any, **settings: Any) -> Cache:
        """Calls the model."""
        return self.model.keep(*args, **settings)

    def select(self, *args: Any, **settings: Any) -> Cache:
        """Calls the model."""
        return self.model.select(*args, **settings)
