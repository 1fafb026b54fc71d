"""A frontier: hypotheses that wait to be expanded, in the order in which they were made.

They stand in arrays of a fixed size, live ones first. Since they are in order of making, a top-k
whose ties go to the lower index gives ties to the older hypothesis.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from decoding_jax.base import Array
from decoding_jax.ops.top_k import top_k

ABSENT, OPEN, CUT, FINISHED = range(4)
"""Kinds of nodes: none at all; one to expand; one at its length limit, or after which nothing is
allowed; one that a stop condition ended."""

_LOWEST = jnp.finfo(jnp.float32).min


class Nodes(NamedTuple):
    """Hypotheses: each a token below a node of the tree.

    Attributes:
      parent: int32 ``[B, n]``, the slot of the token before, -1 for none.
      token: int32 ``[B, n]``.
      length: int32 ``[B, n]``, new tokens, this one included.
      log_prob: float32 ``[B, n]``, of all of them under the model.
      score: float32 ``[B, n]``, what it is expanded by, apart from its age.
      born: int32 ``[B, n]``, the step of its row that made it.
      kind: int32 ``[B, n]``: ABSENT, OPEN, CUT or FINISHED.
    """

    parent: Array
    token: Array
    length: Array
    log_prob: Array
    score: Array
    born: Array
    kind: Array


def absent(batch_size: int, size: int) -> Nodes:
    """No nodes."""
    whole, real = jnp.zeros((batch_size, size), jnp.int32), jnp.zeros((batch_size, size))
    return Nodes(whole - 1, whole, whole, real, real, whole, whole)


def join(*parts: Nodes) -> Nodes:
    """Nodes one after another."""
    return Nodes(*(jnp.concatenate(fields, axis=1) for fields in zip(*parts, strict=True)))


def take(nodes: Nodes, index: Array) -> Nodes:
    """The nodes at ``index`` int32 ``[B, m]``."""
    return Nodes(*(jnp.take_along_axis(field, index, axis=1) for field in nodes))


def count(nodes: Nodes) -> Array:
    """int32 ``[B]``: how many are not absent."""
    return (nodes.kind != ABSENT).sum(1, dtype=jnp.int32)


def only(nodes: Nodes, mask: Array) -> Nodes:
    """The nodes with those outside ``mask`` bool ``[B, n]`` absent."""
    return nodes._replace(kind=jnp.where(mask, nodes.kind, ABSENT))


def members(index: Array, size: int) -> Array:
    """bool ``[B, size]``: the places that ``index`` int32 ``[B, m]`` names; others are dropped."""
    put = lambda at: jnp.zeros(size, bool).at[at].set(True, mode="drop")  # noqa: E731
    return jax.vmap(put)(index)


def compact(nodes: Nodes, size: int) -> Nodes:
    """The first ``size`` nodes that are not absent, in order, and absent ones behind them."""
    kept = nodes.kind != ABSENT
    number = jnp.cumsum(kept, axis=1, dtype=jnp.int32)
    place = jnp.where(kept, number - 1, size)
    index = jnp.arange(kept.shape[1], dtype=jnp.int32)
    put = lambda at: jnp.zeros(size, jnp.int32).at[at].set(index, mode="drop")  # noqa: E731
    real = jnp.arange(size)[None] < number[:, -1:]
    return only(take(nodes, jax.vmap(put)(place)), real)


def best(values: Array, mask: Array, count: int) -> Array:
    """Indices of the ``count`` largest, in order; equal ones and those outside by their index.

    Args:
      values: float32 ``[B, n]``.
      mask: bool ``[B, n]``: which of them take part.
      count: at most n. Behind those that take part come others.

    Example:
      >>> values = jnp.array([[1.0, -jnp.inf, 3.0, 3.0]])
      >>> best(values, jnp.array([[True, True, True, False]]), 3)
      Array([[2, 0, 1]], dtype=int32)
    """
    values = jnp.where(values == 0, 0.0, values)  # a top-k puts -0.0 below 0.0
    return top_k(jnp.where(mask, jnp.maximum(values, _LOWEST), -jnp.inf), count)[1]


def before(values: Array, mask: Array, order: Array, rank: Array) -> Array:
    """What comes before one of the best.

    Args:
      values: float32 ``[B, n]``.
      mask: bool ``[B, n]``: which of them took part in ``best``.
      order: int32 ``[B, m]``, from ``best(values, mask, m)``.
      rank: int32 ``[B]``, from 1: of the one in question.

    Returns:
      bool ``[B, n]``: whether a value, itself in ``mask`` or not, comes before it: it is larger,
      or equal and earlier. All do where fewer than ``rank`` took part.
    """
    values = jnp.maximum(values, _LOWEST)
    limit = jnp.take_along_axis(order, rank[:, None] - 1, axis=1, mode="clip")
    bar = jnp.take_along_axis(values, limit, axis=1)
    index = jnp.arange(values.shape[1])[None]
    few = mask.sum(1)[:, None] < rank[:, None]
    return few | (values > bar) | ((values == bar) & (index < limit))


def prune(nodes: Nodes, priority: Array, size: int) -> Nodes:
    """At most ``size`` open nodes, and as many that have ended: those of the highest priority."""

    held = priority.shape[1]

    def fit(nodes: Nodes) -> Nodes:
        is_open = nodes.kind == OPEN
        kept = is_open & members(best(priority, is_open, size), held)
        kept |= ~is_open & members(best(priority, nodes.kind > OPEN, size), held)
        return only(nodes, kept)

    if held <= size:
        return nodes
    counts = jnp.stack([(nodes.kind == OPEN).sum(1), (nodes.kind > OPEN).sum(1)])
    return jax.lax.cond((counts > size).any(), fit, lambda nodes: nodes, nodes)
