"""Dynamic trees: the most probable tokens of the draft, as deep and as wide as its confidence says.

Li et al. 2024, "EAGLE-2: Faster Inference of Language Models with Dynamic Draft Trees"
(arXiv:2406.16858). The value of a node is the product of the draft's probabilities on its path,
which estimates how probable it is that the node is accepted. In each level the C most valuable
nodes are expanded by their C most probable tokens (section 4.1), and of all these nodes the N most
valuable ones are verified (section 4.2). No node is more valuable than its parent, so they form a
tree.

The verifier draws the token after the root from the target, as if nothing was drafted. If it is the
token of a child, the child is accepted and the next token is drawn after it; otherwise it is the
final token. Which verifier is lossless for which choice of the nodes:

- *Nodes chosen without randomness*, as here: every verifier. Proof: the tree is a function of the
  sequence so far, so each token is drawn from the target's distribution after the tokens before it,
  by bits that nothing else has used. The tree decides only how many of these draws one call gives.
  The distribution of a draw is that of accepting the children one after another, each with its
  share of the target's remaining mass, and of drawing from what remains. No rule accepts more
  tokens of a tree given in advance: a node is part of the text with the target's probability of its
  path, and every such node is accepted. The sequences of ``greedy``, ``gumbel`` and ``code`` are
  those without a draft, and ``block`` is the same as ``token``.
- *Independent draws, all of which are verified* (``tree_drafts``): ``token`` and ``block``, which
  compare the target with the distribution ``q`` of each draw.
- *Draws of which some are then kept by their values*: none of them. A kept draw does not have the
  distribution ``q``. If the better of two draws of a fair coin is kept, it is heads with
  probability 3/4. Verified by ``q = 1/2`` for a fair target it is always accepted, and the text
  begins with heads with probability 3/4.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from decoding_jax import fields
from decoding_jax.base import Array, LanguageModel
from decoding_jax.ops.gather import gather_position, where_lanes
from decoding_jax.ops.top_k import top_k
from decoding_jax.strategies.speculative import distributions, trees
from decoding_jax.strategies.speculative.drafters import Path, TreeDrafter
from decoding_jax.strategies.speculative.stages import (
    AcceptedPath,
    BlockInputs,
    BlockResult,
    Scores,
    Stages,
)
from decoding_jax.strategies.speculative.tree_drafts import checked, num_calls, place_each
from decoding_jax.strategies.speculative.trees import Tree
from decoding_jax.strategies.speculative.verifiers import Verifier


def check(model: LanguageModel, drafter: Any, num_drafts: int) -> None:
    """Refuses models and drafters that cannot grow a tree.

    Raises:
      ValueError: as for ``trees.check``, for a drafter that ends drafts by ``min_confidence``, or
        for more children than tokens.
    """
    trees.check(model, drafter)
    if getattr(drafter, "min_confidence", 0.0) > 0:
        raise fields.error(
            "drafter", "min_confidence of 0 for a dynamic tree", drafter.min_confidence
        )
    if num_drafts > model.vocab_size:
        expected = f"at most the vocabulary of {model.vocab_size} for a dynamic tree"
        raise fields.error("num_drafts", expected, num_drafts)


def propose(
    drafter: TreeDrafter, verifier: Verifier, inputs: BlockInputs, vocab_size: int
) -> tuple[Tree, Any, Array]:
    """Grows a tree for every lane.

    A candidate is a child of one of the C nodes that are expanded in a level. Its index is
    ``(level * C + place of its parent) * C + rank``.

    Returns:
      The tree, the drafter's state, and the number of calls of the drafter.
    """
    sequences, width, size = inputs.sequences, inputs.num_drafts, inputs.max_draft_tokens
    shape = sequences.length.shape
    rank = jnp.arange(width, dtype=jnp.int32)

    def children(i: Array | int, logits: Array, paths: Array, value: Array) -> tuple[Array, Array]:
        """The values and the tokens ``[B, W, C, C]`` of the children of C nodes."""
        length = jnp.broadcast_to((sequences.length + i)[..., None], paths.shape[:3])
        allowed = inputs.allow(logits, paths, length)
        distribution = allowed.distribution()
        _, tokens = top_k(distribution.logits, width)
        log_prob = jax.vmap(distribution.log_prob_of, -1, -1)(tokens)
        inside = (rank[None, None] < inputs.width_of_lanes[..., None])[:, :, None]
        inside &= (i < inputs.draft_length)[..., None, None] & ~allowed.dead[..., None]
        value = value[..., None] + jnp.minimum(log_prob, 0.0)
        return jnp.where(inside, value, -jnp.inf), tokens

    def record(i: Array | int, grown: Any, *new: Array) -> Any:
        update = lax.dynamic_update_index_in_dim
        return tuple(update(old, x, i, 2) for old, x in zip(grown, new, strict=True))

    def expand(i: Array | int, carry: Any) -> Any:
        grown, state, paths, nodes = carry
        values, tokens = (
            lax.dynamic_index_in_dim(x, i - 1, 2, keepdims=False).reshape(*shape, width**2)
            for x in grown[:2]
        )
        value, chosen = top_k(values, width)
        value = jnp.where(rank[None, None] < inputs.width_of_lanes[..., None], value, -jnp.inf)
        place, token = chosen // width, jnp.take_along_axis(tokens, chosen, axis=-1)
        paths, nodes = (jnp.take_along_axis(x, place[..., None], 2) for x in (paths, nodes))
        paths = place_each(paths, token, sequences.length + i - 1)
        fed = (i - 1) * width + rank[None, None]
        level = jnp.arange(size, dtype=jnp.int32)[None, None, None]
        nodes = jnp.where(level == i - 1, fed[..., None] + 1, nodes)
        visible = trees.visible_slots(inputs, nodes, jnp.reshape(i, (1, 1, 1)), size * width)
        start = sequences.length + (i - 1) * width
        logits, state = drafter.next_level(state, token, start, visible, place)
        logits = checked(logits, (*shape, width), vocab_size)
        new = children(i, logits, paths, value)
        parents = (i - 1) * width**2 + chosen
        return record(i, grown, *new, parents), state, paths, nodes

    path = Path(inputs.prompt, sequences.tokens, sequences.length)
    logits, state = drafter.begin(inputs.drafter_state, path)
    logits = checked(logits, shape, vocab_size)[:, :, None]
    paths = sequences.tokens[:, :, None]
    values, tokens = children(0, logits, paths, jnp.zeros((*shape, 1), jnp.float32))
    # In the first level, only the root has children.
    grown = (
        jnp.full((*shape, size, width, width), -jnp.inf, jnp.float32)
        .at[:, :, 0, 0]
        .set(values[:, :, 0]),
        jnp.zeros((*shape, size, width, width), jnp.int32).at[:, :, 0, 0].set(tokens[:, :, 0]),
        jnp.full((*shape, size, width), -1, jnp.int32),
    )
    paths = jnp.broadcast_to(paths, (*shape, width, paths.shape[-1]))
    nodes = jnp.zeros((*shape, width, size), jnp.int32)
    calls = jnp.maximum(inputs.draft_length.max(), 1)
    grown, state, *_ = lax.fori_loop(1, calls, expand, (grown, state, paths, nodes))
    values, tokens, parents = grown
    return best_nodes(values, tokens, parents, inputs.tree_size), state, num_calls(drafter, calls)


def best_nodes(values: Array, tokens: Array, parents: Array, tree_size: int) -> Tree:
    """The tree of the most valuable candidates; of equal ones, the first.

    A node comes before its children, since it is at least as valuable and has a smaller index.

    Args:
      values: float32 ``[B, W, K, C, C]``, log-probabilities; -inf where there is no candidate.
      tokens: int32 ``[B, W, K, C, C]``.
      parents: int32 ``[B, W, K, C]``, the candidates that were expanded; -1 for the root.
      tree_size: N.
    """
    shape, (size, width) = values.shape[:2], values.shape[2:4]
    value, chosen = top_k(values.reshape(*shape, -1), tree_size)
    parents = parents.reshape(*shape, size * width)
    parent = jnp.take_along_axis(parents, chosen // width, axis=-1)
    same = parent[..., None] == chosen[..., None, :]  # [B, W, N, N]
    parent = jnp.where(parent >= 0, 1 + lax.argmax(same, 3, jnp.int32), 0)
    parent = jnp.where(value > -jnp.inf, parent, -1)
    depth = chosen // width**2 + 1
    levels = jnp.arange(size, dtype=jnp.int32)[None, None, None]

    def climb(_: Any, carry: Any) -> Any:
        path, node, level = carry
        path = jnp.where(levels == level[..., None] - 1, node[..., None], path)
        return path, jnp.take_along_axis(parent, node - 1, axis=-1, mode="clip"), level - 1

    node = jnp.arange(1, tree_size + 1, dtype=jnp.int32)[None, None]
    node = jnp.broadcast_to(node, chosen.shape)
    path = jnp.zeros((*chosen.shape, size), jnp.int32)
    path = lax.fori_loop(0, size, climb, (path, node, depth))[0]
    expanded = parents[:, :, None] == chosen[..., None]  # [B, W, N, K C]
    return Tree(
        tokens=jnp.take_along_axis(tokens.reshape(*shape, -1), chosen, axis=-1),
        depth=depth,
        parent=parent,
        path=path,
        written=jnp.maximum(lax.argmax(expanded, 3, jnp.int32) - width, 0),
        draft=chosen % width,
    )


def verify(verifier: Verifier, inputs: BlockInputs, tree: Tree, scores: Scores) -> BlockResult:
    """Draws the target's tokens from the root on, for as long as they are in the tree."""
    position, size = inputs.sequences.length, inputs.max_draft_tokens
    index = jnp.arange(size + 1, dtype=jnp.int32)[None, None]

    def walk(carry: Any) -> Any:
        i, path, node, going, state = carry
        target = distributions.softmax(gather_position(scores.allowed.logits, node))
        drawn = inputs.keys, state, target, position + i, inputs.counter + i
        token, after = verifier.draw(*drawn)
        state = where_lanes(going, after, state)
        is_next = (tree.parent == node[..., None]) & (tree.tokens == token[..., None])
        node = 1 + lax.argmax(is_next, 2, jnp.int32)
        accepts = going & is_next.any(-1)
        path = AcceptedPath(
            jnp.where(going[..., None] & (index == i), token[..., None], path.tokens),
            path.accepted + accepts.astype(jnp.int32),
            jnp.where(accepts[..., None] & (index == i + 1), node[..., None], path.nodes),
        )
        return i + 1, path, node, accepts, state

    going = jnp.ones(position.shape, bool)
    nodes = jnp.broadcast_to(index, (*position.shape, size + 1))
    path = AcceptedPath(jnp.zeros_like(nodes), jnp.zeros_like(position), nodes)
    carry = jnp.int32(0), path, jnp.zeros_like(position), going, inputs.verifier_state
    _, path, _, _, state = lax.while_loop(lambda carry: carry[3].any(), walk, carry)
    last = jnp.take_along_axis(path.nodes, path.accepted[..., None], axis=-1)
    goes_on = (tree.parent == last).any(-1)  # A path that ends where the tree does is accepted.
    verifiable = path.accepted + goes_on.astype(jnp.int32)
    return trees.result_of(inputs, tree, path, scores, verifiable, state)


DYNAMIC = Stages(trees.init_drafter, propose, trees.score, verify, trees.keep)
