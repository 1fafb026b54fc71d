"""Changes to the logits that do not depend on the text: logit bias, allowed tokens."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from decoding_jax.base import Prefix
from decoding_jax.ops.logits import clean
from decoding_jax.pytrees import pytree
from decoding_jax.transforms import history, settings

Array = jax.Array


def _shared_axes(bias: Any) -> int:
    """The axes of a shared bias: 1 for a table ``[V]``, 0 for the numbers in a dictionary."""
    return 0 if isinstance(bias, dict) else 1


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

    bias: Any = dataclasses.field(metadata={"shared_axes": _shared_axes})

    def __post_init__(self) -> None:
        bias = self.bias
        if isinstance(bias, (tuple, list)):
            bias = np.asarray(bias)
        if isinstance(bias, dict):
            bad = [t for t in bias if not isinstance(t, (int, np.integer)) or t < 0]
            if bad:
                raise ValueError(f"logit_bias: got id {bad[0]!r}; takes token ids of 0 and above")
            bias = {int(token): _plain(bias[token]) for token in sorted(bias)}
        object.__setattr__(self, "bias", _plain(bias))

    def __call__(self, logits: Array, prefix: Prefix) -> Array:
        logits = clean(logits)
        rows, vocab_size = logits.shape[0], logits.shape[-1]
        if isinstance(self.bias, dict):
            for token, value in self.bias.items():
                if token >= vocab_size:
                    raise ValueError(
                        f"logit_bias: got id {token}; takes ids below the vocabulary's {vocab_size}"
                    )
                value = settings.spread(self, f"bias[{token}]", value, logits[..., 0])
                logits = logits.at[..., token].add(value)
            return logits
        bias = settings.row_table(self, "bias", rows, 1, jnp.float32)
        settings.check_vocab(self, "bias", bias, vocab_size)
        return logits + bias[:, None, None, :]


def _plain(value: Any) -> Any:
    """Checks a bias that is readable; a plain one becomes float32."""
    if value is None or isinstance(value, (str, bytes)):
        raise ValueError(f"logit_bias: got {value!r}; takes {{token id: bias}} or [V]")
    if (array := settings.readable(value)) is None:
        return value
    array = array.astype(np.float32)
    if np.any(np.isnan(array) | (array == np.inf)):
        raise ValueError("logit_bias: got a bias of NaN or inf; takes finite numbers and -inf")
    return value if isinstance(value, jax.Array) else array


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

    tokens: Any = dataclasses.field(metadata={"shared_axes": 1, "token_ids": True})

    def __post_init__(self) -> None:
        if self.tokens is None or isinstance(self.tokens, (str, bytes)):
            raise ValueError(f"allowed_tokens: got {self.tokens!r}; takes token ids, or a mask")
        if not isinstance(self.tokens, (tuple, list, set, frozenset, range)):
            if jnp.issubdtype(getattr(self.tokens, "dtype", object), jnp.integer):
                settings.check_ids(self, "tokens")
            return
        array = np.asarray(
            sorted(self.tokens) if isinstance(self.tokens, (set, frozenset)) else self.tokens
        )
        if array.dtype != np.bool_:
            if array.ndim != 1 or array.size == 0 or array.dtype.kind != "i" or np.any(array < 0):
                raise ValueError(
                    f"allowed_tokens: got tokens={self.tokens}; takes at least one token id, each "
                    "of 0 and above, or a mask"
                )
            array = array.astype(np.int32)
        object.__setattr__(self, "tokens", array)

    def __call__(self, logits: Array, prefix: Prefix) -> Array:
        logits = clean(logits)
        rows, vocab_size = logits.shape[0], logits.shape[-1]
        table = settings.row_table(self, "tokens", rows, 1, dtype=None)
        if table.dtype == jnp.bool_:
            settings.check_vocab(self, "tokens", table, vocab_size)
            allowed = table
        elif not jnp.issubdtype(table.dtype, jnp.integer):
            raise ValueError(
                f"allowed_tokens: got tokens of dtype {table.dtype}; takes int ids or a bool mask"
            )
        else:
            allowed = history.scatter_counts(table, table >= 0, vocab_size) > 0
        return jnp.where(allowed[:, None, None, :], logits, -jnp.inf)
