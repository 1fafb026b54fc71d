"""Truncation to the smallest sufficient set of tokens: top-k, top-p, typical."""

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
from decoding_jax.ops.shortest_prefix import shortest_prefix
from decoding_jax.pytrees import pytree

Array = jax.Array


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
