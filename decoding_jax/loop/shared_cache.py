"""How the hypotheses of a beam search, or particles, share a cache.

All hypotheses of a row grow by one token a step, and any number of them may continue the same
hypothesis of the step before. Their keys and values are kept in one of two ways:

- **Tree**. Each row has one lane. Every step appends its K tokens to the lane as nodes of a tree,
  and a boolean mask states which slots each hypothesis may attend to: those of its ancestors.
  Reordering the hypotheses permutes the masks, and moves no key or value.
- **Select**. Each hypothesis has its own lane. Reordering the hypotheses gathers lanes with
  ``model.select`` at every step.

After L steps, a hypothesis of a tree multiplies its query by the keys of all K L tokens, and a
selected one by its own L, after a copy of them. A tree therefore computes K times as much and moves
a third of the bytes: the better choice up to a K that grows with the operations that a processor
does for a byte that it reads.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from decoding_jax.base import Array, Cache, LanguageModel, Prompt, SupportsSelect
from decoding_jax.loop import model_calls
from decoding_jax.loop.sequences import over_axes, per_lane
from decoding_jax.ops.gather import gather_items

# The most hypotheses of a row that form a tree on a CPU, which does some ten operations for a byte.
# GPUs and TPUs do some hundreds, for which no search is too wide.
_WIDEST_TREE_ON_CPU = 64


class SharedCache(NamedTuple):
    """The cache of K hypotheses a row.

    Attributes:
      cache: the model's cache.
      ancestors: bool ``[B, K, S]``, the slots that hold each hypothesis's tokens; None where each
        hypothesis has its own lane.
      num_fed: int32, a scalar or ``[B]``, the number of tokens of each hypothesis that are in the
        cache.
    """

    cache: Cache
    ancestors: Array | None
    num_fed: Array


def open_cache(
    model: LanguageModel, prompt: Prompt, width: int, max_new_tokens: int
) -> tuple[Array, SharedCache]:
    """Runs the prompts and makes room for ``width`` hypotheses a row.

    The last token of a hypothesis is never fed, so each needs room for ``max_new_tokens - 1``.

    Returns:
      The logits after each prompt, float32 ``[B, V]``, and the cache.

    Raises:
      ValueError: for a model with neither ``tree`` nor ``select``.
    """
    steps = max(max_new_tokens - 1, 1)
    if not model.tree and not isinstance(model, SupportsSelect):
        raise ValueError(
            "model: expected one with tree or select, since hypotheses branch, got a "
            f"{type(model).__name__} with neither"
        )
    is_tree = model.tree
    if width > _WIDEST_TREE_ON_CPU and isinstance(model, SupportsSelect):
        is_tree &= jax.default_backend() != "cpu"
    lanes, slots = (1, width * steps) if is_tree else (width, steps)
    output, cache = model_calls.prefill(model, prompt, lanes=lanes, slots=slots)
    batch = prompt.tokens.shape[0]
    ancestors = jnp.zeros((batch, width, slots), bool) if is_tree else None
    return output.logits[:, 0, 0], SharedCache(cache, ancestors, jnp.int32(0))


def extend_hypotheses(
    model: LanguageModel, prompt: Prompt, shared: SharedCache, token: Array
) -> tuple[Array, SharedCache]:
    """Feeds the last token of every hypothesis to the model.

    Args:
      model: the model.
      prompt: B prompts.
      shared: the cache without these tokens.
      token: int32 ``[B, K]``.

    Returns:
      The logits after the tokens, float32 ``[B, K, V]``, and the cache with them.
    """
    cache, ancestors, num_fed = shared
    if ancestors is None:
        output, cache = model_calls.extend(
            model, cache, token[..., None], per_lane(num_fed, token.shape[1])
        )
        logits = output.logits[:, :, 0]
    else:
        # All nodes of a step have the same position. It is passed without broadcasting, so that
        # the table of position biases is small.
        position = (prompt.length + num_fed)[:, None, None]
        start = per_lane(num_fed * token.shape[1], 1)
        tree = ancestors[:, None], position
        output, cache = model_calls.extend(model, cache, token[:, None], start, *tree)
        logits = output.logits[:, 0]
    return logits, SharedCache(cache, ancestors, num_fed + 1)


def reorder(model: LanguageModel, shared: SharedCache, parent: Array) -> SharedCache:
    """Makes hypothesis k a continuation of hypothesis ``parent[b, k]``.

    Args:
      model: the model.
      shared: the cache after ``extend``.
      parent: int32 ``[B, K]``.
    """
    cache, ancestors, num_fed = shared
    if ancestors is None:
        assert isinstance(model, SupportsSelect)
        return shared._replace(cache=model.select(cache, parent))
    parent_slot = over_axes((num_fed - 1) * parent.shape[1], 2) + parent
    slot = jnp.arange(ancestors.shape[-1], dtype=jnp.int32)[None, None]
    ancestors_of_parent = gather_items(ancestors, parent)
    return shared._replace(ancestors=ancestors_of_parent | (slot == parent_slot[..., None]))
