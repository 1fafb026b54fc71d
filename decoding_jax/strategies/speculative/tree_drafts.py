"""The stages of a block with several drafts for each lane, which form a tree.

Miao et al. 2023, "SpecInfer: Accelerating Large Language Model Serving with Tree-based Speculative
Inference and Verification", Algorithm 2. C drafts of K tokens are drawn independently. Their tokens
are written to separate slots after the sequence, level by level, and each token attends only to its
own draft and the sequence. At every level, the drafts that agree with all accepted tokens are tried
one after another against the target's distribution; after each rejection, p is replaced by
``max(p - q, 0)``, normalised. Samples follow the target exactly, for any C. ``keep`` then moves the
accepted path to the slots where a chain would have written it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from decoding_jax import codes
from decoding_jax.base import Array, Cache, LanguageModel, Prompt, SupportsKeep
from decoding_jax.loop import model_calls
from decoding_jax.ops import exact, random
from decoding_jax.ops.gather import gather_last, gather_position
from decoding_jax.strategies.speculative import distributions
from decoding_jax.strategies.speculative.appending import place_tokens
from decoding_jax.strategies.speculative.drafters import Drafter, Guesser, ModelDrafter, Path
from decoding_jax.strategies.speculative.stages import BlockInputs, BlockResult, Scores, Stages
from decoding_jax.strategies.speculative.verifiers import TokenVerifier, Verifier
from decoding_jax.strategies.speculative.verifiers.token import TokenKeys, acceptance_uniforms


def check(model: LanguageModel, drafter: Drafter | Guesser, verifier: Verifier) -> None:
    """Refuses models, drafters and verifiers that cannot draft or verify a tree.

    Raises:
      ValueError: for models without ``tree`` or ``keep``, another drafter or another verifier.
    """
    if not isinstance(verifier, TokenVerifier):
        name = type(verifier).__name__.removesuffix("Verifier").lower()
        raise ValueError(f"verifier: expected token for several drafts, got {name}")
    if not isinstance(drafter, ModelDrafter):
        raise ValueError(
            f"drafter: expected a language model for several drafts, got a {type(drafter).__name__}"
        )
    if drafter.greedy or drafter.min_confidence > 0:
        raise ValueError(
            "drafter: expected drawn drafts of equal length where there are several, got "
            f"greedy={drafter.greedy} and min_confidence={drafter.min_confidence}"
        )
    for name, candidate in (("model", model), ("drafter", drafter.model)):
        if not (candidate.tree and isinstance(candidate, SupportsKeep)):
            raise ValueError(
                f"{name}: expected one with tree and keep for several drafts, got one without"
            )


class Drafts(NamedTuple):
    """C drafts of every lane.

    Attributes:
      tokens: int32 ``[B, W, K, C]``.
      logits: float32 ``[B, W, K, C, V]``, of the distribution that each token was drawn from.
    """

    tokens: Array
    logits: Array


class AcceptedPath(NamedTuple):
    """The accepted path through the tree.

    Attributes:
      tokens: int32 ``[B, W, K + 1]``, the accepted tokens and the final token.
      accepted: int32 ``[B, W]``, the number of accepted tokens.
      nodes: int32 ``[B, W, K + 1]``: the indices, among the tokens fed, of the root and of each
        accepted token. Entry i beyond them is i, the index of a chain's token.
    """

    tokens: Array
    accepted: Array
    nodes: Array


def init_drafter(
    drafter: ModelDrafter,
    prompt: Prompt,
    lanes: int,
    max_new_tokens: int,
    max_draft_tokens: int,
    num_drafts: int,
) -> Cache:
    """The draft's cache, with slots for the longest sequence and for a tree."""
    slots = max(max_new_tokens - 1, 1) + max_draft_tokens * num_drafts
    return drafter.open_cache(prompt, lanes, max_new_tokens, slots)


def num_slots(inputs: BlockInputs) -> int:
    """S, the number of slots for the longest sequence and for a tree."""
    longest = max(inputs.sequences.tokens.shape[-1] - 1, 1)
    return longest + inputs.max_draft_tokens * inputs.num_drafts


def ancestors(root: Array, level: Array, draft: Array, num_drafts: int, slot: Array) -> Array:
    """The slots that nodes attend to: the sequence's and those of the node's own draft.

    Args:
      root: int32 ``[B, W]``, the slot of the sequence's last token. Node (level, draft) has slot
        ``root + 1 + level * num_drafts + draft``.
      level: int32 ``[T]``, of each node.
      draft: int32 ``[T]``, of each node.
      num_drafts: C.
      slot: 0, 1, ... as ``[1, 1, 1, S]``.

    Returns:
      bool ``[B, W, T, S]``.
    """
    node = slot - root[..., None, None] - 1
    level, draft = level[None, None, :, None], draft[None, None, :, None]
    return (node < 0) | ((node // num_drafts < level) & (node % num_drafts == draft))


def propose(
    drafter: ModelDrafter, verifier: Verifier, inputs: BlockInputs, vocab_size: int
) -> tuple[Drafts, Cache, Array]:
    """Draws C independent drafts for every lane.

    Returns:
      The drafts, the draft's cache, and the number of calls of the draft.
    """
    sequences, num_drafts = inputs.sequences, inputs.num_drafts
    branch = jnp.arange(num_drafts, dtype=jnp.int32)
    slot = jnp.arange(num_slots(inputs), dtype=jnp.int32)[None, None, None]

    def draw(i: Array | int, logits: Array, paths: Array) -> tuple[Array, Array]:
        length = jnp.broadcast_to((sequences.length + i)[..., None], paths.shape[:3])
        allowed = inputs.allow(logits, paths, length).logits
        counters = inputs.counter[..., None] + i * num_drafts + branch[None, None]
        bits = jax.vmap(lambda c: random.bits_at(inputs.keys.draws, c), -1, 2)(counters)
        return codes.draw(allowed, bits), allowed

    def record(i: Array | int, drafts: Drafts, token: Array, logits: Array) -> Drafts:
        update = lax.dynamic_update_index_in_dim
        return Drafts(update(drafts.tokens, token, i, 2), update(drafts.logits, logits, i, 2))

    def draw_next(i: Array | int, carry: Any) -> Any:
        drafts, cache, paths = carry
        tokens = lax.dynamic_index_in_dim(drafts.tokens, i - 1, 2, keepdims=False)
        paths = _place_each(paths, tokens, sequences.length + i - 1)
        start = sequences.length + (i - 1) * num_drafts
        level = jnp.broadcast_to(i - 1, branch.shape)
        visible = ancestors(sequences.length - 1, level, branch, num_drafts, slot)
        output, cache = model_calls.extend(
            drafter.model, cache, tokens, start, visible, name="drafter"
        )
        return record(i, drafts, *draw(i, output.logits, paths)), cache, paths

    path = Path(inputs.prompt, sequences.tokens, sequences.length)
    logits, cache = drafter.begin(inputs.drafter_state, path)
    shape = (*sequences.length.shape, num_drafts)
    logits = jnp.broadcast_to(logits[:, :, None], (*shape, logits.shape[-1]))
    paths = jnp.broadcast_to(sequences.tokens[:, :, None], (*shape, sequences.tokens.shape[-1]))
    size = inputs.max_draft_tokens
    drafts = Drafts(
        jnp.zeros((*shape[:2], size, num_drafts), jnp.int32),
        jnp.zeros((*shape[:2], size, *logits.shape[2:]), jnp.float32),
    )
    carry = record(0, drafts, *draw(0, logits, paths)), cache, paths
    calls = jnp.maximum(inputs.draft_length.max(), 1)
    drafts, cache, _ = lax.fori_loop(1, calls, draw_next, carry)
    return drafts, cache, calls


def score(model: LanguageModel, inputs: BlockInputs, drafts: Drafts) -> tuple[Scores, Cache]:
    """Feeds the last token and the C drafts to the target as a tree, in one call.

    Returns:
      The scores of 1 + K C tokens, and the target's cache.
    """
    sequences, num_drafts = inputs.sequences, inputs.num_drafts
    size = inputs.max_draft_tokens * num_drafts
    root = sequences.length - 1
    node = jnp.arange(size, dtype=jnp.int32)
    level, draft = node // num_drafts, node % num_drafts
    slot = jnp.arange(num_slots(inputs), dtype=jnp.int32)[None, None, None]
    sequence = jnp.broadcast_to(slot < root[..., None, None], (*root.shape, 1, slot.shape[-1]))
    visible = jnp.concatenate([sequence, ancestors(root, level, draft, num_drafts, slot)], axis=2)
    nodes = drafts.tokens.reshape(*root.shape, size)
    fed = jnp.concatenate([inputs.last_tokens, nodes], axis=-1)
    output, cache = model_calls.extend(model, inputs.cache, fed, root, visible)

    place_drafts = jax.vmap(place_tokens, (None, 3, None), 2)
    paths = place_drafts(sequences.tokens, drafts.tokens, sequences.length)
    paths = jnp.concatenate([sequences.tokens[:, :, None], paths[:, :, draft]], axis=2)
    depth = jnp.concatenate([jnp.zeros(1, jnp.int32), level + 1])
    allowed = inputs.allow(output.logits, paths, sequences.length[..., None] + depth[None, None])
    return Scores(output.logits, allowed), cache


def verify(verifier: Verifier, inputs: BlockInputs, drafts: Drafts, scores: Scores) -> BlockResult:
    """Accepts a path from the root of the tree by recursive rejection (Algorithm 2)."""
    path = accept_path(inputs, drafts, scores.allowed.logits)
    logits, allowed = (
        jnp.take_along_axis(x, path.nodes[..., None], axis=2)
        for x in (scores.logits, scores.allowed.logits)
    )
    return BlockResult(
        tokens=path.tokens,
        accepted=path.accepted,
        verifiable=inputs.draft_length,
        proposed=inputs.draft_length * inputs.num_drafts,
        distribution=distributions.of_model(logits),
        drawn_from=distributions.softmax(allowed),
        dead=jnp.take_along_axis(scores.allowed.dead, path.nodes, axis=2),
        verifier_state=inputs.verifier_state,
        nodes=path.nodes,
    )


def keep(
    model: Any,
    drafter: ModelDrafter,
    inputs: BlockInputs,
    result: BlockResult,
    cache: Cache,
    drafter_state: Cache,
) -> tuple[Cache, Cache]:
    """Moves the accepted path, in both caches, to the slots where a chain would have written it."""
    assert result.nodes is not None
    assert isinstance(drafter.model, SupportsKeep)
    start = inputs.sequences.length
    source = start[..., None] - 1 + result.nodes[..., 1:]
    return model.keep(cache, source, start), drafter.model.keep(drafter_state, source, start)


def accept_path(inputs: BlockInputs, drafts: Drafts, allowed: Array) -> AcceptedPath:
    """Tries the drafts' tokens level by level, and draws the final token.

    Args:
      inputs: the inputs of the block.
      drafts: C drafts of every lane.
      allowed: the target's transformed logits after each token fed, ``[B, W, 1 + K C, V]``.
    """
    size, num_drafts = drafts.tokens.shape[2:]
    keys: TokenKeys = inputs.keys
    uniforms = acceptance_uniforms(keys, inputs.counter, size * num_drafts)

    def try_level(i: Array | int, carry: Any) -> Any:
        path, agreeing, leftover = carry
        active = (path.accepted == i) & (i < inputs.draft_length)
        tokens = lax.dynamic_index_in_dim(drafts.tokens, i, 2, keepdims=False)
        logits = lax.dynamic_index_in_dim(drafts.logits, i, 2, keepdims=False)
        node = lax.dynamic_index_in_dim(path.nodes, i, 2, keepdims=False)
        # All drafts that agree so far have the same path, and therefore the same distribution.
        representative = lax.argmax(agreeing, agreeing.ndim - 1, jnp.int32)
        q = distributions.softmax(gather_position(logits, representative)).probs()
        p = distributions.softmax(gather_position(allowed, node)).probs()
        accepted, chosen = jnp.zeros(active.shape, bool), jnp.zeros_like(node)
        for c in range(num_drafts):
            uniform = lax.dynamic_index_in_dim(uniforms, i * num_drafts + c, 2, keepdims=False)
            tried = agreeing[..., c] & ~accepted
            accept = tried & (
                uniform * gather_last(q, tokens[..., c]) < gather_last(p, tokens[..., c])
            )
            accepted, chosen = accepted | accept, jnp.where(accept, c, chosen)
            residual = distributions.residual(p, q)
            residual = residual / exact.sum_last(residual)[..., None]
            p = jnp.where((tried & ~accept)[..., None], residual, p)
        continues, token = active & accepted, gather_last(tokens, chosen)
        update = lax.dynamic_update_index_in_dim
        path = AcceptedPath(
            update(path.tokens, jnp.where(continues, token, 0), i, 2),
            path.accepted + continues.astype(jnp.int32),
            update(path.nodes, jnp.where(continues, 1 + i * num_drafts + chosen, i + 1), i + 1, 2),
        )
        agreeing = agreeing & (tokens == token[..., None])
        return path, agreeing, jnp.where((active & ~accepted)[..., None], p, leftover)

    shape = inputs.draft_length.shape
    index = jnp.broadcast_to(jnp.arange(size + 1, dtype=jnp.int32)[None, None], (*shape, size + 1))
    path = AcceptedPath(jnp.zeros_like(index), jnp.zeros_like(inputs.draft_length), index)
    carry = path, jnp.ones((*shape, num_drafts), bool), jnp.zeros_like(allowed[:, :, 0])
    path, _, leftover = lax.fori_loop(0, inputs.draft_length.max(), try_level, carry)
    last = gather_last(path.nodes, path.accepted)
    p = distributions.softmax(gather_position(allowed, last)).probs()
    weights = jnp.where((path.accepted < inputs.draft_length)[..., None], leftover, p)
    final = codes.draw_weighted(weights, random.bits_at(keys.final, inputs.counter))
    tokens = jnp.where(index == path.accepted[..., None], final[..., None], path.tokens)
    return path._replace(tokens=tokens)


def _place_each(paths: Array, tokens: Array, position: Array) -> Array:
    """``paths [B, W, C, L]`` with ``tokens [B, W, C]`` at ``position [B, W]``."""
    index = jnp.arange(paths.shape[-1], dtype=jnp.int32)[None, None, None]
    return jnp.where(index == position[..., None, None], tokens[..., None], paths)


TREE = Stages(init_drafter, propose, score, verify, keep)
