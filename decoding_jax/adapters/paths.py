"""The tokens along the paths of a batch, which the adapters keep beside or in place of a cache."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from decoding_jax.base import Array
from decoding_jax.models.caches import write


class Tokens(NamedTuple):
    """The tokens of a batch. A slot that was never written holds token 0 at position 0.

    Attributes:
      prompt: int32 ``[B, P]``.
      length: int32 ``[B]``, of each prompt.
      slots: int32 ``[B, W, S]``, the token in each slot.
      position: int32 ``[B, W, S]``, the position of each slot's token.
    """

    prompt: Array
    length: Array
    slots: Array
    position: Array


def start_tokens(prompt: Array, length: Array, lanes: int, slots: int) -> Tokens:
    """Prompts ``[B, P]`` of ``length [B]``, without new tokens."""
    empty = jnp.zeros((prompt.shape[0], lanes, slots), jnp.int32)
    return Tokens(jnp.asarray(prompt, jnp.int32), jnp.asarray(length, jnp.int32), empty, empty)


def written(held: Array, new: Array, start: Array | int) -> Array:
    """``held [B, W, S]`` with ``new [B, W, T]`` in the slots from ``start`` on."""
    return write(held[..., None], new[..., None], start)[..., 0]


def add(tokens: Tokens, new: Array, start: Array | int, position: Array) -> Tokens:
    """Writes new tokens ``[B, W, T]`` and their positions to the slots from ``start`` on."""
    return tokens._replace(
        slots=written(tokens.slots, new, start),
        position=written(tokens.position, jnp.broadcast_to(position, new.shape), start),
    )


def keep(tokens: Tokens, source: Array, start: Array | int) -> Tokens:
    """Copies slots within each lane; see ``SupportsKeep.keep``."""
    source = jnp.clip(source, 0, tokens.slots.shape[-1] - 1)
    start = jnp.broadcast_to(jnp.asarray(start, jnp.int32), source.shape[:2])

    def moved(held: Array) -> Array:
        return written(held, jnp.take_along_axis(held, source, -1), start)

    return tokens._replace(slots=moved(tokens.slots), position=moved(tokens.position))


def select(tokens: Tokens, lanes: Array) -> Tokens:
    """Replaces lane w of row b by its lane ``lanes[b, w]``; see ``SupportsSelect.select``."""
    return tokens._replace(
        slots=gather_lanes(tokens.slots, lanes), position=gather_lanes(tokens.position, lanes)
    )


def gather_lanes(held: Array, lanes: Array) -> Array:
    """The lanes ``[B, W]`` of an array ``[B, W, ...]``."""
    lanes = jnp.clip(lanes, 0, held.shape[1] - 1)
    return jax.vmap(lambda row, index: row[index])(held, lanes)


def chains(tokens: Tokens, size: int) -> Array:
    """Each lane's prompt followed by the tokens of its slots, int32 ``[B, W, size]``."""
    place = jnp.arange(size, dtype=jnp.int32)[None, None]
    shape = (*tokens.slots.shape[:2], size)
    slot = place - tokens.length[:, None, None]
    last = tokens.slots.shape[-1] - 1
    new = jnp.take_along_axis(
        tokens.slots, jnp.broadcast_to(jnp.clip(slot, 0, max(last, 0)), shape), -1
    )
    return jnp.where(slot < 0, _prompts(tokens, size)[:, None], new)


def tree_paths(tokens: Tokens, visible: Array, new: Array, position: Array, size: int) -> Array:
    """The path to each node of a tree: the prompt, the visible slots by position, and the node.

    Args:
      tokens: with the nodes written.
      visible: bool ``[B, W, T, S']``, the slots of each node's ancestors.
      new: int32 ``[B, W, T]``, the nodes.
      position: int32 ``[B, W, T]``, of the nodes.
      size: the length of the paths.

    Returns:
      int32 ``[B, W, T, size]``; undefined after each node.
    """
    seen = visible.shape[-1]

    def path(
        prompt: Array, slots: Array, at: Array, visible: Array, new: Array, end: Array
    ) -> Array:
        place = jnp.where(visible & (at >= 0), at, size)
        return prompt.at[place].set(slots, mode="drop").at[end].set(new, mode="drop")

    nodes = jax.vmap(path, (None, None, None, 0, 0, 0))
    lanes = jax.vmap(nodes, (None, 0, 0, 0, 0, 0))
    slots, at = tokens.slots[..., :seen], tokens.position[..., :seen]
    return jax.vmap(lanes)(_prompts(tokens, size), slots, at, visible, new, position)


def _prompts(tokens: Tokens, size: int) -> Array:
    """The prompts, cut or padded to ``[B, size]``."""
    prompt = tokens.prompt[:, :size]
    return jnp.pad(prompt, ((0, 0), (0, size - prompt.shape[1])))


def clean_paths(paths: Array, length: Array, vocab_size: int) -> Array:
    """Paths ``[..., size]`` of ``length [...]``, with 0 after the end and for non-tokens."""
    place = jnp.arange(paths.shape[-1], dtype=jnp.int32)
    real = place.reshape((1,) * length.ndim + (-1,)) < length[..., None]
    return jnp.where(real & (paths >= 0) & (paths < vocab_size), paths, 0)
