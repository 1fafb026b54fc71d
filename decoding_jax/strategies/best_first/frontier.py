"""The frontier of a search (the heap H in Algorithm 1): hypotheses found and not yet expanded.

Hypotheses are kept in arrays of a fixed size, in the order in which they were made, with unused
places at the end. A top-k whose ties go to the lower index therefore prefers the older hypothesis.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from decoding_jax.base import Array
from decoding_jax.loop.search_trace import ABSENT, NAN, OPEN
from decoding_jax.ops.gather import gather_items
from decoding_jax.ops.top_k import top_k

_LOWEST = jnp.finfo(jnp.float32).min


class Nodes(NamedTuple):
    """Hypotheses, each of which is a token below a node of the token tree.

    Attributes:
      parent: int32 ``[B, n]``, the slot of the previous token, -1 for none.
      token: int32 ``[B, n]``, the last token.
      length: int32 ``[B, n]``, the number of new tokens, the last one included.
      log_prob: float32 ``[B, n]``, of all new tokens under the model; NaN where ``kind`` is NAN.
      score: float32 ``[B, n]``, n.score in the paper: the priority before the temporal decay.
      time: int32 ``[B, n]``, n.time in the paper: the step at which the hypothesis was made.
      kind: int32 ``[B, n]``: ABSENT, OPEN, CUT, FINISHED or NAN, of ``loop.search_trace``.
    """

    parent: Array
    token: Array
    length: Array
    log_prob: Array
    score: Array
    time: Array
    kind: Array


def absent(batch_size: int, size: int) -> Nodes:
    """``size`` unused places a row."""
    whole, real = (
        jnp.zeros((batch_size, size), jnp.int32),
        jnp.zeros((batch_size, size), jnp.float32),
    )
    return Nodes(whole - 1, whole, whole, real, real, whole, whole)


def join(*parts: Nodes) -> Nodes:
    """Concatenates nodes."""
    return Nodes(*(jnp.concatenate(fields, axis=1) for fields in zip(*parts, strict=True)))


def take(nodes: Nodes, index: Array) -> Nodes:
    """The nodes at ``index`` int32 ``[B, m]``."""
    return Nodes(*(gather_items(field, index) for field in nodes))


def count(nodes: Nodes) -> Array:
    """int32 ``[B]``: the number of nodes, unused places left out."""
    return (nodes.kind != ABSENT).sum(1, dtype=jnp.int32)


def only(nodes: Nodes, mask: Array) -> Nodes:
    """The nodes where ``mask`` bool ``[B, n]`` is true; the other places become unused."""
    return nodes._replace(kind=jnp.where(mask, nodes.kind, ABSENT))


def without_nan(nodes: Nodes) -> Nodes:
    """The nodes whose log-probability is not NaN."""
    return only(nodes, nodes.kind != NAN)


def members(index: Array, size: int) -> Array:
    """bool ``[B, size]``: true at ``index`` int32 ``[B, m]``; indices out of range are ignored."""
    put = lambda at: jnp.zeros(size, bool).at[at].set(True, mode="drop")  # noqa: E731
    return jax.vmap(put)(index)


def compact(nodes: Nodes, size: int) -> Nodes:
    """Moves the nodes to the front, in order, and keeps ``size`` places."""
    kept = nodes.kind != ABSENT
    number = jnp.cumsum(kept, axis=1, dtype=jnp.int32)
    place = jnp.where(kept, number - 1, size)
    index = jnp.arange(kept.shape[1], dtype=jnp.int32)
    put = lambda at: jnp.zeros(size, jnp.int32).at[at].set(index, mode="drop")  # noqa: E731
    real = jnp.arange(size, dtype=jnp.int32)[None] < number[:, -1:]
    return only(take(nodes, jax.vmap(put)(place)), real)


def best(values: Array, mask: Array, count: int) -> Array:
    """Indices of the ``count`` largest values, in falling order; ties go to the lower index.

    Args:
      values: float32 ``[B, n]``.
      mask: bool ``[B, n]``, the values to choose from.
      count: at most n. Where the mask has fewer, indices outside it follow.

    Example:
      >>> values = jnp.array([[1.0, -jnp.inf, 3.0, 3.0]])
      >>> best(values, jnp.array([[True, True, True, False]]), 3)
      Array([[2, 0, 1]], dtype=int32)
    """
    values = jnp.where(values == 0, 0.0, values)  # top-k orders -0.0 below 0.0
    return top_k(jnp.where(mask, jnp.maximum(values, _LOWEST), -jnp.inf), count)[1]


def before(values: Array, mask: Array, order: Array, rank: Array) -> Array:
    """The values that come before the one of a given rank.

    Args:
      values: float32 ``[B, n]``.
      mask: bool ``[B, n]``, the values that ``best`` chose from.
      order: int32 ``[B, m]``, from ``best(values, mask, m)``.
      rank: int32 ``[B]``, counted from 1.

    Returns:
      bool ``[B, n]``: true where a value, inside the mask or outside it, is larger than the value
      of that rank, or equal to it and at a lower index. It is true everywhere in rows whose mask
      has fewer than ``rank`` values.
    """
    values = jnp.maximum(values, _LOWEST)
    limit = jnp.take_along_axis(order, rank[:, None] - 1, axis=1, mode="clip")
    bar = jnp.take_along_axis(values, limit, axis=1)
    index = jnp.arange(values.shape[1], dtype=jnp.int32)[None]
    few = mask.sum(1, dtype=jnp.int32)[:, None] < rank[:, None]
    return few | (values > bar) | ((values == bar) & (index < limit))


def prune(nodes: Nodes, priority: Array, size: int) -> Nodes:
    """Heap pruning: keeps the best ``size`` open nodes and the best ``size`` ended ones."""
    width = priority.shape[1]

    def fit(nodes: Nodes) -> Nodes:
        is_open = nodes.kind == OPEN
        kept = is_open & members(best(priority, is_open, size), width)
        kept |= ~is_open & members(best(priority, nodes.kind > OPEN, size), width)
        return only(nodes, kept)

    if width <= size:
        return nodes
    counts = jnp.stack(
        [count(only(nodes, kind)) for kind in (nodes.kind == OPEN, nodes.kind > OPEN)]
    )
    return jax.lax.cond((counts > size).any(), fit, lambda nodes: nodes, nodes)
