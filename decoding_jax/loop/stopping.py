"""Stop conditions of each row, on new tokens: end tokens, sequences, strings, limits."""

from __future__ import annotations

import jax.numpy as jnp

from decoding_jax.base import Array, Stop
from decoding_jax.loop.stop_strings import StopStrings, ends_with_string


def _with_row_axis(value: Array, ndim: int) -> Array:
    """Adds a first axis of size one to a setting that all rows share."""
    value = jnp.asarray(value, jnp.int32)
    return value if value.ndim == ndim else value[None]


def end_tokens(stop: Stop) -> Array:
    """The end tokens, int32 ``[E]`` or ``[B, E]``."""
    return jnp.zeros(0, jnp.int32) if stop.eos_ids is None else jnp.asarray(stop.eos_ids, jnp.int32)


def limits(stop: Stop, batch_size: int, max_new_tokens: int) -> Array:
    """The maximum number of new tokens of each row, int32 ``[B]``."""
    limit = max_new_tokens if stop.max_new_tokens is None else stop.max_new_tokens
    limit = jnp.minimum(jnp.asarray(limit, jnp.int32), max_new_tokens)
    return jnp.broadcast_to(limit, (batch_size,))


def minimum(stop: Stop) -> Array:
    """The minimum number of new tokens of each row, int32 ``[B]`` or ``[1]``."""
    return _with_row_axis(jnp.asarray(stop.min_new_tokens, jnp.int32), 1)


def is_end_token(stop: Stop, token: Array) -> Array:
    """Whether ``token [B, W]`` is one of its row's end tokens, bool ``[B, W]``."""
    ends = _with_row_axis(end_tokens(stop), 2)
    return (token[..., None] == ends[:, None]).any(-1)


def ban_end_tokens(stop: Stop, logits: Array, length: Array) -> Array:
    """Bans end tokens where a sequence has fewer than ``min_new_tokens`` new tokens.

    Args:
      stop: the conditions.
      logits: float32 ``[B, W, ..., V]``.
      length: int32 ``[B, W, ...]``, the number of new tokens before the one to be chosen.
    """
    if end_tokens(stop).shape[-1] == 0:
        return logits
    ends = _with_row_axis(end_tokens(stop), 2)
    vocab = jnp.arange(logits.shape[-1], dtype=jnp.int32)
    is_end = (vocab[None, :, None] == ends[:, None]).any(-1)
    extra = (1,) * (length.ndim - 1)
    is_end = is_end.reshape(is_end.shape[0], *extra, is_end.shape[-1])
    early = length < minimum(stop).reshape(-1, *extra)
    return jnp.where(is_end & early[..., None], -jnp.inf, logits)


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
    """All tokens with which a sequence may end: int32 ``[E]`` or ``[B, E]``, padded with -1."""
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
    ended = ends_with_sequence(stop, tokens, length)
    strings = strings_of(stop)
    return ended if strings is None else ended | ends_with_string(strings, tokens, length)


def ends_with_sequence(stop: Stop, tokens: Array, length: Array) -> Array:
    """Whether new tokens ``[B, W, L]`` end with one of the stop sequences, bool ``[B, W]``."""
    sequences = _with_row_axis(stop.sequences, 3)
    width = sequences.shape[-1]
    if sequences.shape[-2] == 0 or width == 0:
        return jnp.zeros(length.shape, bool)
    index = length[..., None] - width + jnp.arange(width, dtype=jnp.int32)[None, None]
    tail = jnp.take_along_axis(tokens, jnp.clip(index, 0), axis=-1)
    tail = jnp.where(index >= 0, tail, -2)[:, :, None]
    sequences = sequences[:, None]
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
