"""Prompt lookup: what followed the same few tokens the last time they occurred."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import jax.numpy as jnp

from decoding_jax.base import Array, Prompt
from decoding_jax.pytrees import pytree
from decoding_jax.strategies.speculative.drafters.base import Path

# The axes of a source that serves all rows, if there was one: tokens [P'], length [].
_SHARED = Prompt(1, 0)  # type: ignore[arg-type]


@pytree
@dataclasses.dataclass(frozen=True)
class PromptLookup:
    """Copies from the row's own text: no model, no distribution, point masses.

    Saxena 2023, "Prompt Lookup Decoding" (github.com/apoorvumang/prompt-lookup-decoding). The last
    ``size`` tokens of prompt and new text are looked up in both and in the source: the longest
    match of up to ``size`` tokens wins, the latest of equally long ones, those of the source last.
    The tokens after it are the draft. A draft that reaches the end of the text goes on with its own
    first tokens, as a text that repeats does.

    Attributes:
      size: the longest n-gram looked up, 1 or more.
      source: a ``Prompt``, tokens ``[B, P']`` to copy from besides the prompt, such as the inputs
        of an encoder-decoder; or None.

    Example:
      >>> prompt = Prompt(jnp.array([[7, 8, 9, 5, 7, 8]]), jnp.array([6]))
      >>> path = Path(prompt, jnp.array([[[9, 0, 0, 0]]]), jnp.array([[1]]))
      >>> PromptLookup().guess((), path, 5).tolist()
      [[[5, 7, 8, 9, 5]]]
    """

    size: int = dataclasses.field(default=3, metadata={"static": True})
    source: Prompt | None = dataclasses.field(default=None, metadata={"shared_axes": _SHARED})

    def __post_init__(self) -> None:
        if self.size < 1:
            raise ValueError(f"size: got {self.size}; takes 1 or more")

    def bind(self, tokens: Array, length: Array) -> PromptLookup:
        """See ``SupportsBind.bind``. A source that was given is kept."""
        if self.source is not None:
            return self
        return dataclasses.replace(self, source=Prompt(tokens, length))

    def init(self, prompt: Prompt, *, lanes: int, max_new_tokens: int) -> Any:
        """See ``Guesser.init``.

        Raises:
          ValueError: for a source of other rows than the prompt's.
        """
        if self.source is not None and self.source.tokens.shape[0] != prompt.tokens.shape[0]:
            raise ValueError(
                f"source: got {self.source.tokens.shape[0]} rows; "
                f"takes the prompt's {prompt.tokens.shape[0]}"
            )
        return ()

    def guess(self, state: Any, path: Path, count: int) -> Array:
        """See ``Guesser.guess``."""
        text, length = _text(path)
        suffix = _before(text, length, self.size)
        here = _longest(text, length[..., None], suffix)
        # The end of the text matches itself, and nothing follows it.
        place = jnp.arange(text.shape[-1], dtype=jnp.int32)[None, None]
        here = jnp.where(place + 1 < length[..., None], here, 0)
        found = _best(here)
        period = (length - found.end)[..., None]
        ahead = jnp.arange(count, dtype=jnp.int32)[None, None]
        index = jnp.clip(found.end[..., None] + ahead % jnp.maximum(period, 1), 0)
        guess = jnp.take_along_axis(text, index, axis=-1, mode="clip")
        guess = jnp.where((found.size > 0)[..., None], guess, -1)
        if self.source is None:
            return guess
        tokens, limit = (jnp.asarray(x) for x in self.source)
        limit = limit[:, None, None]
        there = _longest(tokens[:, None], limit, suffix)
        elsewhere = _best(
            jnp.where(
                jnp.arange(tokens.shape[1], dtype=jnp.int32)[None, None] + 1 < limit, there, 0
            )
        )
        index = elsewhere.end[..., None] + ahead
        wide = jnp.broadcast_to(tokens[:, None], (*length.shape, tokens.shape[1]))
        copied = jnp.take_along_axis(wide, index, axis=-1, mode="clip")
        copied = jnp.where(index < limit, copied, -1)
        return jnp.where((elsewhere.size > found.size)[..., None], copied, guess)


class _Match(NamedTuple):
    """Int32 ``[B, W]``: how many tokens match, and the place after them."""

    size: Array
    end: Array


def _text(path: Path) -> tuple[Array, Array]:
    """Prompt and new tokens without the gap between them: ``[B, W, P + L]``, and the length."""
    (prompt, prompt_length), tokens, length = path
    lanes, width = tokens.shape[1], prompt.shape[1]
    wide = jnp.broadcast_to(prompt[:, None], (prompt.shape[0], lanes, width))
    both = jnp.concatenate([wide, tokens], axis=-1)
    place = jnp.arange(both.shape[-1], dtype=jnp.int32)[None]
    index = jnp.where(place < prompt_length[:, None], place, place + width - prompt_length[:, None])
    index = jnp.broadcast_to(index[:, None], both.shape)
    text = jnp.take_along_axis(both, index, axis=-1, mode="clip")
    return text, prompt_length[:, None] + length


def _before(text: Array, end: Array, size: int) -> Array:
    """The ``size`` tokens before ``end``, the last of them first; -1 before the text began."""
    index = end[..., None] - 1 - jnp.arange(size, dtype=jnp.int32)[None, None]
    return jnp.where(index >= 0, jnp.take_along_axis(text, jnp.clip(index, 0), axis=-1), -1)


def _longest(text: Array, length: Array, suffix: Array) -> Array:
    """How many tokens of ``suffix [B, W, n]`` end at each place of ``text``: ``[B, W, C]``.

    Args:
      text: int32 ``[B, W or 1, C]``.
      length: int32, broadcastable to ``[B, W, C]``.
      suffix: the last token first.
    """
    real = jnp.arange(text.shape[-1], dtype=jnp.int32)[None, None] < length
    text = jnp.where(real, text, -2)
    matched = jnp.ones((*suffix.shape[:2], text.shape[-1]), bool)
    size = jnp.zeros(matched.shape, jnp.int32)
    for i in range(suffix.shape[-1]):
        shifted = jnp.pad(text, ((0, 0), (0, 0), (i, 0)), constant_values=-2)
        matched &= shifted[..., : text.shape[-1]] == suffix[..., i : i + 1]
        size += matched.astype(jnp.int32)
    return size


def _best(size: Array) -> _Match:
    """The longest match, the latest of equally long ones."""
    width = size.shape[-1]
    rank = size * width + jnp.arange(width, dtype=jnp.int32)[None, None]
    best = rank.max(-1)
    return _Match(best // width, best % width + 1)
