"""The limits of texts: their numbers of new tokens, and the positions of the model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from decoding_jax.base import Stop
from decoding_jax.fields import describe
from decoding_jax.models.encoder_decoder import EncoderDecoder
from decoding_jax.registry import DEFAULTS
from decoding_jax.text.batch import Completion
from decoding_jax.text.chat import Conversation
from decoding_jax.text.sizes import shared_size
from decoding_jax.text.tokenizers import Tokenizer
from decoding_jax.text.warn import warn

DEFAULT_LENGTH: int = DEFAULTS["max_new_tokens"]
"""The ``max_new_tokens`` of a call without one, unless a config has other rules."""


class CutTextWarning(UserWarning):
    """A text was cut by a limit that the caller did not name."""


class Limits(NamedTuple):
    """The largest numbers of new tokens.

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
        """The number of last tokens without a position: some strategies feed the last one too.

        A limit that a caller has named is checked by the strategy. A default leaves room for all.
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


def named_length(max_new_tokens: int | None, stop: Stop | None) -> int | None:
    """The largest limit that a caller has named, or None."""
    if max_new_tokens is not None or stop is None or stop.max_new_tokens is None:
        return max_new_tokens
    return max(int(np.max(stop.max_new_tokens, initial=0)), 1)


def shared_positions(model: Any) -> int | None:
    """The number of positions that a text shares with its new tokens, or None for no limit.

    An encoder-decoder has positions of its own for new tokens.
    """
    return None if isinstance(model, EncoderDecoder) else getattr(model, "max_positions", None)


def input_positions(model: Any) -> int | None:
    """The largest number of tokens of a text, or None for no limit."""
    if not isinstance(model, EncoderDecoder):
        return shared_positions(model)
    one: Any = np.ones((1, 1), np.int32)
    return model.bind(one, one[0]).max_positions


def fitted(
    model: Any,
    tokenizer: Tokenizer,
    texts: Sequence[str | Conversation],
    ids: list[list[int]],
    named: int | None,
    default: int,
    *,
    truncate: bool,
) -> list[list[int]]:
    """The tokens of texts, each of which fits into the model.

    Args:
      model, tokenizer, texts: as for ``generate``.
      ids: the tokens of each text.
      named, default: as for ``limits_of``.
      truncate: whether to cut texts that are too long. These then leave positions for the limit
        that was named; or else for the default, but at most for half of the positions.

    Raises:
      ValueError: for a text with more tokens than the model has positions, unless it is cut.
    """
    size = input_positions(model)
    if size is None:
        return ids
    if truncate:
        continued, shared = not isinstance(model, EncoderDecoder), shared_size(model)
        room = longest = size
        if continued:
            if named is not None and named > size:
                raise ValueError(
                    f"max_new_tokens: got {named}; takes at most {size}, the model's positions"
                )
            room -= min(default, size // 2) if named is None else named
            longest -= 0 if named is None else named - 1
        return [
            cut(tokenizer, row, room, shared, keep_last=continued) if len(row) > longest else row
            for row in ids
        ]
    for i, row in enumerate(ids):
        if len(row) > size:
            raise ValueError(
                f"texts: got one of {len(row)} tokens at index {i}, {describe(texts[i])}; takes at "
                f"most {size}, the positions of the model; truncate=True cuts the text"
            )
    return ids


def cut(
    tokenizer: Tokenizer, ids: list[int], size: int, shared: int = 0, *, keep_last: bool
) -> list[int]:
    """Cuts the tokens of a text to a number, without those that the tokenizer adds to every text.

    Args:
      tokenizer: the tokenizer.
      ids: the tokens.
      size: the number to cut them to. At least one token of the text is kept.
      shared: the number of first tokens that are kept besides.
      keep_last: whether the last tokens of the text are kept, rather than the first.

    Example:
      >>> from decoding_jax.text import ByteTokenizer
      >>> tokenizer = ByteTokenizer()
      >>> ids = tokenizer.encode("abcdef")
      >>> for keep_last in (False, True):
      ...     tokenizer.decode(cut(tokenizer, ids, 4, keep_last=keep_last))
      'abc'
      'def'
    """
    if len(ids) <= size:
        return ids
    try:
        added = tokenizer.encode("")
    except Exception:  # A tokenizer may refuse an empty text, by exceptions of many types.
        added = []
    begin = max(shared, _common(ids, added))
    end = min(_common(ids[::-1], added[::-1]), max(len(added) - begin, 0))
    text = ids[begin : len(ids) - end]
    count = max(size - begin - end, 1)
    return ids[:begin] + (text[-count:] if keep_last else text[:count]) + ids[len(ids) - end :]


def _common(first: Sequence[int], second: Sequence[int]) -> int:
    """The number of tokens that both begin with."""
    pairs = enumerate(zip(first, second, strict=False))
    return next((i for i, (x, y) in pairs if x != y), min(len(first), len(second)))


def limits_of(
    model: Any,
    texts: Sequence[str | Conversation],
    ids: Sequence[Sequence[int]],
    named: int | None,
    default: int,
    stop: Stop | None,
    *,
    exact: bool,
) -> Limits:
    """The limits of the texts of a call.

    Without a limit by the caller, it is the default, or what the text leaves of the positions.

    Args:
      model, texts: as for ``generate``.
      ids: the tokens of each text, from ``fitted``.
      named: the ``max_new_tokens`` that the caller has named, or None.
      default: the limit otherwise.
      stop: the stop conditions, whose ``max_new_tokens`` also holds unless the limits are exact.
      exact: as in ``Limits``.

    Raises:
      ValueError: for a text that does not leave enough positions for a limit that was named.
    """
    positions = shared_positions(model)
    lengths = np.asarray([len(row) for row in ids], np.int64)
    counts = default_counts(model, lengths, default) if named is None else np.full(len(ids), named)
    of_stop = None if stop is None or exact else stop.max_new_tokens
    totals = np.minimum(counts, np.asarray(of_stop)) if ids and of_stop is not None else counts
    if positions is not None:
        # The last token is not fed back, and needs no position.
        for i in np.flatnonzero(lengths + totals - 1 > positions)[:1]:
            room = positions - lengths[i] + 1
            raise ValueError(
                f"max_new_tokens: got {totals[i]} after {lengths[i]} tokens of text {i}, "
                f"{describe(texts[i])}; takes at most {room}: the model has {positions} positions; "
                "truncate=True cuts the text"
            )
    default_or_none = default if named is None else None
    counts, totals = counts.astype(np.int32), totals.astype(np.int32)
    return Limits(counts, totals, default_or_none, positions, exact)


def default_counts(model: Any, lengths: Sequence[int] | np.ndarray, default: int) -> np.ndarray:
    """The default limit of each text: less where its tokens leave less of the positions.

    Args:
      model: as for ``generate``.
      lengths: the number of tokens of each text.
      default: the limit of the others.
    """
    positions = input_positions(model)
    if positions is None:
        return np.full(len(lengths), default)
    prompts = 1 if isinstance(model, EncoderDecoder) else np.asarray(lengths)
    return np.clip(positions - prompts, 1, np.full(len(lengths), default))


def groups(
    order: Sequence[int], lengths: Sequence[int], limits: Limits, size: int
) -> Iterator[Sequence[int]]:
    """Divides texts into batches, whose padded prompts and limits fit into the positions.

    Args:
      order: the texts, by number, the longest first.
      lengths: the number of tokens of each text.
      limits: the limits.
      size: the largest number of texts of a batch.

    Example:
      >>> limits = Limits(np.array([2, 6, 6]), np.array([2, 6, 6]), 6, 10)
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
    limits: Limits, texts: Sequence[str | Conversation], lengths: Sequence[int]
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
            f"max_new_tokens: got {got} for texts that are streamed together; "
            f"takes at most {limits.totals[i]}, for which text {i}, {describe(texts[i])}, leaves "
            f"room in the model's {limits.positions} positions, or one text at a time"
        )


def warn_of_cut(rows: Sequence[Sequence[Completion]], limits: Limits) -> None:
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
