"""Temperature, and truncations: top-k, top-p, typical, min-p, epsilon, eta, top-n-sigma, top-H.

Min-p, epsilon and eta compare a token's ``exp(logit - peak)`` with a threshold times the sum of
these. A probability that equals its threshold is kept. A probability that is lower by at most
``SLACK`` of its value counts as equal, because float32 cannot distinguish the two.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from decoding_jax import fields, rows
from decoding_jax.base import Prefix
from decoding_jax.ops import exact, vocab
from decoding_jax.ops.logits import clean, normaliser
from decoding_jax.ops.shortest_prefix import shortest_prefix
from decoding_jax.pytrees import pytree

Array = jax.Array

_SMALLEST = 1e-30  # temperatures below it count as 0
_BANNED = 0x7F800000  # the integer image of infinity


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


@pytree
@dataclasses.dataclass(frozen=True, eq=False)
class TopK:
    """Keeps exactly the k most probable tokens; among equal ones, those of the lowest ids.

    Fan, Lewis & Dauphin (2018), "Hierarchical neural story generation", arXiv:1805.04833.

    Attributes:
      k: 1 and above: an int or int32 ``[B]``. If k is V or more, nothing is masked. A traced
        value below 1 counts as 1.

    Raises:
      ValueError: for a number below 1 that is not traced.

    Example:
      >>> from decoding_jax import transforms
      >>> logits = jnp.array([1.0, 2.0, 2.0, 2.0])[None, None, None, :]
      >>> transforms.top_k(2)(logits, None)[0, 0, 0]
      Array([-inf,   2.,   2., -inf], dtype=float32)
    """

    k: Any = fields.number("an int of 1 or more", lambda x: x >= 1, np.int32)

    def __post_init__(self) -> None:
        fields.check(self, fields.label(self))

    def __call__(self, logits: Array, prefix: Prefix) -> Array:
        logits = clean(logits)
        k = jnp.maximum(rows.per_row(self, "k", logits[..., 0], jnp.int32), 1)
        one_each = (logits > -jnp.inf).astype(jnp.int32)
        keep = shortest_prefix(logits, (one_each,), (k,))
        return jnp.where(keep, logits, -jnp.inf)


@pytree
@dataclasses.dataclass(frozen=True, eq=False)
class TopP:
    """Keeps the nucleus: the smallest set of most probable tokens whose mass is at least p.

    ``min |S|  such that  sum_{i in S} p_i >= p``, equal tokens by lowest id first, at least one
    token. After another truncation, the probabilities are normalised over the tokens it kept.
    Holtzman, Buys, Du, Forbes & Choi (2020), "The curious case of neural text degeneration",
    arXiv:1904.09751.

    The set is found without sorting, by a search for its threshold with exact integer sums; see
    ``ops.shortest_prefix``.

    Attributes:
      p: from 0 (one token) to 1 (every token): a number or float32 ``[B]``. Traced values outside
        are clipped. Every number that rounds to the same float32 counts as p.

    Raises:
      ValueError: for a number outside [0, 1] that is not traced.

    Example:
      >>> from decoding_jax import transforms
      >>> logits = jnp.log(jnp.array([0.125, 0.5, 0.25, 0.125]))[None, None, None, :]
      >>> jnp.exp(transforms.top_p(0.75)(logits, None)[0, 0, 0]).round(3)
      Array([0.  , 0.5 , 0.25, 0.  ], dtype=float32)
    """

    p: Any = fields.probability()

    def __post_init__(self) -> None:
        fields.check(self, fields.label(self))

    def __call__(self, logits: Array, prefix: Prefix) -> Array:
        logits = clean(logits)
        p = rows.per_row(self, "p", logits[..., 0])
        below_max = vocab.below_max(logits)
        masses = vocab.integer_masses(below_max)
        # The last kept token and the dropped ones together hold at least 1 - p, which no V tokens
        # below (1 - p) / V do. The last kept token is therefore at least about that likely.
        total = jnp.sum(jnp.exp(below_max), axis=-1)
        hint = jnp.max(logits, axis=-1) + jnp.log(
            jnp.maximum(1.0 - p, 0.0) * (total / logits.shape[-1])
        )
        target = vocab.fraction_of(masses, p)
        keep = shortest_prefix(logits, masses, target, hint=hint)
        return jnp.where(keep | (p >= 1)[..., None], logits, -jnp.inf)


@pytree
@dataclasses.dataclass(frozen=True, eq=False)
class Typical:
    """Keeps the tokens whose surprise is nearest the entropy: locally typical sampling.

    The smallest set of tokens, ordered by ``|-log p_i - H|`` with ``H = -sum_i p_i log p_i``,
    whose mass is at least ``mass``; equal tokens by lowest id first, at least one token. Meister,
    Pimentel, Wiher & Cotterell (2023), "Locally typical sampling", TACL 11, arXiv:2202.00666.

    Attributes:
      mass: from 0 (one token) to 1 (every token): a number or float32 ``[B]``; traced values
        outside are clipped.

    Raises:
      ValueError: for a number outside [0, 1] that is not traced.

    Example:
      >>> from decoding_jax import transforms
      >>> logits = jnp.log(jnp.array([0.6, 0.2, 0.1, 0.1]))[None, None, None, :]
      >>> jnp.exp(transforms.typical(0.2)(logits, None)[0, 0, 0]).round(3)
      Array([0. , 0.2, 0. , 0. ], dtype=float32)
    """

    mass: Any = fields.probability()

    def __post_init__(self) -> None:
        fields.check(self, fields.label(self))

    def __call__(self, logits: Array, prefix: Prefix) -> Array:
        logits = clean(logits)
        mass = rows.per_row(self, "mass", logits[..., 0])
        log_probs = vocab.log_softmax_or_uniform(logits)
        order = -jnp.abs(log_probs + vocab.entropy(log_probs))
        masses = vocab.integer_masses(vocab.below_max(logits))
        keep = shortest_prefix(order, masses, vocab.fraction_of(masses, mass))
        return jnp.where(keep | (mass >= 1)[..., None], logits, -jnp.inf)


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


@pytree
@dataclasses.dataclass(frozen=True, eq=False)
class TopNSigma:
    """Keeps tokens whose logit is within n standard deviations of the largest: top-n-sigma.

    ``l_i >= max_j l_j - n sigma``, to a relative 4e-6, where sigma is the standard deviation of the
    logits of all tokens that are not banned, each with the same weight. A temperature before it or
    after it changes nothing about the tokens that are kept. Tang, Liu, Xu, Zhu, Wang, Chen & Zhao
    (2024), "Top-n-sigma: not all logits are you need", arXiv:2411.07641.

    Attributes:
      n: 0 (the most probable token and its equals) and above: a number or float32 ``[B]``. A
        traced value below 0 counts as 0.

    Raises:
      ValueError: for a negative or non-finite number, unless it is traced.

    Example:
      >>> from decoding_jax import transforms
      >>> logits = jnp.array([0.0, 1.0, 4.0, 5.0])[None, None, None, :]
      >>> transforms.top_n_sigma(1.0)(logits, None)[0, 0, 0]
      Array([-inf, -inf,   4.,   5.], dtype=float32)
    """

    n: Any = fields.number("a finite number of 0 or more", lambda x: (x >= 0) & np.isfinite(x))

    def __post_init__(self) -> None:
        fields.check(self, fields.label(self))

    def __call__(self, logits: Array, prefix: Prefix) -> Array:
        logits = clean(logits)
        n = jnp.maximum(rows.per_row(self, "n", logits), 0.0)
        below = vocab.below_max(logits)
        exists = logits > -jnp.inf
        count = jnp.maximum(exact.sum_last(exists.astype(jnp.float32)), 1.0)[..., None]

        def mean(x: Array) -> Array:
            return exact.sum_last(jnp.where(exists, x, 0.0))[..., None] / count

        sigma = jnp.sqrt(mean(jnp.square(below - mean(below))))
        return jnp.where(below >= -n * sigma * (1.0 + SLACK), logits, -jnp.inf)


@pytree
@dataclasses.dataclass(frozen=True, eq=False)
class TopH:
    """Keeps the most probable tokens as far as their entropy is bounded: top-H.

    The longest prefix S of the tokens, most probable first and equal ones by lowest id, with
    ``H(q) <= alpha H(p)``, to a relative 4e-6, where q is p normalised over S; at least one token.
    The entropy of q grows with every token, so S is found by bisection. Baghaei Potraghloo,
    Azizi, Kundu & Pedram (2025), "Top-H decoding: adapting the creativity and coherence with
    bounded entropy in text generation", arXiv:2509.02510. (``top_h`` of ``transformers`` instead
    bounds ``-sum_{i in S} p_i log p_i``, over at most 100 tokens.)

    Attributes:
      alpha: from 0 (one token) to 1 (every token): a number or float32 ``[B]``; traced values
        outside are clipped.

    Raises:
      ValueError: for a number outside [0, 1] that is not traced.

    Example:
      >>> from decoding_jax import transforms
      >>> logits = jnp.log(jnp.array([0.05, 0.4, 0.35, 0.2]))[None, None, None, :]
      >>> transforms.top_h(0.6)(logits, None)[0, 0, 0] > -jnp.inf
      Array([False,  True,  True, False], dtype=bool)
    """

    alpha: Any = fields.probability()

    def __post_init__(self) -> None:
        fields.check(self, fields.label(self))

    def __call__(self, logits: Array, prefix: Prefix) -> Array:
        logits = clean(logits)
        alpha = jnp.clip(rows.per_row(self, "alpha", logits[..., 0]), 0.0, 1.0)
        below = vocab.below_max(logits)
        weights = exact.exp(below)
        surprises = jnp.where(weights > 0, weights * -below, 0.0)
        # The integer images of surprises are in the same order, 0 first.
        key = lax.bitcast_convert_type(jnp.abs(below), jnp.int32)

        def sums(keep: Array) -> tuple[Array, Array]:
            kept = (jnp.where(keep, x, 0.0) for x in (weights, surprises))
            total, surprise = map(exact.sum_last, kept)
            return total, surprise

        def entropy(total: Array, surprise: Array) -> Array:
            return exact.log(jnp.maximum(total, 1.0)) + surprise / jnp.maximum(total, 1.0)

        most = alpha * entropy(*sums(weights > 0)) * (1.0 + SLACK)

        def halve(_: Any, bounds: tuple[Array, Array]) -> tuple[Array, Array]:
            low, high = bounds
            middle = low + (high - low) // 2
            fits = entropy(*sums(key <= middle[..., None])) <= most
            return jnp.where(fits, middle, low), jnp.where(fits, high, middle)

        # All tokens up to `low` fit, and all up to `high` do not; -1 is no token, _BANNED has none.
        ends = (jnp.full(most.shape, end, jnp.int32) for end in (-1, _BANNED))
        low, high = lax.fori_loop(0, 31, halve, tuple(ends))
        tied = key == high[..., None]
        total, surprise = sums(key <= low[..., None])
        value = lax.bitcast_convert_type(high, jnp.float32)
        weight = exact.exp(-value)

        def halve_tied(_: Any, bounds: tuple[Array, Array]) -> tuple[Array, Array]:
            low, high = bounds
            middle = low + (high - low) // 2
            added = middle.astype(jnp.float32) * weight
            fits = entropy(total + added, surprise + added * value) <= most
            return jnp.where(fits, middle, low), jnp.where(fits, high, middle)

        some = (low < 0).astype(jnp.int32)  # one token always fits
        bounds = some, jnp.full_like(some, logits.shape[-1] + 1)
        count, _ = lax.fori_loop(0, logits.shape[-1].bit_length() + 1, halve_tied, bounds)
        first = lax.cumsum(tied.astype(jnp.int32), axis=tied.ndim - 1) <= count[..., None]
        keep = (key <= low[..., None]) | (tied & first) | (alpha >= 1)[..., None]
        return jnp.where(keep, logits, -jnp.inf)
