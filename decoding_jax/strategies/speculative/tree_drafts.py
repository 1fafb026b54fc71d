"""The stages of a block with several drafts for each lane, which form a tree.

C drafts of K tokens are drawn independently, level by level (Miao et al. 2023, SpecInfer). The
verifier accepts a path from the root (see ``TreeVerifier``). Samples follow the target exactly, for
any C, which may differ by row.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from decoding_jax import codes
from decoding_jax.base import Array, Cache, LanguageModel
from decoding_jax.loop import model_calls
from decoding_jax.ops import random
from decoding_jax.strategies.speculative import trees
from decoding_jax.strategies.speculative.drafters import Path, TreeDrafter
from decoding_jax.strategies.speculative.stages import (
    BlockInputs,
    BlockResult,
    Drafts,
    Scores,
    Stages,
)
from decoding_jax.strategies.speculative.verifiers import TreeVerifier, Verifier


def check(model: LanguageModel, drafter: Any, verifier: Verifier) -> None:
    """Refuses models, drafters and verifiers that cannot draft or verify several drafts.

    Raises:
      ValueError: as for ``trees.check``, for another verifier, or for drafts that are not drawn.
    """
    if not isinstance(verifier, TreeVerifier):
        name = type(verifier).__name__.removesuffix("Verifier").lower()
        raise ValueError(f"verifier: expected token or block for several drafts, got {name}")
    trees.check(model, drafter)
    greedy = getattr(drafter, "greedy", False)
    min_confidence = getattr(drafter, "min_confidence", 0.0)
    if greedy or min_confidence > 0:
        raise ValueError(
            "drafter: expected drawn drafts of equal length where there are several, got "
            f"greedy={greedy} and min_confidence={min_confidence}"
        )


def propose(
    drafter: TreeDrafter, verifier: Verifier, inputs: BlockInputs, vocab_size: int
) -> tuple[Drafts, Any, Array]:
    """Draws C independent drafts for every lane.

    Returns:
      The drafts, the drafter's state, and the number of calls of the drafter.
    """
    sequences, num_drafts = inputs.sequences, inputs.num_drafts
    size = inputs.max_draft_tokens
    branch = jnp.arange(num_drafts, dtype=jnp.int32)
    own_path = branch[:, None] + jnp.arange(size, dtype=jnp.int32)[None] * num_drafts + 1

    def draw(i: Array | int, logits: Array, paths: Array) -> tuple[Array, Array]:
        length = jnp.broadcast_to((sequences.length + i)[..., None], paths.shape[:3])
        allowed = inputs.allow(logits, paths, length).logits
        counters = inputs.counter[..., None] + i * num_drafts + branch[None, None]
        bits = jax.vmap(lambda c: random.bits_at(inputs.keys.draws, c), -1, 2)(counters)
        return codes.draw(allowed, bits), allowed

    def record(i: Array | int, drafts: Drafts, token: Array, logits: Array) -> Drafts:
        update = lax.dynamic_update_index_in_dim
        tokens, logits = update(drafts.tokens, token, i, 2), update(drafts.logits, logits, i, 2)
        return drafts._replace(tokens=tokens, logits=logits)

    def draw_next(i: Array | int, carry: Any) -> Any:
        drafts, state, paths = carry
        tokens = lax.dynamic_index_in_dim(drafts.tokens, i - 1, 2, keepdims=False)
        paths = place_each(paths, tokens, sequences.length + i - 1)
        start = sequences.length + (i - 1) * num_drafts
        depth = jnp.reshape(i, (1, 1, 1))
        visible = trees.visible_slots(inputs, own_path[None, None], depth, size * num_drafts)
        logits, state = drafter.next_level(state, tokens, start, visible)
        return record(i, drafts, *draw(i, checked(logits, shape, vocab_size), paths)), state, paths

    path = Path(inputs.prompt, sequences.tokens, sequences.length)
    logits, state = drafter.begin(inputs.drafter_state, path)
    shape = (*sequences.length.shape, num_drafts)
    logits = checked(logits, shape[:2], vocab_size)
    logits = jnp.broadcast_to(logits[:, :, None], (*shape, logits.shape[-1]))
    paths = jnp.broadcast_to(sequences.tokens[:, :, None], (*shape, sequences.tokens.shape[-1]))
    drafts = Drafts(
        jnp.zeros((*shape[:2], size, num_drafts), jnp.int32),
        jnp.zeros((*shape[:2], size, *logits.shape[2:]), jnp.float32),
        inputs.drafts_of_lane,
    )
    carry = record(0, drafts, *draw(0, logits, paths)), state, paths
    calls = jnp.maximum(inputs.draft_length.max(), 1)
    drafts, state, _ = lax.fori_loop(1, calls, draw_next, carry)
    return drafts, state, num_calls(drafter, calls)


def tree_of(inputs: BlockInputs, drafts: Drafts) -> trees.Tree:
    """The tree of the drafts, level by level: of the row's drafts, as far as N nodes reach."""
    shape, (size, num_drafts) = inputs.draft_length.shape, drafts.tokens.shape[2:]
    node = jnp.arange(inputs.tree_size, dtype=jnp.int32)[None, None]
    width = jnp.broadcast_to(drafts.width, shape)[..., None]
    level, draft = jnp.minimum(node // width, size - 1), node % width
    drawn = level * num_drafts + draft
    before = jnp.where(level == 0, 0, 1 + node - width)
    levels = jnp.arange(size, dtype=jnp.int32)[None, None, None]
    return trees.Tree(
        tokens=jnp.take_along_axis(drafts.tokens.reshape(*shape, size * num_drafts), drawn, -1),
        depth=level + 1,
        parent=jnp.where(node // width < inputs.draft_length[..., None], before, -1),
        path=levels * width[..., None] + draft[..., None] + 1,
        written=drawn,
        draft=draft,
    )


def score(model: LanguageModel, inputs: BlockInputs, drafts: Drafts) -> tuple[Scores, Cache]:
    """Feeds the last token and the drafts to the target as a tree; see ``trees.score``."""
    return trees.score(model, inputs, tree_of(inputs, drafts))


def verify(verifier: Verifier, inputs: BlockInputs, drafts: Drafts, scores: Scores) -> BlockResult:
    """Lets the verifier accept a path from the root of the tree and choose the final token."""
    assert isinstance(verifier, TreeVerifier)
    length = inputs.draft_length
    path = verifier.verify_tree(inputs.keys, drafts, length, scores.allowed.logits, inputs.counter)
    tree = tree_of(inputs, drafts)
    return trees.result_of(inputs, tree, path, scores, length, inputs.verifier_state)


def checked(logits: Array, shape: tuple[int, ...], vocab_size: int) -> Array:
    """The drafter's logits ``[B, W, V]`` or ``[B, W, C, V]``, checked."""
    letters = ", ".join([*"BWC"[: len(shape)], "V"])
    return model_calls.as_logits(
        logits, (*shape, vocab_size), "drafter", "a drafter", f"[{letters}]"
    )


def num_calls(drafter: TreeDrafter, levels: Array) -> Array:
    """The number of calls of the drafter for so many levels."""
    return jnp.int32(1) if getattr(drafter, "one_call", False) else levels


def place_each(paths: Array, tokens: Array, position: Array) -> Array:
    """``paths [B, W, C, L]`` with ``tokens [B, W, C]`` at ``position [B, W]``."""
    index = jnp.arange(paths.shape[-1], dtype=jnp.int32)[None, None, None]
    return jnp.where(index == position[..., None, None], tokens[..., None], paths)


TREE = Stages(trees.init_drafter, propose, score, verify, trees.keep)
