"""Length penalties: divisors of the scores of hypotheses that have ended."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from decoding_jax import fields
from decoding_jax.base import Array
from decoding_jax.pytrees import pytree

LengthPenalty = Callable[[Array], Array]
"""Maps int32 lengths, at least 1 and of any shape, to positive float32 divisors. It is monotone."""


@pytree
@dataclasses.dataclass(frozen=True)
class PowerPenalty:
    """The penalty length^exponent of ``transformers``.

    Attributes:
      exponent: a number, or float32 ``[B]``, one for each row. 0 ranks by the sum of
        log-probabilities, 1 by their mean; values above 0 favour long sequences.

    Example:
      >>> PowerPenalty(0.5)(jnp.array([4])).tolist()
      [2.0]
    """

    exponent: Any = fields.number("a number", np.isfinite, default=0.0)

    def __post_init__(self) -> None:
        fields.check(self, fields.label(self))

    def __call__(self, length: Array) -> Array:
        return length.astype(jnp.float32) ** _per_row(self.exponent, length)


@pytree
@dataclasses.dataclass(frozen=True)
class GNMTPenalty:
    """The penalty ((5 + length) / 6)^alpha: Wu et al. 2016, equation 14; T5X's ``brevity_penalty``.

    Attributes:
      alpha: a number, or float32 ``[B]``, one for each row.

    Example:
      >>> GNMTPenalty(1.0)(jnp.array([1, 7])).tolist()
      [1.0, 2.0]
    """

    alpha: Any = fields.number("a number", np.isfinite, default=0.6)

    def __post_init__(self) -> None:
        fields.check(self, fields.label(self))

    def __call__(self, length: Array) -> Array:
        return ((5.0 + length.astype(jnp.float32)) / 6.0) ** _per_row(self.alpha, length)


def check_length_penalty(name: str, penalty: Any) -> LengthPenalty:
    """Checks a setting ``length_penalty``; numbers become a ``PowerPenalty``.

    Raises:
      ValueError: for anything but a number, an array of numbers, or a function.
    """
    if callable(penalty):
        return penalty
    if isinstance(penalty, (tuple, list)):
        penalty = np.asarray(penalty)
    if isinstance(penalty, (int, float, np.ndarray, np.generic, jax.Array)):
        return PowerPenalty(penalty)
    expected = "a number, one for each row [B], or a function such as GNMTPenalty(0.6)"
    raise fields.error(name, expected, penalty)


def _per_row(setting: Any, length: Array) -> Array:
    value = jnp.asarray(setting, jnp.float32)
    return value.reshape((*value.shape, *(1,) * (length.ndim - value.ndim)))
