"""Prompt lookup: drafts the tokens that followed an earlier occurrence of the last few tokens."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import jax.numpy as jnp

from decoding_jax import fields
from decoding_jax.base import Array, Prompt
from decoding_jax.pytrees import pytree
from decoding_jax.strategies.speculative.drafters.base import Path

# The axes that a source for all rows would have: tokens [P'], length []. Sources have one more.
_SHARED = Prompt(1, 0)  # type: ignore[arg-type]


@pytree
@dataclasses.dataclass(frozen=True)
class PromptLookup:
    """Copies drafts from the prompt and the new tokens, without a model.

    Saxena 2023, "Prompt Lookup Decoding" (github.com/apoorvumang/prompt-lookup-decoding). The last
    tokens of the sequence (the prompt and the new tokens) are searched for in the sequence and in
    the source. The longest match of up to ``size`` tokens is used. Of equally long matches, one in
    the sequence is preferred to one in the source, and then the latest. The draft consists of the
    tokens after the match. A draft that reaches the end of the sequence continues from the match
    again, as in a text that repeats itself.

    Attributes:
      size: the maximum length of a match, 1 or more.
      source: a ``Prompt`` with further tokens ``[B, P']`` to copy from, such as the inputs of an
        encoder-decoder; or None.

    Raises:
      ValueError: for a size below 1.

    Example:
      >>> prompt = Prompt(jnp.array([[7, 8, 9, 5, 7, 8]]), jnp.array([6]))
      >>> path = Path(prompt, jnp.array([[[9, 0, 0, 0]]]), jnp.array([[1]]))
      >>> PromptLookup().guess((), path, 5).tolist()
      [[[5, 7, 8, 9, 5]]]
    """

    size: int = fields.count(default=3)
    source: Prompt | None = fields.field(shared_axes=_SHARED, default=None)

    widens = True

    def __post_init__(self) -> None:
        fields.check(self)

    def bind(self, tokens: Array, length: Array) -> PromptLookup:
        """See ``SupportsBind.bind``. If there is a source already, it is kept."""
        if self.source is not None:
            return self
        return dataclasses.replace(self, source=Prompt(tokens, length))

    def init(self, prompt: Prompt, *, lanes: int, max_new_tokens: int) -> Any:
        """See ``Guesser.init``.

        Raises:
          ValueError: for a source whose number of rows is not the prompt's.
        """
        if self.source is not None and self.source.tokens.shape[0] != prompt.tokens.shape[0]:
            raise ValueError(
                f"source: expected as many rows as the prompt's {prompt.tokens.shape[0]}, got "
                f"{self.source.tokens.shape[0]}"
            )
        return ()

    def guess(self, state: Any, path: Path, count: int) -> Array:
        """See ``Guesser.guess``."""
        return self.copied(path, count)[0]

    def copied(self, path: Path, count: int) -> tuple[Array, Array]:
        """The draft, int32 ``[B, W, count]``, and the length of its match, int32 ``[B, W]``."""
        sequence, length = _join(path)
        suffix = _last_tokens(sequence, length, self.size)
        match = _best_match(sequence, length[..., None], suffix)
        # The draft continues from the match when it reaches the end of the sequence.
        period = (length - match.end)[..., None]
        offset = jnp.arange(count, dtype=jnp.int32)[None, None]
        index = jnp.clip(match.end[..., None] + offset % jnp.maximum(period, 1), 0)
        draft = jnp.take_along_axis(sequence, index, axis=-1, mode="clip")
        draft = jnp.where((match.size > 0)[..., None], draft, -1)
        if self.source is None:
            return draft, match.size
        source, source_length = (jnp.asarray(x) for x in self.source)
        source_length = source_length[:, None, None]
        source_match = _best_match(source[:, None], source_length, suffix)
        index = source_match.end[..., None] + offset
        source = jnp.broadcast_to(source[:, None], (*length.shape, source.shape[1]))
        source_draft = jnp.take_along_axis(source, index, axis=-1, mode="clip")
        source_draft = jnp.where(index < source_length, source_draft, -1)
        draft = jnp.where((source_match.size > match.size)[..., None], source_draft, draft)
        return draft, jnp.maximum(source_match.size, match.size)


class _Match(NamedTuple):
    """A match of the last tokens of every lane.

    Attributes:
      size: int32 ``[B, W]``, the number of tokens that match, 0 for none.
      end: int32 ``[B, W]``, the index after the match.
    """

    size: Array
    end: Array


def _join(path: Path) -> tuple[Array, Array]:
    """Joins prompt and new tokens without the padding between them.

    Returns:
      int32 ``[B, W, P + L]``, and the lengths ``[B, W]``.
    """
    (prompt, prompt_length), tokens, length = path
    lanes, width = tokens.shape[1], prompt.shape[1]
    prompts = jnp.broadcast_to(prompt[:, None], (prompt.shape[0], lanes, width))
    padded = jnp.concatenate([prompts, tokens], axis=-1)
    index = jnp.arange(padded.shape[-1], dtype=jnp.int32)[None]
    padding = width - prompt_length[:, None]
    source = jnp.where(index < prompt_length[:, None], index, index + padding)
    source = jnp.broadcast_to(source[:, None], padded.shape)
    sequence = jnp.take_along_axis(padded, source, axis=-1, mode="clip")
    return sequence, prompt_length[:, None] + length


def last_tokens(path: Path, size: int) -> Array:
    """The last ``size`` tokens of prompt and new tokens; see ``_last_tokens``."""
    return _last_tokens(*_join(path), size)


def _last_tokens(sequence: Array, length: Array, size: int) -> Array:
    """The last ``size`` tokens, the last one first; -1 before the beginning of the sequence."""
    index = length[..., None] - 1 - jnp.arange(size, dtype=jnp.int32)[None, None]
    return jnp.where(index >= 0, jnp.take_along_axis(sequence, jnp.clip(index, 0), axis=-1), -1)


def _best_match(tokens: Array, length: Array, suffix: Array) -> _Match:
    """The longest match that at least one token follows; of equally long ones, the latest.

    Args:
      tokens: int32 ``[B, W or 1, C]``, the tokens to search.
      length: int32, their number, broadcastable to ``[B, W, C]``.
      suffix: int32 ``[B, W, n]``, the tokens to search for, the last one first.
    """
    size = _matching_tokens(tokens, length, suffix)
    width = size.shape[-1]
    index = jnp.arange(width, dtype=jnp.int32)[None, None]
    size = jnp.where(index + 1 < length, size, 0)
    best = (size * width + index).max(-1)
    return _Match(best // width, best % width + 1)


def _matching_tokens(tokens: Array, length: Array, suffix: Array) -> Array:
    """The number of suffix tokens that match up to each index, int32 ``[B, W, C]``.

    Args:
      tokens, length, suffix: as for ``_best_match``.
    """
    real = jnp.arange(tokens.shape[-1], dtype=jnp.int32)[None, None] < length
    tokens = jnp.where(real, tokens, -2)
    matches = jnp.ones((*suffix.shape[:2], tokens.shape[-1]), bool)
    size = jnp.zeros(matches.shape, jnp.int32)
    for i in range(suffix.shape[-1]):
        shifted = jnp.pad(tokens, ((0, 0), (0, 0), (i, 0)), constant_values=-2)
        matches &= shifted[..., : tokens.shape[-1]] == suffix[..., i : i + 1]
        size += matches.astype(jnp.int32)
    return size
