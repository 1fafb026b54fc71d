"""Stop conditions of each row, on new tokens: end tokens, sequences, strings, limits.

Stop strings are a finite automaton over the bytes that tokens add to a text. The automaton of Aho
and Corasick (1975) reads a text byte by byte; its state is the longest suffix that begins a string.
Tokens that cause the same transition in every state form one class, so the tables are small for any
vocabulary. The state after a text depends only on its last bytes, as many as the longest string
has. It is therefore computed from the last tokens of a sequence at each step, and no strategy
carries it.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from decoding_jax import fields
from decoding_jax.base import Array, Stop
from decoding_jax.pytrees import pytree

EMPTY, BROKEN = 0, 1
"""The classes of tokens without text, and of bytes that are not text. Other classes begin at 2."""

_LEADS = (
    *((0xC2, 0xDF, 1), (0xE0, 0xE0, 2), (0xE1, 0xEC, 3), (0xED, 0xED, 4), (0xEE, 0xEF, 3)),
    *((0xF0, 0xF0, 5), (0xF1, 0xF3, 6), (0xF4, 0xF4, 7)),
)
"""First and last of a range of bytes that begin a character, and the state after one of them.

The state determines which bytes may follow."""

_CONTINUATIONS = (
    *((1, 0x80, 0xBF, 0), (2, 0xA0, 0xBF, 1), (3, 0x80, 0xBF, 1), (4, 0x80, 0x9F, 1)),
    *((5, 0x90, 0xBF, 3), (6, 0x80, 0xBF, 3), (7, 0x80, 0x8F, 3)),
)
"""State, first and last byte that may follow, and the next state; state 0 is between characters."""

_DEAD = 8


def _utf8_table() -> np.ndarray:
    """int32 ``[258, 9]``: the state after each byte, other text (256) or no text (257)."""
    table = np.full((258, 9), _DEAD, np.int32)
    table[:0x80, 0] = 0
    for low, high, state in _LEADS:
        table[low : high + 1, 0] = state
    for state, low, high, following in _CONTINUATIONS:
        table[low : high + 1, state] = following
    table[256], table[257] = 0, np.arange(9)
    return table


_UTF8 = _utf8_table()


@pytree
@dataclasses.dataclass(frozen=True, eq=False)
class StopStrings:
    """Strings that end a text, compiled for one tokenizer by ``text.stop_strings``.

    Attributes:
      token_class: int32 ``[V]``, the class of each token in a text that has begun.
      first_class: int32 ``[V]``, its class as the first of a text, where decoders drop a space; -1
        for a token that leaves the text without a beginning.
      byte: int32 ``[V]``, the byte of a token whose run of bytes is decoded as a whole, and -1 for
        any other token; or None for a tokenizer without such tokens.
      transitions: int32 ``[S, C]``, the state after each state and class.
      matches: bool ``[S, C, Q]``, the strings that end inside a token of the class.
      last_tokens: int32 ``[E]``, the tokens inside which a string may end, padded with -1.
      chosen: bool ``[Q]``, or ``[B, Q]`` for each row: which strings count.
      begun: a bool, or bool ``[B]``: whether the new tokens continue a text.
      special: int32 ``[V]``, the string that a special token is, which has no text, and -1 for any
        other token; or None where no string is one.
      window: the largest number of tokens that a string can touch. Static.
      max_ends: the largest number of tokens that end a text at one state. Static.
    """

    token_class: Any = fields.field(shared_axes=None)
    first_class: Any = fields.field(shared_axes=None)
    byte: Any = fields.field(shared_axes=None)
    transitions: Any = fields.field(shared_axes=None)
    matches: Any = fields.field(shared_axes=None)
    last_tokens: Any = fields.field(shared_axes=None)
    chosen: Any = fields.field(shared_axes=1)
    begun: Any = fields.field(shared_axes=0)
    special: Any = fields.field(shared_axes=None)
    window: int = fields.field(static=True)
    max_ends: int = fields.field(static=True)


def ends_with_string(strings: StopStrings, tokens: Array, length: Array) -> Array:
    """Whether a string ends inside the last token of each sequence, bool ``[B, W]``.

    Args:
      strings: the strings.
      tokens: int32 ``[B, W, L]``, the new tokens.
      length: int32 ``[B, W]``, their number.
    """
    classes = _classes(strings, tokens)
    position = jnp.arange(tokens.shape[-1], dtype=jnp.int32)[None, None]
    # The last token with text up to each position.
    texts = lax.cummax(jnp.where(classes != EMPTY, position, -1), axis=classes.ndim - 1)

    def at(array: Array, index: Array) -> Array:
        index = jnp.clip(index, 0, tokens.shape[-1] - 1)
        return jnp.take_along_axis(array, index[..., None], axis=-1)[..., 0]

    def previous(index: Array, _: None) -> tuple[Array, Array]:
        index = jnp.where(index >= 0, at(texts, index), -1)
        return index - 1, jnp.where(index >= 0, at(classes, index), EMPTY)

    transitions = jnp.asarray(strings.transitions, jnp.int32)

    def advance(state: Array, token_class: Array) -> tuple[Array, None]:
        return transitions[state, token_class], None

    last = jnp.where(length > 0, at(classes, length - 1), EMPTY)
    # These loops are not unrolled: fused, each gather would compute the earlier ones again.
    _, earlier = lax.scan(previous, length - 2, None, length=strings.window - 1)
    state, _ = lax.scan(advance, jnp.zeros(length.shape, jnp.int32), earlier, reverse=True)
    matches = jnp.asarray(strings.matches)[state, last]
    if strings.special is not None:
        special = jnp.asarray(strings.special, jnp.int32)
        token = jnp.clip(at(tokens, length - 1), 0, special.shape[0] - 1)
        string = jnp.where(length > 0, special[token], -1)[..., None]
        number = jnp.arange(matches.shape[-1], dtype=jnp.int32)[None, None]
        matches |= string == number
    chosen = jnp.asarray(strings.chosen)
    return (matches & chosen.reshape(-1, 1, chosen.shape[-1])).any(-1)


def _classes(strings: StopStrings, tokens: Array) -> Array:
    """The class of each of the tokens ``[B, W, L]`` at its place in its text."""
    token_class = jnp.asarray(strings.token_class, jnp.int32)
    tokens = jnp.clip(tokens, 0, token_class.shape[0] - 1)
    first = jnp.asarray(strings.first_class, jnp.int32)[tokens]
    position = jnp.arange(tokens.shape[-1], dtype=jnp.int32)[None, None]
    beginning = jnp.where(first >= 0, position, tokens.shape[-1]).min(-1, keepdims=True)
    classes = token_class[tokens]
    of_new = jnp.where(
        position < beginning, EMPTY, jnp.where(position == beginning, first, classes)
    )
    begun = jnp.reshape(jnp.asarray(strings.begun), (-1, 1, 1))
    classes = jnp.where(begun, classes, of_new)
    if strings.byte is None:
        return classes
    byte = jnp.asarray(strings.byte, jnp.int32)[tokens]
    has_text = token_class[tokens] != EMPTY
    symbol = jnp.where(byte >= 0, byte, jnp.where(has_text, 256, 257))
    states = lax.associative_scan(
        lambda f, g: jnp.take_along_axis(g, f, axis=-1), jnp.asarray(_UTF8)[symbol], axis=2
    )[..., 0]
    return jnp.where((byte >= 0) & (states == _DEAD), BROKEN, classes)


def end_tokens(stop: Stop) -> Array:
    """The end tokens, int32 ``[1, E]`` or ``[B, E]``."""
    if stop.eos_ids is None:
        return jnp.zeros((1, 0), jnp.int32)
    ids = jnp.asarray(stop.eos_ids, jnp.int32)
    return ids if ids.ndim == 2 else ids[None]


def limits(stop: Stop, batch_size: int, max_new_tokens: int) -> Array:
    """The maximum number of new tokens of each row, int32 ``[B]``."""
    limit = max_new_tokens if stop.max_new_tokens is None else stop.max_new_tokens
    limit = jnp.minimum(jnp.asarray(limit, jnp.int32), max_new_tokens)
    return jnp.broadcast_to(limit, (batch_size,))


def minimum(stop: Stop) -> Array:
    """The minimum number of new tokens of each row, int32 ``[B]`` or ``[1]``."""
    least = jnp.asarray(stop.min_new_tokens, jnp.int32)
    return least if least.ndim else least[None]


def is_end_token(stop: Stop, token: Array) -> Array:
    """Whether ``token [B, W]`` is one of its row's end tokens, bool ``[B, W]``."""
    ends = end_tokens(stop)
    return (token[..., None] == ends[:, None]).any(-1)


def ban_end_tokens(stop: Stop, logits: Array, length: Array) -> Array:
    """Bans end tokens where a sequence has fewer than ``min_new_tokens`` new tokens.

    Args:
      stop: the conditions.
      logits: float32 ``[B, W, ..., V]``.
      length: int32 ``[B, W, ...]``, the number of new tokens before the one to be chosen.
    """
    ends = end_tokens(stop)
    if ends.shape[-1] == 0:
        return logits
    vocab = jnp.arange(logits.shape[-1], dtype=jnp.int32)
    is_end = (vocab[None, :, None] == ends[:, None]).any(-1)
    extra = (1,) * (length.ndim - 1)
    is_end = is_end.reshape(is_end.shape[0], *extra, is_end.shape[-1])
    early = length < minimum(stop).reshape(-1, *extra)
    return jnp.where(is_end & early[..., None], -jnp.inf, logits)


def ban_unfinished(stop: Stop, logits: Array, length: Array, max_new_tokens: int) -> Array:
    """Bans the tokens after which a sequence would reach its limit unfinished.

    They are known beforehand where nothing but end tokens ends a text. Where stop sequences or
    strings do, nothing is banned.

    Args:
      stop: the conditions.
      logits: float32 ``[B, W, V]``.
      length: int32 ``[B, W]``, the number of new tokens before the one to be chosen.
      max_new_tokens: L.
    """
    if jnp.shape(stop.sequences)[-1] or strings_of(stop) is not None:
        return logits
    is_last = length + 1 >= limits(stop, logits.shape[0], max_new_tokens)[:, None]
    vocab = jnp.arange(logits.shape[-1], dtype=jnp.int32)[None]
    is_end = is_end_token(stop, vocab)[:, None]
    return jnp.where(is_last[..., None] & ~is_end, -jnp.inf, logits)


def strings_of(stop: Stop) -> StopStrings | None:
    """The stop strings, compiled.

    Raises:
      ValueError: for strings that are not compiled.
    """
    if stop.strings is None or isinstance(stop.strings, StopStrings):
        return stop.strings
    raise ValueError(
        "stop.strings: expected the result of decoding_jax.text.stop_strings, which "
        f"decoding_jax.generate calls by itself, got {stop.strings!r}"
    )


def num_endings(stop: Stop) -> int:
    """The largest number of tokens with which a sequence may end."""
    strings = strings_of(stop)
    num_strings = 0 if strings is None else strings.max_ends
    return end_tokens(stop).shape[-1] + jnp.shape(stop.sequences)[-2:][0] + num_strings


def last_tokens(stop: Stop) -> list[Array]:
    """All tokens that may end a sequence, padded with -1: int32 ``[E]`` or ``[1 or B, E]``."""
    strings = strings_of(stop)
    tokens = [end_tokens(stop)]
    if jnp.shape(stop.sequences)[-1]:
        tokens.append(jnp.asarray(stop.sequences, jnp.int32)[..., -1])
    return tokens if strings is None else [*tokens, jnp.asarray(strings.last_tokens, jnp.int32)]


def ends_with_text(stop: Stop, tokens: Array, length: Array) -> Array:
    """Whether a stop sequence or a stop string ends with the last of ``tokens [B, W, L]``.

    Returns:
      bool ``[B, W]``.
    """
    ended, strings = jnp.zeros(length.shape, bool), strings_of(stop)
    if 0 not in jnp.shape(stop.sequences):
        ended = ends_with_sequence(stop, tokens, length)
    return ended if strings is None else ended | ends_with_string(strings, tokens, length)


def ends_with_sequence(stop: Stop, tokens: Array, length: Array) -> Array:
    """Whether new tokens ``[B, W, L]`` end with one of the stop sequences, bool ``[B, W]``."""
    sequences = jnp.asarray(stop.sequences, jnp.int32)
    sequences = jnp.expand_dims(sequences, 1 if sequences.ndim == 3 else (0, 1))
    width = sequences.shape[-1]
    index = length[..., None] - width + jnp.arange(width, dtype=jnp.int32)[None, None]
    tail = jnp.take_along_axis(tokens, jnp.clip(index, 0), axis=-1)
    tail = jnp.where(index >= 0, tail, -2)[:, :, None]
    padding = sequences < 0
    return (((tail == sequences) | padding).all(-1) & ~padding.all(-1)).any(-1)


def ends(stop: Stop, token: Array, tokens: Array, length: Array) -> Array:
    """Whether an end token, a stop sequence or a stop string ends each sequence, bool ``[B, W]``.

    Args:
      stop: the conditions.
      token: int32 ``[B, W]``, the last token of each sequence.
      tokens: int32 ``[B, W, L]``, the new tokens.
      length: int32 ``[B, W]``, their number.
    """
    enough = length >= minimum(stop)[:, None]
    return is_end_token(stop, token) | (enough & ends_with_text(stop, tokens, length))
