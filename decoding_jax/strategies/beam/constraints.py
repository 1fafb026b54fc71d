"""What a text must contain: phrases, and sets of alternatives, matched as the text grows.

How much of each sequence has been matched is a row of bits, one for each of its tokens: whether the
text ends with the sequence up to there. A new token shifts the bits by one and clears those whose
token it is not, which keeps every partial match at once, overlapping ones too: the automaton of
Knuth, Morris & Pratt without its table. Baeza-Yates & Gonnet 1992, "A New Approach to Text
Searching", call it Shift-And.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax.numpy as jnp
import numpy as np

from decoding_jax.base import Array, pad_left
from decoding_jax.pytrees import pytree
from decoding_jax.transforms import settings


@pytree
@dataclasses.dataclass(frozen=True, eq=False)
class Constraints:
    """Token sequences that a text must contain, each in one piece.

    New tokens count, prompts do not, and end tokens do. Sequences may overlap: (1, 2, 3) contains
    both (1, 2) and (2, 3). Every setting is a leaf: changing a token does not retrace.

    Attributes:
      phrases: all must appear: a tuple of tuples of token ids, or int32 ``[Q, M]`` or, for each row
        its own, ``[B, Q, M]``, padded with -1 on the left. A phrase of -1 only asks for nothing.
      alternatives: of each set, one at least must appear: a tuple of tuples of tuples, or int32
        ``[A, Q, M]`` or ``[B, A, Q, M]``, padded as phrases are; a set of -1 only asks for nothing.

    Raises:
      ValueError: for an empty sequence or set, or a negative id, in tuples.

    Example:
      >>> Constraints(phrases=((5, 6), (7,)), alternatives=(((1,), (2, 3)),)).alternatives
      array([[[-1,  1],
              [ 2,  3]]], dtype=int32)
    """

    phrases: Any = dataclasses.field(default=(), metadata={"shared_axes": 2})
    alternatives: Any = dataclasses.field(default=(), metadata={"shared_axes": 3})

    def __post_init__(self) -> None:
        if isinstance(self.phrases, (tuple, list)):
            object.__setattr__(self, "phrases", pad_left(self.phrases, "phrases"))
        if isinstance(self.alternatives, (tuple, list)):
            object.__setattr__(self, "alternatives", _pad_sets(self.alternatives))

    def table(self, batch_size: int) -> Array:
        """int32 ``[B, N, M]``, all sequences: the phrases, then one set after another."""
        phrases = settings.row_table(self, "phrases", batch_size, 2)
        sets = settings.row_table(self, "alternatives", batch_size, 3)
        rows, count, in_set, size = sets.shape
        parts = [phrases, sets.reshape(rows, count * in_set, size)]
        width = max(1, *(part.shape[-1] for part in parts))

        def padded(part: Array) -> Array:
            short = width - part.shape[-1]
            part = jnp.pad(part, ((0, 0), (0, 0), (short, 0)), constant_values=-1)
            return jnp.broadcast_to(part, (batch_size, *part.shape[1:]))

        return jnp.concatenate([padded(part) for part in parts], axis=1)

    def lacking(self, table: Array, matched: Array) -> Array:
        """int32 ``[B, W]``: the fewest tokens that each text lacks, every constraint by itself.

        Args:
          table: from ``table``.
          matched: bool ``[B, W, N, M]``, see ``after``.
        """
        phrases, sets = self._lacking(table, matched)
        return phrases.sum(-1, dtype=jnp.int32) + sets.sum(-1, dtype=jnp.int32)

    def wanted(self, table: Array, matched: Array) -> Array:
        """int32 ``[B, W, N]``: the next token of every sequence still of use, -1 of the others.

        Args as for ``lacking``.
        """
        phrases, sets = self._lacking(table, matched)
        in_set = jnp.shape(self.alternatives)[-2]
        of_use = jnp.concatenate([phrases, jnp.repeat(sets, in_set, axis=-1)], axis=-1) > 0
        width = table.shape[-1]
        at = jnp.clip(_length(matched), 0, width - 1)
        token = jnp.take_along_axis(table[:, None], at[..., None], axis=-1)[..., 0]
        return jnp.where(of_use & (_length(matched) < width), token, -1)

    def _lacking(self, table: Array, matched: Array) -> tuple[Array, Array]:
        """What each phrase lacks ``[B, W, Q]``, and each set ``[B, W, A]``."""
        count, in_set = jnp.shape(self.alternatives)[-3:-1]
        first = table.shape[1] - count * in_set
        width = table.shape[-1]
        lacking = width - _length(matched)
        sets = (*lacking.shape[:2], count, in_set)
        exists = (table[:, None, first:] >= 0).any(-1)
        of_sets = jnp.where(exists, lacking[..., first:], width + 1).reshape(sets)
        least = of_sets.min(-1, initial=width + 1)
        return lacking[..., :first], jnp.where(least > width, 0, least)


def _length(matched: Array) -> Array:
    """int32 ``[B, W, N]``: how far, padding included, the longest partial match reaches."""
    count = jnp.arange(1, matched.shape[-1] + 1, dtype=jnp.int32)
    return jnp.where(matched, count[None, None, None], 0).max(-1)


def begin(table: Array, width: int) -> Array:
    """bool ``[B, W, N, M]``, what an empty text matches: the padding."""
    batch, *rest = table.shape
    return jnp.broadcast_to((table < 0)[:, None], (batch, width, *rest))


def after(table: Array, matched: Array, token: Array) -> Array:
    """What texts match that have grown by a token.

    Args:
      table: int32 ``[B, N, M]``, sequences padded with -1 on the left.
      matched: bool ``[B, W, N, M]``: whether a text ends with its row's sequence n up to its token
        m. The last token stays matched: what has appeared has appeared.
      token: int32 ``[B, W]``.

    Example:
      >>> table = jnp.array([[[1, 2, 1, 3]]])
      >>> matched = begin(table, 1)
      >>> for token in (1, 2, 1):
      ...     matched = after(table, matched, jnp.array([[token]]))
      >>> matched[0, 0, 0]
      Array([ True, False,  True, False], dtype=bool)
    """
    table = table[:, None]
    before = jnp.pad(matched[..., :-1], ((0, 0), (0, 0), (0, 0), (1, 0)), constant_values=True)
    new = before & ((table == token[..., None, None]) | (table < 0))
    return new.at[..., -1].set(new[..., -1] | matched[..., -1])


def _pad_sets(sets: Any) -> np.ndarray:
    """Sets of sequences as int32 ``[A, Q, M]``, padded with -1."""
    if any(len(one) == 0 for one in sets):
        raise ValueError("alternatives: got an empty set; takes sets of one sequence or more")
    parts = [pad_left(one, "alternatives") for one in sets]
    most = max((part.shape[0] for part in parts), default=0)
    width = max((part.shape[1] for part in parts), default=0)
    out = np.full((len(parts), most, width), -1, np.int32)
    for one, part in zip(out, parts, strict=True):
        one[: part.shape[0], width - part.shape[1] :] = part
    return out
