"""The priority of a hypothesis: its score, plus a temporal decay that favours recent ones.

Line 5 of Algorithm 1 (Xu et al. 2022): ``n.score + decay(n.time, t)``. The score is fixed when a
hypothesis is made. It is an object with the two functions of ``Score``; the scores in this file
are frozen dataclasses and pytrees whose numbers are leaves.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Protocol

import jax.numpy as jnp

from decoding_jax import fields
from decoding_jax.base import Array
from decoding_jax.ops import exact
from decoding_jax.pytrees import pytree


class Score(Protocol):
    """Scores of hypotheses: one to expand them by, and one to rank the results by."""

    def __call__(self, log_prob: Array, last: Array, length: Array) -> Array:
        """The score that decides which hypothesis is expanded first.

        Args:
          log_prob: float32 ``[...]``, the sum over all new tokens, in nats, at most 0.
          last: float32 ``[...]``, the log-probability of the last token.
          length: int32 ``[...]``, the number of new tokens, at least 1.
        """
        ...

    def final(self, log_prob: Array, length: Array) -> Array:
        """The score that ranks results. It must not rise as ``log_prob`` or ``length`` falls."""
        ...


@pytree
@dataclasses.dataclass(frozen=True)
class LogProb:
    """The log-probability of the hypothesis, which is the sum over its tokens."""

    def __call__(self, log_prob: Array, last: Array, length: Array) -> Array:
        return log_prob

    def final(self, log_prob: Array, length: Array) -> Array:
        return log_prob


@pytree
@dataclasses.dataclass(frozen=True)
class MeanLogProb:
    """The log-probability divided by ``length ** alpha``.

    Attributes:
      alpha: 0 or more. 1 gives the mean over the tokens, 0 the sum.

    Raises:
      ValueError: for a plain number below 0.

    Example:
      >>> MeanLogProb().final(jnp.array([-6.0]), jnp.array([3]))
      Array([-2.], dtype=float32)
    """

    alpha: Any = fields.number("a number of 0 or more", lambda x: x >= 0, by_row=False, default=1.0)

    def __post_init__(self) -> None:
        fields.check(self, fields.label(self))

    def __call__(self, log_prob: Array, last: Array, length: Array) -> Array:
        return self.final(log_prob, length)

    def final(self, log_prob: Array, length: Array) -> Array:
        length = jnp.maximum(length, 1)
        mean = exact.divide(log_prob, length.astype(jnp.float32))
        adjusted = -jnp.abs(log_prob * exact.inverse_power(length, self.alpha))
        return jnp.where(self.alpha == 1.0, mean, adjusted)


@pytree
@dataclasses.dataclass(frozen=True)
class LastLogProb:
    """The log-probability of the last token alone, for a memoryless search.

    Results are ranked by their whole log-probability, because the log-probability of the end token
    alone says little about a sequence.
    """

    def __call__(self, log_prob: Array, last: Array, length: Array) -> Array:
        return last

    def final(self, log_prob: Array, length: Array) -> Array:
        return log_prob


SCORES: dict[str, Score] = {"log_prob": LogProb(), "mean": MeanLogProb(), "last": LastLogProb()}


def check_score(name: str, score: Any) -> Score:
    """Looks a score up by its name; an object is returned unchanged.

    Raises:
      ValueError: for an unknown name, or an object without ``Score``'s functions.
    """
    if callable(score) and hasattr(score, "final") and not isinstance(score, type):
        return score
    if not isinstance(score, str) or score not in SCORES:
        raise fields.error(name, f"one of {', '.join(SCORES)}, or an object", score)
    return SCORES[score]


@pytree
@dataclasses.dataclass(frozen=True)
class Decay:
    """The temporal decay ``-kappa * (t - n.time) ** beta`` of a hypothesis n at step t.

    Xu et al. 2022, "Best-k Search Algorithm for Neural Text Generation", section 4.3, where kappa
    is one of 0, 0.01, 0.05, 0.1 and 0.2. The age ``t - n.time`` is at least 1: the children that
    are made at step t compete for the first time at step t + 1.

    Attributes:
      kappa: 0 or more.
      beta: above 0.

    Raises:
      ValueError: for plain numbers out of range.

    Example:
      A node found at step 1 has a decay of -4 at step 5, and one found at step 4 a decay of -1.

      >>> decay = Decay(kappa=1.0, beta=1.0).table(5)
      >>> [f"{decay[5 - time]:.3f}" for time in (1, 4)]
      ['-4.000', '-1.000']
    """

    kappa: Any = fields.number("a number of 0 or more", lambda x: x >= 0, by_row=False, default=0.0)
    beta: Any = fields.number("a number above 0", lambda x: x > 0, by_row=False, default=0.5)

    def __post_init__(self) -> None:
        fields.check(self, fields.label(self))

    def table(self, size: int) -> Array:
        """float32 ``[size]``: the decay at ages 0 to ``size - 1``; at age 0 it is 0."""
        age = jnp.arange(size, dtype=jnp.int32)
        beta = jnp.asarray(self.beta, jnp.float32)
        decay = -jnp.asarray(self.kappa, jnp.float32) / exact.inverse_power(
            jnp.maximum(age, 1), beta
        )
        return jnp.where(age == 0, 0.0, decay)


def check_decay(name: str, decay: Any) -> Decay:
    """A ``Decay``, or the ``Decay`` that has this kappa."""
    return decay if isinstance(decay, Decay) else Decay(decay)
