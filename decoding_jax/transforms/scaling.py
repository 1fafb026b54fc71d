"""Temperature."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from decoding_jax import fields, rows
from decoding_jax.base import Prefix
from decoding_jax.ops import vocab
from decoding_jax.ops.logits import clean
from decoding_jax.pytrees import pytree

Array = jax.Array

_SMALLEST = 1e-30  # temperatures below it count as 0


@pytree
@dataclasses.dataclass(frozen=True, eq=False)
class Temperature:
    """Divides logits by a temperature: ``p_i`` is proportional to ``exp(l_i / t)``.

    Temperature 0 is argmax: the most probable token, or the lowest id among equals, gets logit 0,
    and all others get -inf. Ackley, Hinton & Sejnowski (1985), "A learning algorithm for Boltzmann
    machines", Cognitive Science 9.

    Where the largest logit divided by the temperature would overflow float32, it is first
    subtracted from all logits, which does not change the probabilities.

    Attributes:
      value: t, 0 and above: a number or float32 ``[B]``. A traced value below 1e-30, including a
        negative one, counts as 0.

    Raises:
      ValueError: for a negative or non-finite number, unless it is traced.

    Example:
      >>> from decoding_jax import transforms
      >>> logits = jnp.array([1.0, 3.0, 2.0])[None, None, None, :]
      >>> transforms.temperature(0.5)(logits, None)[0, 0, 0]
      Array([2., 6., 4.], dtype=float32)
      >>> transforms.temperature(0)(logits, None)[0, 0, 0]
      Array([-inf,   0., -inf], dtype=float32)
    """

    value: Any = fields.number("a finite number of 0 or more", lambda x: (x >= 0) & np.isfinite(x))

    def __post_init__(self) -> None:
        fields.check(self, fields.label(self))

    def __call__(self, logits: Array, prefix: Prefix) -> Array:
        logits = clean(logits)
        value = rows.per_row(self, "value", logits)
        greedy = value < _SMALLEST
        masked = logits == -jnp.inf
        divisor = jnp.where(greedy, 1.0, value)
        peak = logits.max(-1, keepdims=True)
        overflows = jnp.isinf(peak / divisor) & ~masked
        scaled = (logits - jnp.where(overflows, peak, 0.0)) / divisor
        scaled = jnp.where(
            greedy, jnp.where(vocab.first_argmax(logits), jnp.float32(0), -jnp.inf), scaled
        )
        return jnp.where(masked, -jnp.inf, scaled)
