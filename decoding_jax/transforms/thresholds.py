"""Truncation by a threshold on each token's probability: min-p, epsilon, eta.

A token's ``exp(logit - peak)`` is compared with the threshold times the sum of these. A probability
that equals its threshold is kept. A probability that is lower by at most ``SLACK`` of its value
counts as equal, because float32 cannot distinguish the two.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from decoding_jax import fields, rows
from decoding_jax.base import Prefix
from decoding_jax.ops import exact, vocab
from decoding_jax.ops.logits import clean, normaliser
from decoding_jax.pytrees import pytree

Array = jax.Array

SLACK = 2.0**-18
"""About 4e-6: a bound of the relative rounding error of a probability computed in float32."""


def _at_least(logits: Array, weights: Array, threshold: Array) -> Array:
    """Masks tokens whose weight is below the threshold, except the most probable token."""
    keep = (weights >= threshold * (1.0 - SLACK)) | vocab.first_argmax(logits)
    return jnp.where(keep, logits, -jnp.inf)


def _softmax(logits: Array) -> tuple[Array, Array, Array]:
    """``logits - peak`` and its exponential ``[..., V]``, and their sum ``[..., 1]``."""
    peak, total = normaliser(logits)
    below = logits - peak
    return below, exact.exp(below), total


@pytree
@dataclasses.dataclass(frozen=True, eq=False)
class MinP:
    """Keeps tokens whose probability is at least a fraction of the largest probability.

    ``p_i >= p max_j p_j``, to a relative 4e-6. Nguyen, Baker, Neo, Roush, Kirsch & Shwartz-Ziv
    (2024), "Turning up the heat: min-p sampling for creative and coherent LLM outputs",
    arXiv:2407.01082.

    Attributes:
      p: from 0 (every token) to 1 (the most probable and its equals): a number or float32
        ``[B]``; traced values outside are clipped.

    Raises:
      ValueError: for a number outside [0, 1] that is not traced.

    Example:
      >>> from decoding_jax import transforms
      >>> logits = jnp.array([0.0, -1.0, -3.0])[None, None, None, :]
      >>> transforms.min_p(0.1)(logits, None)[0, 0, 0]
      Array([  0.,  -1., -inf], dtype=float32)
    """

    p: Any = fields.probability()

    def __post_init__(self) -> None:
        fields.check(self, fields.label(self))

    def __call__(self, logits: Array, prefix: Prefix) -> Array:
        logits = clean(logits)
        p = jnp.clip(rows.per_row(self, "p", logits), 0.0, 1.0)
        below = vocab.below_max(logits)
        keep = jnp.where(p < 1, exact.exp(below) >= p * (1.0 - SLACK), below >= 0)
        return jnp.where(keep, logits, -jnp.inf)


@pytree
@dataclasses.dataclass(frozen=True, eq=False)
class Epsilon:
    """Keeps tokens whose probability is at least epsilon: epsilon sampling.

    ``p_i >= epsilon``, to a relative 4e-6, or the most probable token if there is none. Hewitt,
    Manning & Liang (2022), "Truncation sampling as language model desmoothing", arXiv:2210.15191.

    Attributes:
      epsilon: from 0 (every token) to 1: a number or float32 ``[B]``; traced values outside are
        clipped.

    Raises:
      ValueError: for a number outside [0, 1] that is not traced.

    Example:
      >>> from decoding_jax import transforms
      >>> logits = jnp.log(jnp.array([0.7, 0.25, 0.05]))[None, None, None, :]
      >>> transforms.epsilon(0.1)(logits, None)[0, 0, 0] > -jnp.inf
      Array([ True,  True, False], dtype=bool)
    """

    epsilon: Any = fields.probability()

    def __post_init__(self) -> None:
        fields.check(self, fields.label(self))

    def __call__(self, logits: Array, prefix: Prefix) -> Array:
        logits = clean(logits)
        epsilon = jnp.clip(rows.per_row(self, "epsilon", logits), 0.0, 1.0)
        _, weights, total = _softmax(logits)
        return _at_least(logits, weights, epsilon * total)


@pytree
@dataclasses.dataclass(frozen=True, eq=False)
class Eta:
    """Keeps tokens above a threshold that falls with the entropy: eta sampling.

    ``p_i >= min(epsilon, sqrt(epsilon) exp(-H))``, to a relative 4e-6, with
    ``H = -sum_i p_i log p_i``; or the most probable token if there is none. Hewitt, Manning &
    Liang (2022), "Truncation sampling as language model desmoothing", arXiv:2210.15191.

    Attributes:
      epsilon: from 0 (every token) to 1: a number or float32 ``[B]``; traced values outside are
        clipped.

    Raises:
      ValueError: for a number outside [0, 1] that is not traced.

    Example:
      >>> from decoding_jax import transforms
      >>> logits = jnp.log(jnp.array([0.7, 0.25, 0.05]))[None, None, None, :]
      >>> transforms.eta(0.1)(logits, None)[0, 0, 0] > -jnp.inf
      Array([ True,  True, False], dtype=bool)
    """

    epsilon: Any = fields.probability()

    def __post_init__(self) -> None:
        fields.check(self, fields.label(self))

    def __call__(self, logits: Array, prefix: Prefix) -> Array:
        logits = clean(logits)
        epsilon = jnp.clip(rows.per_row(self, "epsilon", logits), 0.0, 1.0)
        below, weights, total = _softmax(logits)
        # exp(-H) * total = exp(mean), where mean is the expectation of ``below``.
        mean = exact.sum_last(jnp.where(weights > 0, weights * below, 0.0))[..., None]
        by_entropy = jnp.sqrt(epsilon) * exact.exp(mean / jnp.maximum(total, 1.0))
        return _at_least(logits, weights, jnp.minimum(epsilon * total, by_entropy))
