"""The beginnings of texts that were rejected, and how much of each may still be in the language.

A node is a beginning of a text. Its bound is the logarithm of an upper bound of the probability
that a text which begins so is in the language. The bound of a node that is not stored is 0. Stored
bounds only fall, and each is at least what its children's bounds and the tokens that are allowed
give: this is what makes the draws exact (see ``conditional_sample``).

After the texts ``a b`` and ``a c`` were rejected, a row with tokens a, b and c of probability 1/3
each, every one allowed, stores four nodes::

    node     0 (empty)    1 (a)      2 (a b)    3 (a c)
    parent   -1           0          1          1
    token    -1           a          b          c
    bound    7/9          1/3        0          0

The bound of ``a`` is 1/3, since only ``a a`` may still be in the language. That of the empty text
is 1/3 (for a) times 1/3, and 2/3 for b and c, of which nothing is known.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from decoding_jax.base import Array
from decoding_jax.ops.gather import gather_items, gather_last


class Failures(NamedTuple):
    """The stored nodes of each row. Node 0 is the empty text.

    Attributes:
      parent: int32 ``[B, S]``; -1 for node 0 and where there is no node.
      token: int32 ``[B, S]``, the last token of each.
      log_bound: float32 ``[B, S]``, in nats.
      used: int32 ``[B]``, the number of nodes.
    """

    parent: Array
    token: Array
    log_bound: Array
    used: Array


class Attempts(NamedTuple):
    """What the texts that are being drawn have met on their way, for each token.

    Attributes:
      log_prob: float32 ``[B, N, L]``, of the token after the text before.
      log_rest: float32 ``[B, N, L]``, the logarithm of what all other tokens in its place hold of
        the bound.
    """

    log_prob: Array
    log_rest: Array


def empty(batch_size: int, size: int) -> Failures:
    """Failures with the empty text alone."""
    none = jnp.full((batch_size, size), -1, jnp.int32)
    zeros = jnp.zeros((batch_size, size), jnp.float32)
    return Failures(none, none, zeros, jnp.ones(batch_size, jnp.int32))


def children(failures: Failures, node: Array) -> Array:
    """The stored children of nodes ``[B, N]`` (-1 for one not stored): bool ``[B, N, S]``."""
    return (failures.parent[:, None] == node[..., None]) & (node >= 0)[..., None]


def bounds_of_tokens(failures: Failures, is_child: Array, vocab_size: int) -> Array:
    """The bound of every token after each node, float32 ``[B, N, V]``; ``is_child`` as above."""

    def of_lane(is_child: Array, token: Array, bound: Array) -> Array:
        place = jnp.where(is_child, token, vocab_size)
        return jnp.zeros(vocab_size, jnp.float32).at[place].set(bound, mode="drop")

    # Rows that are sharded stay where they are under ``vmap``, unlike with an index of rows.
    of_row = jax.vmap(of_lane, (0, None, None))
    return jax.vmap(of_row)(is_child, failures.token, failures.log_bound)


def child_at(failures: Failures, is_child: Array, token: Array) -> Array:
    """The child of each node at ``token [B, N]``, int32 ``[B, N]``; -1 where it is not stored."""
    node = jnp.arange(is_child.shape[-1], dtype=jnp.int32)[None, None]
    found = is_child & (failures.token[:, None] == token[..., None])
    return jnp.where(found, node, -1).max(-1)


def learn(
    failures: Failures,
    attempts: Attempts,
    tokens: Array,
    depth: Array,
    log_bound: Array,
    rejected: Array,
) -> Failures:
    """Stores the beginnings of rejected texts, and lowers their bounds.

    A text that does not fit as a whole is not stored: a node's bound must not fall by more than
    what its stored children say.

    Args:
      failures: the nodes so far.
      attempts: what the texts have met.
      tokens: int32 ``[B, N, L]``, the texts.
      depth: int32 ``[B, N]``, the number of tokens of each text that failed.
      log_bound: float32 ``[B, N]``, the bound of the text itself.
      rejected: bool ``[B, N]``, the texts to store; the others are skipped.
    """
    lanes = jnp.arange(rejected.shape[1], dtype=jnp.int32)[None]
    # Rejected lanes first.
    order = jnp.sort(jnp.where(rejected, lanes, lanes + lanes.size), -1) % lanes.size
    count = rejected.sum(-1, dtype=jnp.int32)

    def add(i: Array, failures: Failures) -> Failures:
        lane = lax.dynamic_slice_in_dim(order, i, 1, axis=1)
        text, log_prob, log_rest = (gather_items(x, lane)[:, 0] for x in (tokens, *attempts))
        size, bound = gather_last(depth, lane[:, 0]), gather_last(log_bound, lane[:, 0])
        fits = failures.used + size <= failures.parent.shape[1]
        size = jnp.where((i < count) & fits, size, -1)
        failures, nodes = _insert(failures, text, size)
        return _lower(failures, nodes, size, bound, log_prob, log_rest)

    return lax.fori_loop(0, count.max(), add, failures)


def _insert(failures: Failures, text: Array, size: Array) -> tuple[Failures, Array]:
    """Stores all beginnings of a text a row, and returns their nodes, int32 ``[B, L + 1]``.

    Args:
      failures: the nodes so far, with room.
      text: int32 ``[B, L]``.
      size: int32 ``[B]``, the number of its tokens; -1 for a row without a text.
    """
    missing = failures.parent.shape[1]
    nodes = jnp.zeros((text.shape[0], text.shape[1] + 1), jnp.int32)

    def descend(i: Array, carry: tuple[Failures, Array]) -> tuple[Failures, Array]:
        failures, nodes = carry
        token, parent = text[:, i], nodes[:, i]
        is_child = children(failures, parent[:, None])
        found = child_at(failures, is_child, token[:, None])[:, 0]
        is_new = (found < 0) & (i < size)
        # Nodes are stored in the order in which they were met, and are never removed, so a child
        # comes after its parent and an index stays valid while texts are drawn.
        place = jnp.where(is_new, failures.used, missing)
        failures = failures._replace(
            parent=_set(failures.parent, place, parent),
            token=_set(failures.token, place, token),
            used=failures.used + is_new.astype(jnp.int32),
        )
        return failures, nodes.at[:, i + 1].set(jnp.where(is_new, place, found))

    return lax.fori_loop(0, jnp.maximum(size.max(), 0), descend, (failures, nodes))


def _lower(
    failures: Failures, nodes: Array, size: Array, bound: Array, log_prob: Array, log_rest: Array
) -> Failures:
    """Lowers the bounds of a text and, from its end to its beginning, of the nodes before it."""
    missing = failures.parent.shape[1]

    # The new bound of a parent is what its other tokens held when the text was drawn, and what this
    # child holds now. Other lanes may have lowered the bound since then: the lower one stays.
    # Rows whose text is shorter wait until the loop reaches their depth.
    def ascend(i: Array, carry: tuple[Array, Array]) -> tuple[Array, Array]:
        bounds, bound = carry
        depth = size.max() - i
        before = jnp.clip(depth, 0, log_prob.shape[1] - 1)
        joined = jnp.logaddexp(log_rest[:, before], log_prob[:, before] + bound)
        bound = jnp.where(depth < size, joined, bound)
        place = jnp.where(depth <= size, nodes[:, depth], missing)
        return _lower_one(bounds, place, bound), bound

    bounds, _ = lax.fori_loop(0, size.max() + 1, ascend, (failures.log_bound, bound))
    return failures._replace(log_bound=bounds)


@jax.vmap
def _set(values: Array, place: Array, value: Array) -> Array:
    """``values [B, S]`` with ``value [B]`` at ``place [B]``; a place beyond S is no place."""
    return values.at[place].set(value, mode="drop")


@jax.vmap
def _lower_one(values: Array, place: Array, value: Array) -> Array:
    """``values [B, S]``, of which that at ``place [B]`` is at most ``value [B]``."""
    return values.at[place].min(value, mode="drop")
