"""Hypotheses that share what they have in common: a tree on one lane, or lanes that are gathered.

All hypotheses of a search grow by one token a step, and each may continue any of those before it.
Where the model takes ``visible``, a row has one lane, every step appends K nodes to it, and only a
boolean mask says whose ancestors are whose: no key or value ever moves. Where it does not, each
hypothesis has a lane of its own, and lanes are gathered by ``select`` at every step.
"""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp

from decoding_jax.base import Array, Cache, LanguageModel, Prompt, SupportsSelect
from decoding_jax.loop import model_calls
from decoding_jax.ops.gather import gather_items


class Branches(NamedTuple):
    """Where K hypotheses of every row stand.

    Attributes:
      cache: with all that was fed.
      ancestors: bool ``[B, K, S]``, the slots that each hypothesis has grown from; None where each
        has a lane of its own.
      fed: int32, tokens that each hypothesis holds in the cache.
    """

    cache: Cache
    ancestors: Array | None
    fed: Array


def sprout(
    model: LanguageModel, prompt: Prompt, width: int, max_new_tokens: int
) -> tuple[Array, Branches]:
    """Runs the prompts and makes room for ``width`` hypotheses of a row.

    The last token of a hypothesis is never fed, so each may hold ``max_new_tokens - 1``.

    Returns:
      logits ``[B, V]`` after each prompt, and the branches.

    Raises:
      ValueError: for a model with neither trees nor ``select``.
    """
    steps = max(max_new_tokens - 1, 1)
    if not model.tree and not isinstance(model, SupportsSelect):
        raise ValueError(
            f"model: got {type(model).__name__} with tree=False and no select; takes one that has "
            "either, since hypotheses branch"
        )
    lanes, slots = (1, width * steps) if model.tree else (width, steps)
    logits, cache = model_calls.prefill(model, prompt, lanes=lanes, slots=slots)
    batch = prompt.tokens.shape[0]
    ancestors = jnp.zeros((batch, width, slots), bool) if model.tree else None
    return logits[:, 0, 0], Branches(cache, ancestors, jnp.int32(0))


def feed(
    model: LanguageModel, prompt: Prompt, branches: Branches, token: Array
) -> tuple[Array, Branches]:
    """Feeds the last token ``[B, K]`` of every hypothesis: logits ``[B, K, V]`` after it."""
    cache, ancestors, fed = branches
    if ancestors is None:
        output, cache = model_calls.extend(model, cache, token[..., None], fed)
        logits = output.logits[:, :, 0]
    else:
        # One depth for all of a row's nodes, said without broadcasting: position biases are then
        # one small table.
        position = (prompt.length + fed)[:, None, None]
        start = fed * token.shape[1]
        tree = ancestors[:, None], position
        output, cache = model_calls.extend(model, cache, token[:, None], start, *tree)
        logits = output.logits[:, 0]
    return logits, Branches(cache, ancestors, fed + 1)


def follow(model: LanguageModel, branches: Branches, parent: Array) -> Branches:
    """Hypothesis k goes on from where ``parent[b, k]`` stands, once that has been fed."""
    cache, ancestors, fed = branches
    if ancestors is None:
        assert isinstance(model, SupportsSelect)
        return branches._replace(cache=model.select(cache, parent))
    slot = (fed - 1) * parent.shape[1] + parent
    own = jnp.arange(ancestors.shape[-1], dtype=jnp.int32)[None, None] == slot[..., None]
    taken = gather_items(ancestors, parent)
    return branches._replace(ancestors=taken | own)
