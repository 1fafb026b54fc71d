"""Lexical constraints: phrases, and sets of alternatives, that a text must contain.

The progress of a text in each sequence is a row of bits, one for each token of the sequence. A bit
is set if the text ends with the sequence up to that token. A new token shifts the bits by one
place and clears those whose token differs. All partial matches are tracked at once, overlapping
ones included, as by the automaton of Knuth, Morris & Pratt, but without its table. The method is
Shift-And: Baeza-Yates & Gonnet 1992, "A New Approach to Text Searching".
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax.numpy as jnp
import numpy as np

from decoding_jax import fields, rows
from decoding_jax.base import Array
from decoding_jax.pytrees import pytree

_SETS = "sets of sequences of token ids"


@pytree
@dataclasses.dataclass(frozen=True, eq=False)
class Constraints:
    """Token sequences that a text must contain, each without interruption.

    New tokens count, end tokens included; the tokens of the prompt do not. Sequences may overlap:
    (1, 2, 3) contains both (1, 2) and (2, 3). Every setting is a leaf, so that other tokens do not
    cause another trace.

    Attributes:
      phrases: the sequences that must all appear: a tuple of tuples of token ids; or int32
        ``[Q, M]``, or ``[B, Q, M]`` with phrases for each row, padded with -1 on the left. A phrase
        of padding alone requires nothing.
      alternatives: sets of sequences, of each of which at least one must appear: a tuple of tuples
        of tuples; or int32 ``[A, Q, M]`` or ``[B, A, Q, M]``, padded like phrases. A set of padding
        alone requires nothing.

    Raises:
      ValueError: for an empty sequence or set, or a negative id, in tuples.

    Example:
      >>> Constraints(phrases=((5, 6), (7,)), alternatives=(((1,), (2, 3)),)).alternatives
      array([[[-1,  1],
              [ 2,  3]]], dtype=int32)
    """

    phrases: Any = fields.token_sequences(default=())
    alternatives: Any = fields.field(
        lambda name, value: _as_sets(name, value),
        expected=_SETS,
        shared_axes=3,
        token_ids=True,
        default=(),
    )

    def __post_init__(self) -> None:
        fields.check(self)

    def table(self, batch_size: int) -> Array:
        """All sequences, int32 ``[B, N, M]``: the phrases, then one set after another."""
        phrases = rows.table(self, "phrases", batch_size, 2)
        sets = rows.table(self, "alternatives", batch_size, 3)
        num_rows, count, in_set, size = sets.shape
        parts = [phrases, sets.reshape(num_rows, count * in_set, size)]
        width = max(1, *(part.shape[-1] for part in parts))

        def padded(part: Array) -> Array:
            short = width - part.shape[-1]
            part = jnp.pad(part, ((0, 0), (0, 0), (short, 0)), constant_values=-1)
            return jnp.broadcast_to(part, (batch_size, *part.shape[1:]))

        return jnp.concatenate([padded(part) for part in parts], axis=1)

    def lacking(self, table: Array, matched: Array) -> Array:
        """int32 ``[B, W]``: the number of tokens that each text lacks.

        This is the sum over all constraints of the fewest tokens that would meet each by itself.

        Args:
          table: from ``table``.
          matched: bool ``[B, W, N, M]``, see ``match_token``.
        """
        phrases, sets = self._lacking(table, matched)
        return phrases.sum(-1, dtype=jnp.int32) + sets.sum(-1, dtype=jnp.int32)

    def next_tokens(self, table: Array, matched: Array) -> Array:
        """int32 ``[B, W, N]``: the token that continues each sequence.

        It is -1 for sequences that are complete, or in a set of which another one is complete.

        Args:
          table: from ``table``.
          matched: bool ``[B, W, N, M]``, see ``match_token``.
        """
        phrases, sets = self._lacking(table, matched)
        in_set = jnp.shape(self.alternatives)[-2]
        is_lacking = jnp.concatenate([phrases, jnp.repeat(sets, in_set, axis=-1)], axis=-1) > 0
        width, length = table.shape[-1], _matched_length(matched)
        position = jnp.clip(length, 0, width - 1)
        token = jnp.take_along_axis(table[:, None], position[..., None], axis=-1)[..., 0]
        return jnp.where(is_lacking & (length < width), token, -1)

    def _lacking(self, table: Array, matched: Array) -> tuple[Array, Array]:
        """The number of tokens that each phrase lacks ``[B, W, Q]``, and each set ``[B, W, A]``."""
        count, in_set = jnp.shape(self.alternatives)[-3:-1]
        num_phrases = table.shape[1] - count * in_set
        width = table.shape[-1]
        lacking = width - _matched_length(matched)
        sets = (*lacking.shape[:2], count, in_set)
        exists = (table[:, None, num_phrases:] >= 0).any(-1)
        of_sets = jnp.where(exists, lacking[..., num_phrases:], width + 1).reshape(sets)
        fewest = of_sets.min(-1, initial=width + 1)
        return lacking[..., :num_phrases], jnp.where(fewest > width, 0, fewest)


def _matched_length(matched: Array) -> Array:
    """int32 ``[B, W, N]``: the length of the longest partial match, padding included."""
    count = jnp.arange(1, matched.shape[-1] + 1, dtype=jnp.int32)
    return jnp.where(matched, count[None, None, None], 0).max(-1)


def match_nothing(table: Array, width: int) -> Array:
    """bool ``[B, W, N, M]``: the matches of empty texts, which are those of the padding."""
    batch, *shape = table.shape
    return jnp.broadcast_to((table < 0)[:, None], (batch, width, *shape))


def match_token(table: Array, matched: Array, token: Array) -> Array:
    """The matches of texts that have grown by a token.

    Args:
      table: int32 ``[B, N, M]``, sequences padded with -1 on the left.
      matched: bool ``[B, W, N, M]``: whether a text ends with the first m + 1 tokens of sequence n
        of its row. The last bit remains set once the whole sequence has appeared.
      token: int32 ``[B, W]``.

    Returns:
      bool ``[B, W, N, M]``.

    Example:
      >>> table = jnp.array([[[1, 2, 1, 3]]])
      >>> matched = match_nothing(table, 1)
      >>> for token in (1, 2, 1):
      ...     matched = match_token(table, matched, jnp.array([[token]]))
      >>> matched[0, 0, 0]
      Array([ True, False,  True, False], dtype=bool)
    """
    table = table[:, None]
    previous = jnp.pad(matched[..., :-1], ((0, 0), (0, 0), (0, 0), (1, 0)), constant_values=True)
    new = previous & ((table == token[..., None, None]) | (table < 0))
    return new.at[..., -1].set(new[..., -1] | matched[..., -1])


def _as_sets(name: str, value: Any) -> Any:
    if isinstance(value, (tuple, list)):
        return _pad_sets(name, value)
    if not jnp.issubdtype(getattr(value, "dtype", object), jnp.integer):
        raise fields.error(name, _SETS, value)
    return value


def _pad_sets(name: str, sets: Any) -> np.ndarray:
    """Sets of sequences as int32 ``[A, Q, M]``, padded with -1."""
    if not all(isinstance(sequences, (tuple, list, np.ndarray)) for sequences in sets):
        raise fields.error(name, _SETS, sets)
    if any(len(sequences) == 0 for sequences in sets):
        raise ValueError(f"{name}: expected sets of one sequence or more, got an empty set")
    tables = [fields.pad_left(name, sequences) for sequences in sets]
    max_sequences = max((table.shape[0] for table in tables), default=0)
    width = max((table.shape[1] for table in tables), default=0)
    padded = np.full((len(tables), max_sequences, width), -1, np.int32)
    for target, table in zip(padded, tables, strict=True):
        target[: table.shape[0], width - table.shape[1] :] = table
    return padded
