"""Penalties on tokens that have occurred: repetition, presence, frequency."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from decoding_jax import fields, rows
from decoding_jax.base import Prefix
from decoding_jax.ops.logits import clean
from decoding_jax.pytrees import pytree
from decoding_jax.transforms import history

Array = jax.Array


@pytree
@dataclasses.dataclass(frozen=True, eq=False)
class RepetitionPenalty:
    """Divides positive logits of tokens that have occurred, and multiplies negative ones.

    ``l_i / penalty`` where ``l_i > 0``, ``l_i penalty`` elsewhere, for each token i of the text so
    far. The result depends on the zero of the logits, so put it before other transforms. Keskar,
    McCann, Varshney, Xiong & Socher (2019), "CTRL", arXiv:1909.05858 (with the sign rule that later
    implementations added).

    Attributes:
      penalty: above 0: a number or float32 ``[B]``; 1 changes nothing. A traced value of 0 or
        below has no meaning, but masked tokens do not become NaN.
      include_prompt: whether the prompt's tokens count, as they do by default.

    Raises:
      ValueError: for a number that is not positive and finite, unless it is traced.

    Example:
      >>> from decoding_jax import transforms
      >>> from decoding_jax.base import Prefix
      >>> tokens = jnp.array([[[[2]]]])
      >>> prefix = Prefix(jnp.array([[0]]), jnp.array([1]), tokens, jnp.array([[[1]]]))
      >>> logits = jnp.array([3.0, 3.0, -3.0])[None, None, None, :]
      >>> transforms.repetition_penalty(1.5)(logits, prefix)[0, 0, 0]
      Array([ 2. ,  3. , -4.5], dtype=float32)
    """

    penalty: Any = fields.number("a finite number above 0", lambda x: (x > 0) & np.isfinite(x))
    include_prompt: bool = fields.switch(default=True)

    def __post_init__(self) -> None:
        fields.check(self, fields.label(self))

    def __call__(self, logits: Array, prefix: Prefix) -> Array:
        logits = clean(logits)
        penalty = rows.per_row(self, "penalty", logits)
        seen = history.counts(prefix, logits.shape[-1], self.include_prompt) > 0
        changed = jnp.where(logits > 0, logits / penalty, logits * penalty)
        return jnp.where(seen & (logits > -jnp.inf), changed, logits)


@pytree
@dataclasses.dataclass(frozen=True, eq=False)
class PresencePenalty:
    """Lowers the logit of every token that has occurred by the same amount, however often it has.

    ``l_i - penalty [c_i > 0]`` with ``c_i`` the count of token i, as in the OpenAI API reference.

    Attributes:
      penalty: a finite number or float32 ``[B]``; a negative one raises logits.
      include_prompt: whether the prompt's tokens count; by default only generated ones do.

    Raises:
      ValueError: for a number that is not finite, unless it is traced.

    Example:
      >>> from decoding_jax import transforms
      >>> from decoding_jax.base import Prefix
      >>> tokens = jnp.array([[[[1, 1]]]])
      >>> prefix = Prefix(jnp.array([[0]]), jnp.array([1]), tokens, jnp.array([[[2]]]))
      >>> transforms.presence_penalty(0.5)(jnp.zeros((1, 1, 1, 3)), prefix)[0, 0, 0]
      Array([ 0. , -0.5,  0. ], dtype=float32)
    """

    penalty: Any = fields.number("a finite number", np.isfinite)
    include_prompt: bool = fields.switch(default=False)

    def __post_init__(self) -> None:
        fields.check(self, fields.label(self))

    def __call__(self, logits: Array, prefix: Prefix) -> Array:
        logits = clean(logits)
        penalty = rows.per_row(self, "penalty", logits)
        seen = history.counts(prefix, logits.shape[-1], self.include_prompt) > 0
        return jnp.where(seen, logits - penalty, logits)


@pytree
@dataclasses.dataclass(frozen=True, eq=False)
class FrequencyPenalty:
    """Lowers the logit of a token in proportion to how often it has occurred.

    ``l_i - penalty c_i`` with ``c_i`` the count of token i, as in the OpenAI API reference.

    Attributes:
      penalty: a finite number or float32 ``[B]``; a negative one raises logits.
      include_prompt: whether the prompt's tokens count; by default only generated ones do.

    Raises:
      ValueError: for a number that is not finite, unless it is traced.

    Example:
      >>> from decoding_jax import transforms
      >>> from decoding_jax.base import Prefix
      >>> tokens = jnp.array([[[[1, 1]]]])
      >>> prefix = Prefix(jnp.array([[0]]), jnp.array([1]), tokens, jnp.array([[[2]]]))
      >>> transforms.frequency_penalty(0.5)(jnp.zeros((1, 1, 1, 3)), prefix)[0, 0, 0]
      Array([ 0., -1.,  0.], dtype=float32)
    """

    penalty: Any = fields.number("a finite number", np.isfinite)
    include_prompt: bool = fields.switch(default=False)

    def __post_init__(self) -> None:
        fields.check(self, fields.label(self))

    def __call__(self, logits: Array, prefix: Prefix) -> Array:
        logits = clean(logits)
        penalty = rows.per_row(self, "penalty", logits)
        occurrences = history.counts(prefix, logits.shape[-1], self.include_prompt)
        return logits - penalty * occurrences.astype(jnp.float32)
