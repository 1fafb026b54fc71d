"""Bans of tokens that would complete a repeated n-gram or a given sequence."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from decoding_jax import fields, rows
from decoding_jax.base import Prefix
from decoding_jax.ops.logits import clean
from decoding_jax.pytrees import pytree
from decoding_jax.transforms import history

Array = jax.Array


@pytree
@dataclasses.dataclass(frozen=True, eq=False)
class NoRepeatNgram:
    """Bans every token that would complete an n-gram that the text already contains.

    Token i is banned if ``x_{t-n+2} .. x_t i`` occurs in ``x_1 .. x_t``. Paulus, Xiong & Socher
    (2018), "A deep reinforced model for abstractive summarization", arXiv:1705.04304.

    Attributes:
      n: an int of 1 and above; 1 bans every token that has occurred. Static.
      include_prompt: whether the prompt is part of the text, as it is by default.

    Raises:
      ValueError: for n below 1.

    Example:
      >>> from decoding_jax import transforms
      >>> from decoding_jax.base import Prefix
      >>> tokens = jnp.array([[[[1, 2]]]])
      >>> prefix = Prefix(jnp.array([[2, 0]]), jnp.array([2]), tokens, jnp.array([[[2]]]))
      >>> transforms.no_repeat_ngram(2)(jnp.zeros((1, 1, 1, 3)), prefix)[0, 0, 0]
      Array([-inf,   0.,   0.], dtype=float32)
    """

    n: int = fields.count()
    include_prompt: bool = fields.switch(default=True)

    def __post_init__(self) -> None:
        fields.check(self, fields.label(self))

    def __call__(self, logits: Array, prefix: Prefix) -> Array:
        logits = clean(logits)
        text, begin, end = history.text(prefix, self.include_prompt)
        windows = text.shape[-1] - self.n + 1
        if windows < 1:
            return logits
        start = history.positions(windows, 4)
        matches = (start >= begin[..., None]) & (start + self.n <= end[..., None])
        ending, _ = history.last_tokens(prefix, self.n - 1, self.include_prompt)
        for i in range(self.n - 1):
            matches &= text[..., i : i + windows] == ending[..., i : i + 1]
        completing = text[..., self.n - 1 :]
        banned = history.scatter_counts(completing, matches, logits.shape[-1]) > 0
        return jnp.where(banned, -jnp.inf, logits)


@pytree
@dataclasses.dataclass(frozen=True, eq=False)
class BannedSequences:
    """Bans the last token of a sequence wherever the text ends with the tokens before it.

    ``l_i = -inf`` for each sequence ``s_1 .. s_m i`` such that ``x_{t-m+1} .. x_t = s_1 .. s_m``; a
    sequence of one token is banned everywhere. Hokamp & Liu (2017), "Lexically constrained
    decoding", arXiv:1704.07138, treat the positive form of such constraints.

    Attributes:
      sequences: a tuple of tuples of token ids, or int32 ``[Q, M]`` or ``[B, Q, M]`` padded with
        -1 on the left. A sequence that is all -1 bans nothing.
      include_prompt: whether a sequence may begin in the prompt, as it may by default.

    Raises:
      ValueError: for an empty sequence, a negative id, or padding on the right, where values are
        not traced; and by a strategy, for an id outside the vocabulary. Traced ones ban nothing.

    Example:
      >>> from decoding_jax import transforms
      >>> from decoding_jax.base import Prefix
      >>> tokens = jnp.array([[[[0]]]])
      >>> prefix = Prefix(jnp.array([[2]]), jnp.array([1]), tokens, jnp.array([[[1]]]))
      >>> transforms.banned_sequences([(2, 0, 1), (1, 0), (3,)])(jnp.zeros((1, 1, 1, 4)), prefix)
      Array([[[[  0., -inf,   0., -inf]]]], dtype=float32)
    """

    sequences: Any = fields.token_sequences()
    include_prompt: bool = fields.switch(default=True)

    def __post_init__(self) -> None:
        fields.check(self, fields.label(self))

    def __call__(self, logits: Array, prefix: Prefix) -> Array:
        logits = clean(logits)
        sequences = rows.table(self, "sequences", logits.shape[0], 2)
        if sequences.size == 0:
            return logits
        beginning = sequences[:, None, None, :, :-1]
        ending, real = history.last_tokens(prefix, beginning.shape[-1], self.include_prompt)
        equal = (ending[..., None, :] == beginning) & real[..., None, :]
        matches = jnp.all(equal | (beginning < 0), axis=-1)
        last = jnp.broadcast_to(sequences[:, None, None, :, -1], matches.shape)
        banned = history.scatter_counts(last, matches, logits.shape[-1]) > 0
        return jnp.where(banned, -jnp.inf, logits)
