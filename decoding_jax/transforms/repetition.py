"""Transforms by the tokens of a text: penalties on repetition, bans of n-grams and sequences."""

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
