"""The limits of texts: their numbers of new tokens, and the positions of the model."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from decoding_jax.base import Stop
from decoding_jax.batches import Limits
from decoding_jax.fields import describe
from decoding_jax.models.encoder_decoder import EncoderDecoder
from decoding_jax.registry import DEFAULTS
from decoding_jax.text.chat import Conversation
from decoding_jax.text.completions import Completion
from decoding_jax.text.inputs import input_positions, shared_positions
from decoding_jax.text.warn import CutTextWarning, warn

DEFAULT_LENGTH: int = DEFAULTS["max_new_tokens"]
"""The ``max_new_tokens`` of a call without one, unless a config has other rules."""


class TextLimits(NamedTuple):
    """The largest numbers of new tokens of the texts of a call.

    Attributes:
      counts: int32 ``[N]``, the ``max_new_tokens`` of each text.
      totals: int32 ``[N]``, the same or less, where ``stop.max_new_tokens`` is less.
      default: the default that they come from, or None where the caller or a config named a limit.
      positions: the positions of the model, which its prompts and new tokens share, or None.
      exact: whether the ``max_new_tokens`` of a batch is the limit of its texts, as for a function
        of the caller's own; other strategies take one for each text.
    """

    counts: np.ndarray
    totals: np.ndarray
    default: int | None
    positions: int | None
    exact: bool = False

    @property
    def unfed(self) -> int:
        """The number of last tokens for which a batch needs no position.

        The last token is fed back by some strategies only, which check a limit that a caller has
        named. A default leaves a position for every token.
        """
        return 1 if self.default is None else 0

    def of_batch(self, members: Sequence[int], longest: int) -> int:
        """The largest limit that a batch needs; that of the whole call where the model has room.

        Args:
          members: the texts of the batch, by number, from ``groups``.
          longest: the number of tokens of the longest of them.
        """
        limit = int(self.counts.max())
        fits = self.positions is None or longest + limit - self.unfed <= self.positions
        if fits and not self.exact:
            return limit
        return max(int(self.totals[list(members)].max()), 1)


def limits_of(
    model: Any,
    texts: Sequence[str | Conversation],
    ids: Sequence[Sequence[int]],
    asked: Limits,
    stop: Stop | None,
    *,
    exact: bool,
) -> TextLimits:
    """The limits of the texts of a call.

    Without a limit by the caller, it is the default, or what the text leaves of the positions.

    Args:
      model, texts: as for ``generate``.
      ids: the tokens of each text, from ``fitted``.
      asked: the limits of the call.
      stop: the stop conditions, whose ``max_new_tokens`` also holds unless the limits are exact.
      exact: as in ``TextLimits``.

    Raises:
      ValueError: for a text that does not leave enough positions for a limit that was named.
    """
    named, default = asked.named, asked.default
    positions = shared_positions(model)
    lengths = np.asarray([len(row) for row in ids], np.int64)
    counts = np.full(len(ids), default if named is None else named)
    if named is None and (room := input_positions(model)) is not None:
        counts = np.clip(room - (1 if isinstance(model, EncoderDecoder) else lengths), 1, counts)
    of_stop = None if stop is None or exact else stop.max_new_tokens
    totals = np.minimum(counts, np.asarray(of_stop)) if ids and of_stop is not None else counts
    if positions is not None:
        # The last token is not fed back, and needs no position.
        for i in np.flatnonzero(lengths + totals - 1 > positions)[:1]:
            room = positions - lengths[i] + 1
            raise ValueError(
                f"max_new_tokens: expected at most {room} after the {lengths[i]} tokens of text "
                f"{i}, {describe(texts[i])}, since the model has {positions} positions, got "
                f"{totals[i]}; truncate=True cuts the text"
            )
    default_or_none = default if named is None else None
    counts, totals = counts.astype(np.int32), totals.astype(np.int32)
    return TextLimits(counts, totals, default_or_none, positions, exact)


def limited(stop: Stop, max_new_tokens: Any) -> Stop:
    """The stop conditions, with their ``max_new_tokens`` limited to this one, or one for each text.

    Example:
      >>> limited(Stop(max_new_tokens=[2, 9]), 5).max_new_tokens
      array([2, 5], dtype=int32)
    """
    if len(set(np.ravel(max_new_tokens).tolist())) == 1:
        max_new_tokens = np.ravel(max_new_tokens)[0]
    limit = max_new_tokens if stop.max_new_tokens is None else stop.max_new_tokens
    limit = np.minimum(np.asarray(limit), max_new_tokens).astype(np.int32)
    return dataclasses.replace(stop, max_new_tokens=limit)


def groups(
    order: Sequence[int], lengths: Sequence[int], limits: TextLimits, size: int
) -> Iterator[Sequence[int]]:
    """Divides texts into batches, whose padded prompts and limits fit into the positions.

    Args:
      order: the texts, by number, the longest first.
      lengths: the number of tokens of each text.
      limits: the limits.
      size: the largest number of texts of a batch.

    Example:
      >>> limits = TextLimits(np.array([2, 6, 6]), np.array([2, 6, 6]), 6, 10)
      >>> list(groups([0, 1, 2], [8, 4, 3], limits, 4))
      [[0], [1, 2]]
    """
    group: list[int] = []
    for i in order:
        if group:
            longest = max(limits.totals[i], *limits.totals[group])
            needed = lengths[group[0]] + longest - limits.unfed
            fits = limits.positions is None or needed <= limits.positions
            fits &= not limits.exact or limits.totals[i] == limits.totals[group[0]]
            if len(group) == size or not fits:
                yield group
                group = []
        group.append(i)
    if group:
        yield group


def check_together(
    limits: TextLimits, texts: Sequence[str | Conversation], lengths: Sequence[int]
) -> None:
    """Checks that texts can be one batch, as those of ``stream`` are.

    Raises:
      ValueError: if the longest text leaves too few positions for the limits of the others.
    """
    order = sorted(range(len(texts)), key=lambda i: -lengths[i])
    first, *others = groups(order, lengths, limits, len(texts))
    if others:
        i, got = first[0], limits.counts.max() if limits.default is None else "none"
        raise ValueError(
            f"max_new_tokens: expected at most {limits.totals[i]}, for which text {i}, "
            f"{describe(texts[i])}, leaves room in the model's {limits.positions} positions, or "
            f"one text at a time, got {got} for texts that are streamed together"
        )


def warn_of_cut(rows: Sequence[Sequence[Completion]], limits: TextLimits) -> None:
    """Warns of texts that a limit has cut that the caller did not name.

    Args:
      rows: the completions of each text.
      limits: the limits.
    """
    if limits.default is None:
        return
    is_cut = np.zeros(len(rows), bool)
    for i, (row, limit) in enumerate(zip(rows, limits.totals, strict=True)):
        is_cut[i] = any(not c.finished and len(c.tokens) >= limit for c in row)
    at_default = limits.totals == limits.default
    by_default, by_positions = (int((is_cut & which).sum()) for which in (at_default, ~at_default))
    if by_default:
        warn(
            f"max_new_tokens: got none, and the default of {limits.default} cut {by_default} of "
            f"{len(rows)} texts; a larger max_new_tokens lets them go on",
            CutTextWarning,
        )
    if by_positions:
        positions, hint = "positions for new tokens end", ""
        if limits.positions is not None:
            positions = f"{limits.positions} positions end"
            hint = "; shorter ones leave room for more new tokens"
        warn(
            f"texts: got {by_positions} of {len(rows)} that were cut where the model's "
            f"{positions}{hint}",
            CutTextWarning,
        )
