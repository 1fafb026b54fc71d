"""Transforms by the number of new tokens: minimum length, forced first and last tokens."""

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


_TOKENS = ("a token id of 0 or more (-1 for none)", lambda x: x >= -1, np.int32)


@pytree
@dataclasses.dataclass(frozen=True, eq=False)
class MinLength:
    """Bans end tokens while there are too few new tokens: ``l_eos = -inf`` while ``n < minimum``.

    Wu et al. (2016), "Google's neural machine translation system", arXiv:1609.08144, section 7,
    bound the length of hypotheses in this way.

    Attributes:
      min_new_tokens: 0 and above: an int or int32 ``[B]``. The prompt does not count. With
        a minimum of 3, the end token is the fourth token at the earliest.
      eos_ids: the end tokens: an int, ints, int32 ``[E]``, or ``[B, E]`` padded with -1.

    Raises:
      ValueError: for a negative number that is not traced; and by a strategy, for such an id
        outside the vocabulary. A traced one is ignored.

    Example:
      >>> from decoding_jax import transforms
      >>> from decoding_jax.base import Prefix
      >>> tokens = jnp.array([[[[2]]]])
      >>> prefix = Prefix(jnp.array([[2]]), jnp.array([1]), tokens, jnp.array([[[1]]]))
      >>> transforms.min_length(2, eos_ids=1)(jnp.zeros((1, 1, 1, 3)), prefix)[0, 0, 0]
      Array([  0., -inf,   0.], dtype=float32)
    """

    min_new_tokens: Any = fields.number(*fields.COUNTS)
    eos_ids: Any = fields.token_ids(1)

    def __post_init__(self) -> None:
        fields.check(self, fields.label(self))

    def __call__(self, logits: Array, prefix: Prefix) -> Array:
        logits = clean(logits)
        minimum = rows.per_row(self, "min_new_tokens", prefix.length, jnp.int32)
        ids = rows.table(self, "eos_ids", logits.shape[0], 1)
        is_end = history.scatter_counts(ids, ids >= 0, logits.shape[-1]) > 0
        early = prefix.length < minimum
        return jnp.where(is_end[:, None, None, :] & early[..., None], -jnp.inf, logits)


def only(logits: Array, where: Array, token: Array) -> Array:
    """Allows only ``token``, with logit 0, where ``where`` is True and ``token >= 0``."""
    ids = history.positions(logits.shape[-1], 4)
    forced = jnp.where(ids == token, jnp.float32(0), -jnp.inf)
    return jnp.where((where & (token >= 0)[..., 0])[..., None], forced, logits)


@pytree
@dataclasses.dataclass(frozen=True, eq=False)
class ForcedFirstToken:
    """Makes the first new token certain: ``l_token = 0`` and all others -inf while ``n = 0``.

    An example is the target-language token of Liu et al. (2020), "Multilingual denoising
    pre-training for neural machine translation", arXiv:2001.08210.

    Attributes:
      token: 0 and above: an int or int32 ``[B]``; -1 forces nothing in its row. A traced
        token outside the vocabulary bans every token of its row.

    Raises:
      ValueError: for a number below -1 that is not traced; and by a strategy, for such a token
        outside the vocabulary.

    Example:
      >>> from decoding_jax import transforms
      >>> from decoding_jax.base import Prefix
      >>> tokens = jnp.zeros((1, 1, 1, 2), jnp.int32)
      >>> prefix = Prefix(jnp.array([[2]]), jnp.array([1]), tokens, jnp.array([[[0]]]))
      >>> transforms.forced_first_token(1)(jnp.zeros((1, 1, 1, 3)), prefix)[0, 0, 0]
      Array([-inf,   0., -inf], dtype=float32)
    """

    token: Any = fields.number(*_TOKENS, token_ids=True)

    def __post_init__(self) -> None:
        fields.check(self, fields.label(self))

    def __call__(self, logits: Array, prefix: Prefix) -> Array:
        logits = clean(logits)
        token = rows.per_row(self, "token", logits, jnp.int32)
        return only(logits, prefix.length == 0, token)


@pytree
@dataclasses.dataclass(frozen=True, eq=False)
class ForcedLastToken:
    """Makes the last new token certain: ``l_token = 0``, all others -inf at ``n = maximum - 1``.

    A text that reaches its maximum length then still ends with an end token, as BART's summaries
    do: Lewis et al. (2020), arXiv:1910.13461.

    Attributes:
      token: 0 and above: an int or int32 ``[B]``; -1 forces nothing in its row. A traced
        token outside the vocabulary bans every token of its row.
      max_new_tokens: 1 and above: an int or int32 ``[B]``, equal to that of the strategy.

    Raises:
      ValueError: for a ``token`` below -1 or ``max_new_tokens`` below 1 that is not traced; and by
        a strategy, for such a token outside the vocabulary.

    Example:
      >>> from decoding_jax import transforms
      >>> from decoding_jax.base import Prefix
      >>> tokens = jnp.zeros((1, 1, 1, 2), jnp.int32)
      >>> prefix = Prefix(jnp.array([[2]]), jnp.array([1]), tokens, jnp.array([[[1]]]))
      >>> transforms.forced_last_token(1, max_new_tokens=2)(jnp.zeros((1, 1, 1, 3)), prefix)
      Array([[[[-inf,   0., -inf]]]], dtype=float32)
    """

    token: Any = fields.number(*_TOKENS, token_ids=True)
    max_new_tokens: Any = fields.number("an int of 1 or more", lambda x: x >= 1, np.int32)

    def __post_init__(self) -> None:
        fields.check(self, fields.label(self))

    def __call__(self, logits: Array, prefix: Prefix) -> Array:
        logits = clean(logits)
        token = rows.per_row(self, "token", logits, jnp.int32)
        maximum = rows.per_row(self, "max_new_tokens", prefix.length, jnp.int32)
        return only(logits, prefix.length == maximum - 1, token)
