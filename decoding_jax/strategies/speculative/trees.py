"""Drafted trees: what the target is fed, what it gives, and what remains in the caches.

Miao et al. 2023, "SpecInfer: Accelerating Large Language Model Serving with Tree-based Speculative
Inference and Verification". The target is fed the last token, the root, and N drafted tokens, each
of which attends to the sequence and to the tokens on its own path. An accepted path is moved to the
slots where a chain would have written it. ``tree_drafts`` draws trees as independent drafts, and
``dynamic_trees`` grows them by confidence.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from decoding_jax.base import Array, Cache, LanguageModel, Prompt, SupportsKeep
from decoding_jax.loop import model_calls
from decoding_jax.strategies.speculative import distributions
from decoding_jax.strategies.speculative.appending import place_tokens
from decoding_jax.strategies.speculative.drafters import ModelDrafter, TreeDrafter
from decoding_jax.strategies.speculative.stages import (
    AcceptedPath,
    BlockInputs,
    BlockResult,
    Scores,
)


class Tree(NamedTuple):
    """N drafted tokens of every lane.

    The index of a node is its place among the 1 + N tokens that the target is fed: the root has
    index 0, and the first entry of these arrays is node 1.

    Attributes:
      tokens: int32 ``[B, W, N]``.
      depth: int32 ``[B, W, N]``, from 1 to K, the number of drafted tokens up to this one.
      parent: int32 ``[B, W, N]``, the node before; -1 where there is no node, and nothing else is
        defined.
      path: int32 ``[B, W, N, K]``, the nodes from depth 1 to the node itself. Later entries are
        undefined.
      written: int32 ``[B, W, N]``, the place of a node that has children among the tokens that the
        drafter was fed after the sequence.
      draft: int32 ``[B, W, N]``, the draft that the node is of.
    """

    tokens: Array
    depth: Array
    parent: Array
    path: Array
    written: Array
    draft: Array


def check(model: LanguageModel, drafter: Any) -> None:
    """Refuses models and drafters that cannot draft or verify a tree.

    Raises:
      ValueError: for models without ``tree`` or ``keep``, or another drafter.
    """
    if not isinstance(drafter, TreeDrafter):
        raise ValueError(
            "drafter: expected a language model or a drafter of trees, such as Eagle, for several "
            f"drafts, got a {type(drafter).__name__}"
        )
    candidates = {"model": model}
    if isinstance(drafter, ModelDrafter):
        candidates["drafter"] = drafter.model
    for name, candidate in candidates.items():
        if not (candidate.tree and isinstance(candidate, SupportsKeep)):
            raise ValueError(
                f"{name}: expected one with tree and keep for several drafts, got one without"
            )


def init_drafter(
    drafter: TreeDrafter,
    prompt: Prompt,
    lanes: int,
    max_new_tokens: int,
    max_draft_tokens: int,
    num_drafts: int,
    features: tuple[Array, ...],
) -> Any:
    """The drafter's state, with slots for the longest sequence and for K levels of C tokens."""
    return drafter.open(
        prompt,
        lanes=lanes,
        slots=max(max_new_tokens - 1, 1) + max_draft_tokens * num_drafts,
        max_new_tokens=max_new_tokens,
        max_draft_tokens=max_draft_tokens,
        num_drafts=num_drafts,
        features=features,
    )


def visible_slots(inputs: BlockInputs, path: Array, depth: Array, tree_size: int) -> Array:
    """The slots that nodes attend to: the sequence's, and those of the nodes before on their paths.

    Args:
      inputs: of the block.
      path: int32 ``[B, W, T, K]``, the slots of the nodes from depth 1 to each node itself, counted
        from that of the root.
      depth: int32, broadcastable to ``[B, W, T]``, of each node.
      tree_size: the number of slots after those of the longest sequence.

    Returns:
      bool ``[B, W, T, S]``.
    """
    size = max(inputs.sequences.tokens.shape[-1] - 1, 1) + tree_size
    slot = jnp.arange(size, dtype=jnp.int32)[None, None, None]
    root = (inputs.sequences.length - 1)[..., None, None]
    level = jnp.arange(path.shape[-1], dtype=jnp.int32)[None, None, None]
    before = jnp.where(level < depth[..., None] - 1, root + path, -1)
    return (slot <= root) | (before[..., None] == slot[..., None, :]).any(-2)


def score(model: LanguageModel, inputs: BlockInputs, tree: Tree) -> tuple[Scores, Cache]:
    """Feeds the last token and the tree to the target, in one call.

    Returns:
      The scores of 1 + N tokens, and the target's cache.
    """
    sequences, shape = inputs.sequences, tree.tokens.shape
    visible = visible_slots(inputs, tree.path, tree.depth, shape[-1])
    slot = jnp.arange(visible.shape[-1], dtype=jnp.int32)[None, None, None]
    root = sequences.length - 1
    of_root = jnp.broadcast_to(slot < root[..., None, None], (*shape[:2], 1, slot.shape[-1]))
    visible = jnp.concatenate([of_root, visible], axis=2)
    fed = jnp.concatenate([inputs.last_tokens, tree.tokens], axis=-1)
    output, cache = model_calls.extend(model, inputs.cache, fed, root, visible)

    drafted = jnp.take_along_axis(tree.tokens[:, :, None], tree.path - 1, axis=-1, mode="clip")
    place = jax.vmap(place_tokens, (None, 2, None), 2)
    paths = place(sequences.tokens, drafted, sequences.length)
    paths = jnp.concatenate([sequences.tokens[:, :, None], paths], axis=2)
    depth = jnp.pad(tree.depth, ((0, 0), (0, 0), (1, 0)))
    allowed = inputs.allow(output.logits, paths, sequences.length[..., None] + depth)
    return Scores(output.logits, allowed, output.features), cache


def result_of(
    inputs: BlockInputs,
    tree: Tree,
    path: AcceptedPath,
    scores: Scores,
    verifiable: Array,
    verifier_state: Any,
) -> BlockResult:
    """The result of a block that accepts a path from the root."""
    logits, allowed = (
        jnp.take_along_axis(x, path.nodes[..., None], axis=2)
        for x in (scores.logits, scores.allowed.logits)
    )
    level = jnp.arange(inputs.max_draft_tokens, dtype=jnp.int32)[None, None]
    of_level = (tree.depth[..., None] == level[..., None, :] + 1) & (tree.parent >= 0)[..., None]
    nodes = path.nodes[..., 1:]
    written, draft = (
        jnp.take_along_axis(x, nodes - 1, axis=-1, mode="clip") for x in (tree.written, tree.draft)
    )
    return BlockResult(
        tokens=path.tokens,
        accepted=path.accepted,
        verifiable=verifiable,
        proposed=of_level.sum(2, dtype=jnp.int32),
        distribution=distributions.of_model(logits),
        drawn_from=distributions.softmax(allowed),
        dead=jnp.take_along_axis(scores.allowed.dead, path.nodes, axis=2),
        verifier_state=verifier_state,
        nodes=path.nodes,
        written=jnp.where(level < path.accepted[..., None], written, level),
        draft=draft,
    )


def keep(
    model: Any,
    drafter: TreeDrafter,
    inputs: BlockInputs,
    result: BlockResult,
    cache: Cache,
    drafter_state: Any,
) -> tuple[Cache, Any]:
    """Moves the accepted path, in both caches, to the slots where a chain would have written it.

    A last token that the drafter was not fed has no slot in its cache: ``begin`` feeds it again.
    """
    assert result.nodes is not None
    assert result.written is not None
    start = inputs.sequences.length
    source = start[..., None] - 1 + result.nodes[..., 1:]
    written = start[..., None] + result.written
    return model.keep(cache, source, start), drafter.keep(drafter_state, written, start)
