"""The tree of expanded hypotheses, held in the cache slots of one lane.

The model's cache keeps the keys and values of every node once, so a prefix that many hypotheses
share is computed once. The tree records which slots a new node may attend to. Each row has its own
cursor.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from decoding_jax.base import Array, CarriedStates, Prefix
from decoding_jax.loop.sequences import write
from decoding_jax.ops.gather import gather_items

_WORD = 32


class TokenTree(NamedTuple):
    """The nodes in the cache.

    Attributes:
      paths: int32 ``[B, S, L]``: the new tokens from the prompt to each slot's token.
      ancestors: uint32 ``[B, S, ceil(S / 32)]``: bit s of a node is set if slot s holds the node
        itself or one of its ancestors.
      used: int32 ``[B]``: the number of slots in use, which is the next slot to write.
      states: the states of a transform after each slot's path, arrays ``[B, S]``; None for one
        without states.
    """

    paths: Array
    ancestors: Array
    used: Array
    states: Any


def empty(
    batch_size: int, slots: int, max_new_tokens: int, root: CarriedStates | None
) -> TokenTree:
    """A tree without nodes; ``root`` has the states after the prompts, arrays ``[B, 1, 1]``."""
    states = None
    if root is not None:
        states = jax.tree.map(lambda x: jnp.repeat(x[:, 0], slots, axis=1), root.states)
    return TokenTree(
        paths=jnp.zeros((batch_size, slots, max_new_tokens), jnp.int32),
        ancestors=jnp.zeros((batch_size, slots, -(-slots // _WORD)), jnp.uint32),
        used=jnp.zeros(batch_size, jnp.int32),
        states=states,
    )


def paths(tree: TokenTree, parent: Array, token: Array, length: Array) -> Array:
    """The new tokens of hypotheses whose parents are in the tree.

    Args:
      tree: the tree.
      parent: int32 ``[B, n]``, the parents' slots; -1 for a child of the prompt.
      token: int32 ``[B, n]``, the last tokens.
      length: int32 ``[B, n]``, the lengths of the paths, last token included; 0 for the prompt.

    Returns:
      int32 ``[B, n, L]``, 0 from ``length`` on.
    """
    before = gather_items(tree.paths, jnp.maximum(parent, 0))
    place = jnp.arange(tree.paths.shape[-1], dtype=jnp.int32)[None, None]
    before = jnp.where(place < length[..., None] - 1, before, 0)
    return write(before, token, length - 1)


def states_before(
    tree: TokenTree, parent: Array, length: Array, root: CarriedStates | None
) -> CarriedStates | None:
    """The states of a transform after hypotheses without their last tokens, ``[B, 1, n]``.

    Args:
      tree: the tree.
      parent: int32 ``[B, n]``, the parents' slots; -1 for a child of the prompt.
      length: int32 ``[B, n]``, the lengths of the hypotheses.
      root: the states after the prompts, arrays ``[B, 1, 1]``; None for a transform without states.
    """
    if root is None:
        return None

    def of_parents(states: Array, first: Array) -> Array:
        inner = gather_items(states, jnp.maximum(parent, 0))
        return jnp.where(parent < 0, first[:, 0], inner)[:, None]

    states = jax.tree.map(of_parents, tree.states, root.states)
    return CarriedStates(states, jnp.maximum(length - 1, 0)[:, None])


def add(
    tree: TokenTree, parent: Array, path: Prefix, count: Array
) -> tuple[TokenTree, Array, Array]:
    """Adds nodes at the next slots.

    Args:
      tree: the tree.
      parent: int32 ``[B, n]``, the parents' slots; -1 for a child of the prompt.
      path: of ``[B, 1, n]`` nodes, with the states after each.
      count: int32 ``[B]``, the number of valid nodes; later entries are padding.

    Returns:
      The tree; the nodes' slots int32 ``[B, n]``, with S for padding; and bool ``[B, n, S]``, the
      slots of each node's ancestors, without the node itself.
    """
    slots, words = tree.ancestors.shape[1:]
    index = jnp.arange(parent.shape[1], dtype=jnp.int32)[None]
    valid = index < count[:, None]
    slot = jnp.where(valid, tree.used[:, None] + index, slots)
    above = gather_items(tree.ancestors, jnp.maximum(parent, 0))
    above = jnp.where((valid & (parent >= 0))[..., None], above, jnp.uint32(0))
    bit = jnp.uint32(1) << (slot % _WORD).astype(jnp.uint32)
    itself = slot[..., None] // _WORD == jnp.arange(words, dtype=jnp.int32)[None, None]
    itself = jnp.where(itself, bit[..., None], 0)
    put = jax.vmap(lambda array, index, new: array.at[index].set(new, mode="drop"))
    states = tree.states
    if path.carried is not None:
        states = jax.tree.map(lambda x, y: put(x, slot, y[:, 0]), states, path.carried.states)
    tree = TokenTree(
        paths=put(tree.paths, slot, path.tokens[:, 0]),
        ancestors=put(tree.ancestors, slot, above | itself),
        used=tree.used + count,
        states=states,
    )
    bits = above[..., None] >> jnp.arange(_WORD, dtype=jnp.uint32)[None, None, None]
    visible = (bits & 1).astype(bool).reshape(*slot.shape, words * _WORD)[..., :slots]
    return tree, slot, visible
