"""Transforms by the spans of a text, such as the thinking of a reasoning model."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from decoding_jax import fields, rows
from decoding_jax.base import CarriedStates, Prefix
from decoding_jax.ops.logits import clean
from decoding_jax.pytrees import pytree
from decoding_jax.transforms import carried
from decoding_jax.transforms.composition import in_each_part
from decoding_jax.transforms.lengths import only

Array = jax.Array

_LONGEST = 31  # the bits of an int32 that is not negative
_TEXT = "token ids such as (5, 6), or a string"
_MARK = f"{_TEXT}, of 1 to {_LONGEST} tokens"


def _as_tokens(name: str, value: Any) -> Any:
    if isinstance(value, str):
        return value
    value = fields.as_ids(name, value)
    if np.ndim(value) != 1 or (fields.is_readable(value) and np.any(np.asarray(value) < 0)):
        raise fields.error(name, _TEXT, value)
    return value


def _as_mark(name: str, value: Any) -> Any:
    value = _as_tokens(name, value)
    if not (value if isinstance(value, str) else 1 <= len(value) <= _LONGEST):
        raise fields.error(name, _MARK, value)
    return value


@pytree
@dataclasses.dataclass(frozen=True, eq=False)
class ThinkingBudget:
    """Ends each span of a text after a number of tokens: reasoning models think between two marks.

    A span begins after a start mark and lasts until the next end mark is complete; then a text
    looks for a start mark again, and no token is part of two marks. Once ``max_tokens`` tokens
    follow the start mark, the next tokens are certain: those of ``then``, and after them what is
    missing of the end mark. A span is not longer than these together. Everywhere else, the logits
    are unchanged. Muennighoff et al. (2025), "s1: Simple test-time scaling", arXiv:2501.19393, end
    thinking in this way.

    Put it last in a chain, since a transform after it may ban what it forces. Strategies carry the
    state of each text from step to step: the number of tokens since the start mark, and a bit for
    each beginning of the next mark that says whether the text ends with it (Baeza-Yates & Gonnet
    1992, "A new approach to text searching").

    Attributes:
      start: the start mark, such as ``"<think>"``: 1 to 31 token ids, int32 ``[M]``; or a string,
        which ``generate``, ``stream`` and the batch job tokenize, on its own.
      end: the end mark, such as ``"</think>"``, as ``start``.
      max_tokens: 0 and above: an int or int32 ``[B]``. One that no text can reach limits nothing.
      then: what precedes a forced end mark, such as ``"\\n\\nTime is up."``: token ids, int32
        ``[N]``, or a string. By default nothing does.
      include_prompt: whether a span may begin in the prompt, as it may by default. Chat templates
        of some models open one there.

    Raises:
      ValueError: for marks of another length, and for a negative number that is not traced; and by
        a strategy, for an id outside the vocabulary, and for a string.

    Example:
      >>> from decoding_jax import transforms
      >>> from decoding_jax.base import Prefix
      >>> tokens = jnp.array([[[[4, 4]]]])
      >>> prefix = Prefix(jnp.array([[1]]), jnp.array([1]), tokens, jnp.array([[[2]]]))
      >>> budget = transforms.thinking_budget([1], [2], max_tokens=2)
      >>> jax.jit(budget)(jnp.zeros((1, 1, 1, 5)), prefix)
      Array([[[[-inf, -inf,   0., -inf, -inf]]]], dtype=float32)
    """

    start: Any = fields.field(_as_mark, expected=_MARK, shared_axes=None, token_ids=True)
    end: Any = fields.field(_as_mark, expected=_MARK, shared_axes=None, token_ids=True)
    max_tokens: Any = fields.number(*fields.COUNTS)
    then: Any = fields.field(
        _as_tokens, expected=_TEXT, shared_axes=None, token_ids=True, default=()
    )
    include_prompt: bool = fields.switch(default=True)

    def __post_init__(self) -> None:
        fields.check(self, fields.label(self))
        if _contains(self.then, self.end):
            expected = "tokens without the end mark, which follows them"
            raise fields.error(
                f"{fields.label(self)}.then", expected, np.asarray(self.then).tolist()
            )

    def __call__(self, logits: Array, prefix: Prefix) -> Array:
        logits = clean(logits)
        count, matched = self.states_after(prefix)
        excess = count - rows.per_row(self, "max_tokens", prefix.length, jnp.int32)
        end, then = self._tokens("end"), self._tokens("then")
        # The longest beginning of the end mark that the text ends with: the highest bit.
        token = end[jnp.clip(32 - lax.clz(matched), 0, end.shape[0] - 1)]
        if then.shape[0]:
            last = then.shape[0] - 1
            token = jnp.where(excess <= last, then[jnp.clip(excess, 0, last)], token)
        return only(logits, (count >= 0) & (excess >= 0), token[..., None])

    def states_after(self, prefix: Prefix) -> tuple[Array, Array]:
        """The state after each path.

        Returns:
          int32 ``[B, W, T]``, the number of tokens since the start mark, -1 outside of a span; and
          int32 of the same shape, whose bit i says whether the text since the last mark ends with
          the first i + 1 tokens of the next one.
        """
        return carried.walked(prefix, lambda: self._after_prompt(prefix), self._advanced)

    def _after_prompt(self, prefix: Prefix) -> tuple[Array, Array]:
        length = prefix.prompt_length[:, None, None]
        none = jnp.zeros_like(length)
        outside = none - 1, none
        if not self.include_prompt:
            return outside
        begun = CarriedStates(outside, none, rest=prefix.prompt.shape[-1])
        text = prefix._replace(tokens=prefix.prompt[:, None, None], length=length, carried=begun)
        return self.states_after(text)

    def _advanced(self, state: tuple[Array, Array], token: Array) -> tuple[Array, Array]:
        """The state after one more token."""
        count, matched = state
        inside = count >= 0
        start, end = self._tokens("start"), self._tokens("end")
        equal = jnp.where(inside, _bits(end, token), _bits(start, token))
        matched = ((matched << 1) | 1) & equal
        # Both are int32, also where JAX makes integers of 64 bits.
        of_start, of_end = (jnp.int32(1 << (mark.shape[0] - 1)) for mark in (start, end))
        last = jnp.where(inside, of_end, of_start)
        is_mark = (matched & last) != 0
        count = jnp.where(inside, count + 1, -1)
        begun = -inside.astype(jnp.int32)  # -1 after the end of a span, 0 after its start
        return jnp.where(is_mark, begun, count), jnp.where(is_mark, 0, matched)

    def _tokens(self, name: str) -> Array:
        value = getattr(self, name)
        if isinstance(value, str):
            expected = "token ids; generate, stream and the batch job tokenize strings"
            raise fields.error(f"{fields.label(self)}.{name}", expected, value)
        return jnp.asarray(value, jnp.int32)


def _contains(tokens: Any, mark: Any) -> bool:
    """Whether tokens contain a mark; False where either is a string or traced."""
    if isinstance(tokens, str) or isinstance(mark, str):
        return False
    if not (fields.is_readable(tokens) and fields.is_readable(mark)):
        return False
    size = len(mark)
    return any(np.array_equal(tokens[i : i + size], mark) for i in range(len(tokens) - size + 1))


def _bits(mark: Array, token: Array) -> Array:
    """Which tokens of a mark are equal to each token, int32 of their shape with bit i for token i.

    Example:
      >>> _bits(jnp.array([5, 6, 5]), jnp.array([5, 6, 7])).tolist()
      [5, 2, 0]
    """
    place = jnp.arange(mark.shape[0], dtype=jnp.int32)
    first = tuple(range(token.ndim))
    equal = token[..., None] == jnp.expand_dims(mark, first)
    bits = jnp.expand_dims(jnp.int32(1) << place, first)
    return jnp.where(equal, bits, 0).sum(-1, dtype=jnp.int32)


def with_token_ids(transform: Any, pieces: Callable[[str], Sequence[int]]) -> Any:
    """A transform whose strings are token ids.

    Args:
      transform: any transform, or None.
      pieces: the tokens of a string, without special tokens that a tokenizer adds.

    Raises:
      ValueError: for a mark without tokens, or of too many.

    Example:
      >>> made = with_token_ids(ThinkingBudget("<", (7, 8), 3), lambda text: [ord(c) for c in text])
      >>> made.start.tolist(), made.end.tolist()
      ([60], [7, 8])
    """

    def changed(part: Any) -> Any:
        if not isinstance(part, ThinkingBudget):
            return part
        given = {name: getattr(part, name) for name in ("start", "end", "then")}
        texts = {name: value for name, value in given.items() if isinstance(value, str)}
        found: dict[str, Any] = {name: pieces(text) for name, text in texts.items()}
        for name in ("start", "end"):
            if name in found and not 1 <= len(found[name]) <= _LONGEST:
                raise ValueError(
                    f"{fields.label(part)}.{name}: expected {_MARK}, got {texts[name]!r} of "
                    f"{len(found[name])} tokens"
                )
        return dataclasses.replace(part, **found) if found else part

    return in_each_part(transform, changed)
