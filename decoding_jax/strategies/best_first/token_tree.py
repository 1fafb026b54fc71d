"""A tree of tokens in one lane's slots: each node's path, and who its ancestors are.

A model keeps the keys and values of every node once, in the slot that the node was fed at; the
tree knows which of them a new node may attend to. Rows stand at cursors of their own.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from decoding_jax.base import Array

_WORD = 32


class TokenTree(NamedTuple):
    """The nodes that were fed so far.

    Attributes:
      paths: int32 ``[B, S, L]``: the new tokens up to and with each slot's.
      ancestors: uint32 ``[B, S, ceil(S / 32)]``: bit s of a node is set if slot s is among its
        ancestors or its own.
      used: int32 ``[B]``: each row's cursor, the slots that hold a node.
    """

    paths: Array
    ancestors: Array
    used: Array


def empty(batch_size: int, slots: int, max_new_tokens: int) -> TokenTree:
    """A tree of no nodes."""
    return TokenTree(
        paths=jnp.zeros((batch_size, slots, max_new_tokens), jnp.int32),
        ancestors=jnp.zeros((batch_size, slots, -(-slots // _WORD)), jnp.uint32),
        used=jnp.zeros(batch_size, jnp.int32),
    )


def paths(tree: TokenTree, parent: Array, token: Array, length: Array) -> Array:
    """The new tokens of nodes below those of the tree.

    Args:
      tree: with the nodes' parents.
      parent: int32 ``[B, n]``, slots; -1 for a child of the prompt.
      token: int32 ``[B, n]``, the nodes' own.
      length: int32 ``[B, n]``, of their paths, themselves included; 0 for the prompt itself.

    Returns:
      int32 ``[B, n, L]``, 0 from ``length`` on.
    """
    before = jnp.take_along_axis(tree.paths, jnp.maximum(parent, 0)[..., None], axis=1)
    place = jnp.arange(tree.paths.shape[-1])[None, None]
    before = jnp.where(place < length[..., None] - 1, before, 0)
    return jnp.where(place == length[..., None] - 1, token[..., None], before)


def add(
    tree: TokenTree, parent: Array, path: Array, count: Array
) -> tuple[TokenTree, Array, Array]:
    """Puts nodes into the next slots.

    Args:
      tree: with the nodes' parents.
      parent: int32 ``[B, n]``, slots; -1 for a child of the prompt.
      path: int32 ``[B, n, L]``, from ``paths``.
      count: int32 ``[B]``: how many of the n are real, the first ones.

    Returns:
      The tree; the nodes' slots int32 ``[B, n]`` (S for one that is not real); and bool
      ``[B, n, S]``: the slots of their ancestors, themselves left out.
    """
    slots, words = tree.ancestors.shape[1:]
    index = jnp.arange(parent.shape[1])[None]
    real = index < count[:, None]
    slot = jnp.where(real, tree.used[:, None] + index, slots)
    above = jnp.take_along_axis(tree.ancestors, jnp.maximum(parent, 0)[..., None], axis=1)
    above = jnp.where((real & (parent >= 0))[..., None], above, jnp.uint32(0))
    bit = jnp.uint32(1) << (slot % _WORD).astype(jnp.uint32)
    own = jnp.where(slot[..., None] // _WORD == jnp.arange(words)[None, None], bit[..., None], 0)
    put = jax.vmap(lambda held, at, new: held.at[at].set(new, mode="drop"))
    tree = TokenTree(
        paths=put(tree.paths, slot, path),
        ancestors=put(tree.ancestors, slot, above | own),
        used=tree.used + count,
    )
    bits = above[..., None] >> jnp.arange(_WORD, dtype=jnp.uint32)[None, None, None]
    visible = (bits & 1).astype(bool).reshape(*slot.shape, words * _WORD)[..., :slots]
    return tree, slot, visible
