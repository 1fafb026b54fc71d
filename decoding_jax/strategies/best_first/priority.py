"""What a search ranks hypotheses by: scores, and a decay that favours the young.

A score is fixed when a hypothesis is made. It is an object with ``Score``'s two functions; those
here are frozen dataclasses and pytrees whose numbers are leaves.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Protocol

import jax.numpy as jnp

from decoding_jax.base import Array
from decoding_jax.ops import exact
from decoding_jax.pytrees import pytree
from decoding_jax.transforms import settings


class Score(Protocol):
    """How good a hypothesis is: while it grows, and once it is done."""

    def __call__(self, log_prob: Array, last: Array, length: Array) -> Array:
        """What to expand first.

        Args:
          log_prob: float32 ``[...]``, of all new tokens, in nats, at most 0.
          last: float32 ``[...]``, of the last of them.
          length: int32 ``[...]``, how many they are, at least 1.
        """
        ...

    def final(self, log_prob: Array, length: Array) -> Array:
        """What to return first. It must not rise as ``log_prob`` or ``length`` falls."""
        ...


@pytree
@dataclasses.dataclass(frozen=True)
class LogProb:
    """The log-probability of the hypothesis: the sum over its tokens."""

    def __call__(self, log_prob: Array, last: Array, length: Array) -> Array:
        return log_prob

    def final(self, log_prob: Array, length: Array) -> Array:
        return log_prob


@pytree
@dataclasses.dataclass(frozen=True)
class MeanLogProb:
    """The log-probability over ``length ** alpha``.

    Attributes:
      alpha: 0 and above. 1 is the mean over the tokens, 0 their sum.

    Raises:
      ValueError: for a plain number below 0.

    Example:
      >>> MeanLogProb().final(jnp.array([-6.0]), jnp.array([3]))
      Array([-2.], dtype=float32)
    """

    alpha: Any = 1.0

    def __post_init__(self) -> None:
        settings.check(self, "alpha", "numbers of 0 and above", lambda x: x >= 0)

    def __call__(self, log_prob: Array, last: Array, length: Array) -> Array:
        return self.final(log_prob, length)

    def final(self, log_prob: Array, length: Array) -> Array:
        length = jnp.maximum(length, 1)
        mean = log_prob / length.astype(jnp.float32)  # to the last bit, as users will compute it
        adjusted = -jnp.abs(log_prob * exact.inverse_power(length, self.alpha))
        return jnp.where(self.alpha == 1.0, mean, adjusted)


@pytree
@dataclasses.dataclass(frozen=True)
class LastLogProb:
    """The log-probability of the last token alone: a memoryless search.

    What is done is ranked by its whole log-probability, since the end token's alone says nothing.
    """

    def __call__(self, log_prob: Array, last: Array, length: Array) -> Array:
        return last

    def final(self, log_prob: Array, length: Array) -> Array:
        return log_prob


SCORES: dict[str, Score] = {"log_prob": LogProb(), "mean": MeanLogProb(), "last": LastLogProb()}


def as_score(score: str | Score) -> Score:
    """A score by its name, or one's own.

    Raises:
      ValueError: for an unknown name.
    """
    if not isinstance(score, str):
        return score
    if score not in SCORES:
        raise ValueError(f"score: got {score!r}; takes one of {', '.join(SCORES)}, or an object")
    return SCORES[score]


@pytree
@dataclasses.dataclass(frozen=True)
class Decay:
    """What waiting costs: ``kappa * age ** beta``, age in steps since a hypothesis was made.

    Xu et al. 2022, "Best-k Search Algorithm for Neural Text Generation", section 4.3, for which
    kappa is one of 0, 0.01, 0.05, 0.1 and 0.2.

    Attributes:
      kappa: 0 and above.
      beta: above 0.

    Raises:
      ValueError: for plain numbers out of range.

    Example:
      >>> [f"{cost:.3f}" for cost in Decay(0.5).table(5)]
      ['0.000', '0.500', '0.707', '0.866', '1.000']
    """

    kappa: Any = 0.0
    beta: Any = 0.5

    def __post_init__(self) -> None:
        settings.check(self, "kappa", "numbers of 0 and above", lambda x: x >= 0)
        settings.check(self, "beta", "numbers above 0", lambda x: x > 0)

    def table(self, size: int) -> Array:
        """float32 ``[size]``: the cost at ages from 0."""
        age = jnp.arange(size)
        beta = jnp.asarray(self.beta, jnp.float32)
        cost = self.kappa / exact.inverse_power(jnp.maximum(age, 1), beta)
        return jnp.where(age == 0, 0.0, cost)


def as_decay(decay: Any) -> Decay:
    """A ``Decay``, from one or from its kappa."""
    return decay if isinstance(decay, Decay) else Decay(decay)
