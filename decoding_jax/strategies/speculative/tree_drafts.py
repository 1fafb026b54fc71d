"""The stages of a block with several drafts for each lane, which form a tree.

Miao et al. 2023, "SpecInfer: Accelerating Large Language Model Serving with Tree-based Speculative
Inference and Verification". C drafts of K tokens are drawn independently. Their tokens are written
to separate slots after the sequence, level by level, and each token attends only to its own draft
and the sequence. The verifier accepts a path from the root (see ``TreeVerifier``), and ``keep``
moves it to the slots where a chain would have written it. Samples follow the target exactly, for
any C.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from decoding_jax import codes
from decoding_jax.base import Array, Cache, LanguageModel, Prompt, SupportsKeep
from decoding_jax.loop import model_calls
from decoding_jax.ops import random
from decoding_jax.strategies.speculative import distributions
from decoding_jax.strategies.speculative.appending import place_tokens
from decoding_jax.strategies.speculative.drafters import (
    Drafter,
    Guesser,
    ModelDrafter,
    Path,
    TreeDrafter,
)
from decoding_jax.strategies.speculative.stages import (
    BlockInputs,
    BlockResult,
    Drafts,
    Scores,
    Stages,
)
from decoding_jax.strategies.speculative.verifiers import TreeVerifier, Verifier


def check(model: LanguageModel, drafter: Drafter | Guesser, verifier: Verifier) -> None:
    """Refuses models, drafters and verifiers that cannot draft or verify a tree.

    Raises:
      ValueError: for models without ``tree`` or ``keep``, another drafter or another verifier.
    """
    if not isinstance(verifier, TreeVerifier):
        name = type(verifier).__name__.removesuffix("Verifier").lower()
        raise ValueError(f"verifier: expected token or block for several drafts, got {name}")
    if not isinstance(drafter, TreeDrafter):
        raise ValueError(
            "drafter: expected a language model or an Eagle for several drafts, got a "
            f"{type(drafter).__name__}"
        )
    greedy = getattr(drafter, "greedy", False)
    min_confidence = getattr(drafter, "min_confidence", 0.0)
    if greedy or min_confidence > 0:
        raise ValueError(
            "drafter: expected drawn drafts of equal length where there are several, got "
            f"greedy={greedy} and min_confidence={min_confidence}"
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
    """The drafter's state, with slots for the longest sequence and for a tree."""
    return drafter.open(
        prompt,
        lanes=lanes,
        slots=max(max_new_tokens - 1, 1) + max_draft_tokens * num_drafts,
        max_new_tokens=max_new_tokens,
        max_draft_tokens=max_draft_tokens,
        num_drafts=num_drafts,
        features=features,
    )


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
    drafter: TreeDrafter, verifier: Verifier, inputs: BlockInputs, vocab_size: int
) -> tuple[Drafts, Any, Array]:
    """Draws C independent drafts for every lane.

    Returns:
      The drafts, the drafter's state, and the number of calls of the drafter.
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
        drafts, state, paths = carry
        tokens = lax.dynamic_index_in_dim(drafts.tokens, i - 1, 2, keepdims=False)
        paths = _place_each(paths, tokens, sequences.length + i - 1)
        start = sequences.length + (i - 1) * num_drafts
        level = jnp.broadcast_to(i - 1, branch.shape)
        visible = ancestors(sequences.length - 1, level, branch, num_drafts, slot)
        logits, state = drafter.next_level(state, tokens, start, visible)
        return record(i, drafts, *draw(i, checked(logits, shape), paths)), state, paths

    def checked(logits: Array, shape: tuple[int, ...]) -> Array:
        letters = "[B, W, C"[: 3 * len(shape) - 1] + ", V]"
        return model_calls.as_logits(logits, (*shape, vocab_size), "drafter", "a drafter", letters)

    path = Path(inputs.prompt, sequences.tokens, sequences.length)
    logits, state = drafter.begin(inputs.drafter_state, path)
    shape = (*sequences.length.shape, num_drafts)
    logits = checked(logits, shape[:2])
    logits = jnp.broadcast_to(logits[:, :, None], (*shape, logits.shape[-1]))
    paths = jnp.broadcast_to(sequences.tokens[:, :, None], (*shape, sequences.tokens.shape[-1]))
    size = inputs.max_draft_tokens
    drafts = Drafts(
        jnp.zeros((*shape[:2], size, num_drafts), jnp.int32),
        jnp.zeros((*shape[:2], size, *logits.shape[2:]), jnp.float32),
    )
    carry = record(0, drafts, *draw(0, logits, paths)), state, paths
    calls = jnp.maximum(inputs.draft_length.max(), 1)
    drafts, state, _ = lax.fori_loop(1, calls, draw_next, carry)
    return drafts, state, calls


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
    return Scores(output.logits, allowed, output.features), cache


def verify(verifier: Verifier, inputs: BlockInputs, drafts: Drafts, scores: Scores) -> BlockResult:
    """Lets the verifier accept a path from the root of the tree and choose the final token."""
    assert isinstance(verifier, TreeVerifier)
    path = verifier.verify_tree(
        inputs.keys, drafts, inputs.draft_length, scores.allowed.logits, inputs.counter
    )
    logits, allowed = (
        jnp.take_along_axis(x, path.nodes[..., None], axis=2)
        for x in (scores.logits, scores.allowed.logits)
    )
    depth = jnp.arange(inputs.max_draft_tokens, dtype=jnp.int32)[None, None]
    drafted = depth < inputs.draft_length[..., None]
    return BlockResult(
        tokens=path.tokens,
        accepted=path.accepted,
        verifiable=inputs.draft_length,
        proposed=jnp.where(drafted, inputs.num_drafts, 0),
        distribution=distributions.of_model(logits),
        drawn_from=distributions.softmax(allowed),
        dead=jnp.take_along_axis(scores.allowed.dead, path.nodes, axis=2),
        verifier_state=inputs.verifier_state,
        nodes=path.nodes,
        draft=(path.nodes[..., 1:] - 1) % inputs.num_drafts,
    )


def keep(
    model: Any,
    drafter: TreeDrafter,
    inputs: BlockInputs,
    result: BlockResult,
    cache: Cache,
    drafter_state: Any,
) -> tuple[Cache, Any]:
    """Moves the accepted path, in both caches, to the slots where a chain would have written it."""
    assert result.nodes is not None
    start = inputs.sequences.length
    source = start[..., None] - 1 + result.nodes[..., 1:]
    return model.keep(cache, source, start), drafter.keep(drafter_state, source, start)


def _place_each(paths: Array, tokens: Array, position: Array) -> Array:
    """``paths [B, W, C, L]`` with ``tokens [B, W, C]`` at ``position [B, W]``."""
    index = jnp.arange(paths.shape[-1], dtype=jnp.int32)[None, None, None]
    return jnp.where(index == position[..., None, None], tokens[..., None], paths)


TREE = Stages(init_drafter, propose, score, verify, keep)
