"""Changes to the logits that do not depend on the text: logit bias, allowed tokens."""

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


_BIAS = "{token id: number} or [V], of numbers below inf"


def _shared_axes(bias: Any) -> int:
    """The axes of a shared bias: 1 for a table ``[V]``, 0 for the numbers in a dictionary."""
    return 0 if isinstance(bias, dict) else 1


def _as_bias(name: str, bias: Any) -> Any:
    if not isinstance(bias, dict):
        return fields.as_number(name, bias, _BIAS, lambda x: x < np.inf)
    for token in bias:
        if not isinstance(token, (int, np.integer)) or token < 0:
            raise fields.error(name, "token ids of 0 or more as keys", token)
    return {
        int(token): fields.as_number(name, bias[token], _BIAS, lambda x: x < np.inf)
        for token in sorted(bias)
    }


@pytree
@dataclasses.dataclass(frozen=True, eq=False)
class LogitBias:
    """Adds a number to the logits of some tokens: ``l_i + bias_i``.

    This is the ``logit_bias`` of the OpenAI API reference.

    Attributes:
      bias: ``{token id: bias}`` (the ids are static, each bias is a number or float32 ``[B]``), or
        float32 ``[V]`` or ``[B, V]``. -inf bans a token.

    Raises:
      ValueError: for a negative id, an id outside the vocabulary, or a bias that is NaN or inf
        and not traced.

    Example:
      >>> from decoding_jax import transforms
      >>> transforms.logit_bias({2: 5.0})(jnp.zeros((1, 1, 1, 3)), None)[0, 0, 0]
      Array([0., 0., 5.], dtype=float32)
    """

    bias: Any = fields.field(_as_bias, expected=_BIAS, shared_axes=_shared_axes)

    def __post_init__(self) -> None:
        fields.check(self, fields.label(self))

    def __call__(self, logits: Array, prefix: Prefix) -> Array:
        logits = clean(logits)
        batch_size, vocab_size = logits.shape[0], logits.shape[-1]
        if isinstance(self.bias, dict):
            for token, value in self.bias.items():
                if token >= vocab_size:
                    expected = f"ids from 0 to {vocab_size - 1}, the model's vocabulary"
                    raise fields.error("logit_bias.bias", expected, token)
                value = rows.spread(f"logit_bias.bias[{token}]", value, logits[..., 0])
                logits = logits.at[..., token].add(value)
            return logits
        bias = rows.table(self, "bias", batch_size, 1, jnp.float32)
        rows.check_vocab(self, "bias", bias, vocab_size)
        return logits + bias[:, None, None, :]


_TOKENS = "at least one token id, each of 0 or more, or a mask"


def _as_allowed(name: str, tokens: Any) -> Any:
    if not isinstance(tokens, (tuple, list, set, frozenset, range)):
        if not hasattr(tokens, "dtype"):
            raise fields.error(name, _TOKENS, tokens)
        is_ids = jnp.issubdtype(tokens.dtype, jnp.integer)
        return fields.as_ids(name, tokens) if is_ids else tokens
    array = np.asarray(sorted(tokens) if isinstance(tokens, (set, frozenset)) else tokens)
    if array.dtype == np.bool_:
        return array
    if array.ndim != 1 or array.size == 0 or array.dtype.kind != "i" or np.any(array < 0):
        raise fields.error(name, _TOKENS, tokens)
    return array.astype(np.int32)


@pytree
@dataclasses.dataclass(frozen=True, eq=False)
class AllowedTokens:
    """Bans every token that is not allowed: ``l_i = -inf`` for ``i`` outside the set.

    This is one step of constrained generation over a trie or a grammar: De Cao, Izacard, Riedel &
    Petroni (2021), "Autoregressive entity retrieval", arXiv:2010.00904.

    Attributes:
      tokens: the ids as ints, int32 ``[A]`` or ``[B, A]`` padded with -1; or the mask as bool
        ``[V]`` or ``[B, V]``. Traced ids outside the vocabulary are ignored. In a row that
        allows no token all logits are -inf.

    Raises:
      ValueError: for no token or a negative id in plain numbers, an id below -1 in an array, and a
        mask whose last axis is not the vocabulary; and by a strategy, for an id outside it.

    Example:
      >>> from decoding_jax import transforms
      >>> transforms.allowed_tokens([0, 2])(jnp.zeros((1, 1, 1, 3)), None)[0, 0, 0]
      Array([  0., -inf,   0.], dtype=float32)
    """

    tokens: Any = fields.token_ids(1, check=_as_allowed, expected=_TOKENS)

    def __post_init__(self) -> None:
        fields.check(self, fields.label(self))

    def __call__(self, logits: Array, prefix: Prefix) -> Array:
        logits = clean(logits)
        batch_size, vocab_size = logits.shape[0], logits.shape[-1]
        table = rows.table(self, "tokens", batch_size, 1, dtype=None)
        if table.dtype == jnp.bool_:
            rows.check_vocab(self, "tokens", table, vocab_size)
            allowed = table
        elif not jnp.issubdtype(table.dtype, jnp.integer):
            raise fields.error("allowed_tokens.tokens", "ids or a bool mask", table)
        else:
            allowed = history.scatter_counts(table, table >= 0, vocab_size) > 0
        return jnp.where(allowed[:, None, None, :], logits, -jnp.inf)
