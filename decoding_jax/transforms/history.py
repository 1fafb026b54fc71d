"""Functions of the text so far: last tokens, whole texts, counts. Lengths mask the padding."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from decoding_jax.base import Prefix

Array = jax.Array


def positions(size: int, ndim: int) -> Array:
    """int32 ``[1, ..., size]`` of ``ndim`` axes with the numbers 0 to ``size - 1``."""
    return jnp.arange(size, dtype=jnp.int32).reshape((1,) * (ndim - 1) + (size,))


def last_tokens(prefix: Prefix, count: int, include_prompt: bool) -> tuple[Array, Array]:
    """The last ``count`` tokens of each text.

    Args:
      prefix: the prefix before each logit.
      count: the number of tokens.
      include_prompt: whether the text begins with the prompt or with the first new token.

    Returns:
      The tokens, int32 ``[B, W, T, count]``, and bool of the same shape, which is False where the
      text is shorter; there the token is undefined.
    """
    position = prefix.length[..., None] - count + positions(count, 4)
    size = prefix.tokens.shape[-1]
    if size:
        index = jnp.clip(position, 0, size - 1)
        tokens = jnp.take_along_axis(prefix.tokens, index, axis=-1)
    else:
        tokens = jnp.zeros(position.shape, jnp.int32)
    real = position >= 0
    if include_prompt:
        position += prefix.prompt_length[:, None, None, None]
        index = jnp.clip(position, 0, prefix.prompt.shape[-1] - 1)
        from_prompt = jnp.take_along_axis(prefix.prompt[:, None, None, :], index, axis=-1)
        tokens = jnp.where(real, tokens, from_prompt)
        real = position >= 0
    return tokens, real


def text(prefix: Prefix, include_prompt: bool) -> tuple[Array, Array, Array]:
    """Each whole text in one array, with the prompt's end next to the first new token.

    Args:
      prefix: the prefix before each logit.
      include_prompt: whether the text begins with the prompt or with the first new token.

    Returns:
      The tokens, int32 ``[B, W, T, P + L]`` (``L`` without the prompt); the index at which the text
      begins, int32 ``[B, 1, 1]``; and the index after its last token, int32 ``[B, W, T]``. Tokens
      outside this range are undefined.
    """
    rows = prefix.length.shape[0]
    if not include_prompt:
        return prefix.tokens, jnp.zeros((rows, 1, 1), jnp.int32), prefix.length
    size = prefix.prompt.shape[-1]
    begin = size - prefix.prompt_length
    index = jnp.clip(positions(size, 2) - begin[:, None], 0, size - 1)
    prompt = jnp.take_along_axis(prefix.prompt, index, axis=-1)
    prompt = jnp.broadcast_to(prompt[:, None, None, :], (*prefix.length.shape, size))
    tokens = jnp.concatenate([prompt, prefix.tokens], axis=-1)
    return tokens, begin[:, None, None], prefix.length + size


def counts(prefix: Prefix, vocab_size: int, include_prompt: bool) -> Array:
    """How often each token of the vocabulary occurs in each text: int32 ``[B, W, T, V]``."""
    real = positions(prefix.tokens.shape[-1], 4) < prefix.length[..., None]
    found = scatter_counts(prefix.tokens, real, vocab_size)
    if include_prompt:
        real = positions(prefix.prompt.shape[-1], 2) < prefix.prompt_length[:, None]
        # The prompt is counted once for each row, not for each lane.
        found = found + scatter_counts(prefix.prompt, real, vocab_size)[:, None, None, :]
    return found


def scatter_counts(tokens: Array, real: Array, vocab_size: int) -> Array:
    """How often each id occurs among the ``real`` tokens of the last axis.

    Args:
      tokens: int32 ``[..., L]``; ids outside the vocabulary are not counted.
      real: bool ``[..., L]``, which tokens to count.
      vocab_size: V.

    Returns:
      int32 ``[..., V]``.

    Example:
      >>> scatter_counts(jnp.array([2, 0, 2, 1]), jnp.array([True, True, True, False]), 4)
      Array([1, 0, 2, 0], dtype=int32)
    """
    # Only indices past the end are dropped: a negative index would wrap.
    ids = jnp.where(real & (tokens >= 0), tokens, vocab_size)

    def count(ids: Array) -> Array:
        return jnp.zeros((vocab_size,), jnp.int32).at[ids].add(1, mode="drop")

    # Nested vmaps, unlike a reshape, do not move sharded rows.
    for _ in range(ids.ndim - 1):
        count = jax.vmap(count)
    return count(ids)
