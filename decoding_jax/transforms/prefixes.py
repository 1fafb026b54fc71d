"""Constrained decoding: new tokens that follow a trie or a finite automaton."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from decoding_jax import fields, rows
from decoding_jax.base import Prefix
from decoding_jax.ops.logits import clean
from decoding_jax.pytrees import pytree

Array = jax.Array


@pytree
@dataclasses.dataclass(frozen=True, eq=False)
class PrefixAllowedTokens:
    """Bans every token after which the new text is not a prefix of a sequence of a language.

    ``l_i = -inf`` unless a sequence begins with ``x_1 .. x_t i``; x does not include the prompt.
    De Cao, Izacard, Riedel & Petroni (2021), "Autoregressive entity retrieval", arXiv:2010.00904.
    The trie is on the device. Each step walks the whole new text, so its cost is a few gathers for
    each token of the longest sequence.

    A sequence contains its end token, as the tokenizer gives it, and no token is allowed after it.
    If sequences have no end token, a strategy ends the text at their end but does not mark it as
    ``finished``. ``Trie.from_sequences(..., eos_ids=1)`` adds end tokens.

    Attributes:
      language: a ``Trie``, an ``Automaton``, or an object with their ``depth``, ``advance`` and
        ``allowed``.
      start: the state before the first token, an int or int32 ``[B]``. Rows with different
        languages start in different branches of one trie or automaton.

    Raises:
      ValueError: for a negative ``start`` that is not traced; and by a strategy, for a trie with
        an id outside the vocabulary.

    Example:
      >>> from decoding_jax import transforms
      >>> from decoding_jax.base import Prefix
      >>> trie = transforms.Trie.from_sequences([(2, 0, 1), (2, 3, 1), (3, 1)])
      >>> tokens = jnp.array([[[[2]]]])
      >>> prefix = Prefix(jnp.array([[2]]), jnp.array([1]), tokens, jnp.array([[[1]]]))
      >>> transforms.prefix_allowed_tokens(trie)(jnp.zeros((1, 1, 1, 4)), prefix)
      Array([[[[  0., -inf, -inf,   0.]]]], dtype=float32)
    """

    language: Any
    start: Any = fields.number(*fields.COUNTS, default=0)

    def __post_init__(self) -> None:
        fields.check(self, fields.label(self))

    def __call__(self, logits: Array, prefix: Prefix) -> Array:
        logits = clean(logits)
        start = rows.per_row(self, "start", prefix.length, jnp.int32)
        state = jnp.broadcast_to(start, prefix.length.shape)
        size = prefix.tokens.shape[-1]

        def walk(i: Array, state: Array) -> Array:
            token = lax.dynamic_index_in_dim(prefix.tokens, i, axis=3, keepdims=False)
            return jnp.where(i < prefix.length, self.language.advance(state, token), state)

        if size:
            # After ``depth`` tokens no sequence continues, so further tokens need no walk.
            longest = jnp.minimum(prefix.length.max(initial=0), size)
            steps = jnp.minimum(longest, jnp.asarray(self.language.depth, jnp.int32))
            state = lax.fori_loop(0, steps, walk, state)
        allowed = self.language.allowed(state, logits.shape[-1])
        return jnp.where(allowed, logits, -jnp.inf)
