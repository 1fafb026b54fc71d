"""The stages of one block of speculative decoding, what they pass to each other, and its counts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp

from decoding_jax.base import Array, Cache, Prompt
from decoding_jax.loop import Sequences
from decoding_jax.strategies.speculative.distributions import Allowed, Softmax

Allow = Callable[[Array, Array, Array], Allowed]
"""``(logits [B, W, T, V], paths, length [B, W, T]) -> Allowed``: see ``distributions.allow``."""


class BlockInputs(NamedTuple):
    """The inputs of a block.

    Attributes:
      prompt: B prompts.
      sequences: the sequences decoded so far.
      cache: the target's cache.
      drafter_state: the drafter's state.
      keys: the verifier's keys.
      verifier_state: the verifier's state.
      draft_length: int32 ``[B, W]``, the number of tokens to draft, at most K.
      max_draft_tokens: K.
      num_drafts: C.
      tree_size: N, the number of drafted tokens that the target is fed.
      drafts_of_lane: int32 ``[B, W]``, from 1 to C; or None, where every lane has C drafts.
      counter: int32 ``[B, W]``. This number and the following ones, one for each token that the
        target is fed, key the random bits of this block of the lane and of no other. Randomness is
        keyed by loop iteration rather than position, because verifying a rejected draft may already
        have used that position's randomness.
      allow: computes the tokens allowed after paths.
    """

    prompt: Prompt
    sequences: Sequences
    cache: Cache
    drafter_state: Any
    keys: Any
    verifier_state: Any
    draft_length: Array
    max_draft_tokens: int
    num_drafts: int
    tree_size: int
    drafts_of_lane: Array | None
    counter: Array
    allow: Allow

    @property
    def width_of_lanes(self) -> Array:
        """The number of drafts of each lane, int32 ``[B, W]``."""
        if self.drafts_of_lane is None:
            return jnp.full(self.draft_length.shape, self.num_drafts, jnp.int32)
        return self.drafts_of_lane

    @property
    def last_tokens(self) -> Array:
        """The last token of every lane, int32 ``[B, W, 1]``; the target is yet to be fed it."""
        last = jnp.maximum(self.sequences.length - 1, 0)[..., None]
        return jnp.take_along_axis(self.sequences.tokens, last, axis=-1)


class Draft(NamedTuple):
    """K drafted tokens of every lane.

    Attributes:
      tokens: int32 ``[B, W, K]``.
      length: int32 ``[B, W]``, from 0 to K, the number of drafted tokens; later entries of
        ``tokens`` are undefined.
      distribution: of ``[B, W, K, V]``, the transformed distribution that each token was drawn
        from; None for a drafter that proposes tokens with certainty.
      states: the verifier's state after each draw, with leaves ``[K, ...]``.
    """

    tokens: Array
    length: Array
    distribution: Softmax | None
    states: Any

    @property
    def valid(self) -> Array:
        """Which of the tokens are part of the draft, bool ``[B, W, K]``."""
        index = jnp.arange(self.tokens.shape[-1], dtype=jnp.int32)[None, None]
        return index < self.length[..., None]


class Drafts(NamedTuple):
    """C drafts of every lane.

    Attributes:
      tokens: int32 ``[B, W, K, C]``.
      logits: float32 ``[B, W, K, C, V]``, of the distribution that each token was drawn from.
      num_verified: int32 ``[B, W]``, from 1 to C: the first so many drafts are verified; or None,
        where all of them are.

    Token i of draft c is the target's token ``1 + i * width + c``.
    """

    tokens: Array
    logits: Array
    num_verified: Array | None = None

    @property
    def width(self) -> Array:
        """The number of drafts that are verified, int32: C, or ``[B, W]``."""
        count = jnp.int32(self.tokens.shape[-1])
        return count if self.num_verified is None else self.num_verified

    @property
    def verified(self) -> Array:
        """Which drafts are verified, bool ``[B, W, C]``."""
        shape = (*self.tokens.shape[:2], self.tokens.shape[-1])
        draft = jnp.arange(shape[-1], dtype=jnp.int32)[None, None]
        width = jnp.broadcast_to(self.width, shape[:2])
        return jnp.broadcast_to(draft < width[..., None], shape)


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


class Scores(NamedTuple):
    """The target's logits after the last token and the drafted ones.

    Attributes:
      logits: float32 ``[B, W, T, V]``, untransformed.
      allowed: the tokens allowed after each of the T tokens.
      features: the target's hidden states ``[B, W, T, D]`` that the drafter asks for.
    """

    logits: Array
    allowed: Allowed
    features: tuple[Array, ...] = ()


class BlockResult(NamedTuple):
    """The result of a block.

    Attributes:
      tokens: int32 ``[B, W, K + 1]``: the accepted tokens and the final token.
      accepted: int32 ``[B, W]``, the number of accepted tokens.
      verifiable: int32 ``[B, W]``, the maximum number of tokens that could have been accepted.
      proposed: int32 ``[B, W, K]``, the number of drafted tokens of each depth.
      distribution: the target's untransformed distribution along the tokens, ``[B, W, K + 1, V]``,
        used for the reported ``log_prob``; its peak is NaN where the model's logits are.
      drawn_from: the target's transformed distribution along the tokens.
      dead: bool ``[B, W, K + 1]``, where no token is allowed.
      verifier_state: the verifier's state after the final token.
      nodes: int32 ``[B, W, K + 1]``, in a tree: the index, among the T tokens fed, of the token
        before each of these tokens. None for a single draft.
      written: int32 ``[B, W, K]``, in a tree: the place of each accepted token among those that
        the drafter was fed; later entries are their own index. None for a single draft.
      draft: int32 ``[B, W, K]``, in a tree: the draft of each accepted token. None for a single
        draft.
    """

    tokens: Array
    accepted: Array
    verifiable: Array
    proposed: Array
    distribution: Softmax
    drawn_from: Softmax
    dead: Array
    verifier_state: Any
    nodes: Array | None = None
    written: Array | None = None
    draft: Array | None = None


class Stages(NamedTuple):
    """The stages of a block: ``chain``, ``tree_drafts`` or ``dynamic_trees``.

    Attributes:
      init_drafter: ``(drafter, prompt, lanes, max_new_tokens, max_draft_tokens, num_drafts,
        features) -> drafter_state``, with the target's hidden states of the prompts.
      propose: ``(drafter, verifier, inputs, vocab_size) -> (draft, drafter_state, draft_calls)``.
      score: ``(model, inputs, draft) -> (scores, cache)``, in one call of the target.
      verify: ``(verifier, inputs, draft, scores) -> BlockResult``.
      keep: ``(model, drafter, inputs, result, cache, drafter_state) -> (cache, drafter_state)``,
        moves the accepted tokens to the slots where the next block expects them.
    """

    init_drafter: Callable[..., Any]
    propose: Callable[..., tuple[Any, Any, Array]]
    score: Callable[..., tuple[Scores, Cache]]
    verify: Callable[..., BlockResult]
    keep: Callable[..., tuple[Cache, Any]]


def seen_features(scores: Scores, result: BlockResult) -> tuple[Array, ...]:
    """The target's hidden states ``[B, W, K + 1, D]`` of the last token and the accepted ones."""
    if result.nodes is None:
        return scores.features
    index = result.nodes[..., None]
    # Entries after the accepted path may be beyond a small tree. They are real states, not NaN.
    return tuple(jnp.take_along_axis(x, index, axis=2, mode="clip") for x in scores.features)


def count_leading(accept: Array) -> Array:
    """Counts the values of ``accept [..., K]`` that are true before the first false one.

    Example:
      >>> count_leading(jnp.array([[True, True, False, True]])).tolist()
      [2]
    """
    return jnp.cumprod(accept.astype(jnp.int32), axis=-1).sum(-1, dtype=jnp.int32)


def with_final_token(draft: Draft, accepted: Array, final: Array) -> Array:
    """The accepted tokens and the final one that the verifier adds: int32 ``[B, W, K + 1]``.

    Args:
      draft: K drafted tokens of every lane.
      accepted: int32 ``[B, W]``.
      final: int32 ``[B, W]``, the token after the accepted ones.
    """
    index = jnp.arange(draft.tokens.shape[-1] + 1, dtype=jnp.int32)[None, None]
    tokens = jnp.concatenate([draft.tokens, final[..., None]], axis=-1)
    return jnp.where(index == accepted[..., None], final[..., None], tokens)


class BlockTrace(NamedTuple):
    """The blocks of each lane in order, with room for L; later entries are 0.

    Attributes:
      drafted: int32 ``[B, W, L, K]``, the drafted tokens, and -1 after them; None in a tree.
      proposed: int32 ``[B, W, L]``, the number of drafted tokens.
      accepted: int32 ``[B, W, L]``, the number of them that were accepted and appended.
      appended: int32 ``[B, W, L]``, the number of tokens appended: the accepted ones and the final
        token, unless the text ended before it.
    """

    drafted: Array | None
    proposed: Array
    accepted: Array
    appended: Array


class Info(NamedTuple):
    """Counts of speculative decoding. Prefills are not counted as calls.

    Attributes:
      target_calls: int32, calls of the target's ``extend``, one for each iteration of the loop; or
        ``[B]``, those until each row has ended.
      draft_calls: int32, calls of the drafter; or ``[B]``, those in the same iterations, each of
        which drafts for the row that needs most.
      blocks: int32 ``[B, W]``, iterations in which the lane was not done.
      proposed: int32 ``[B, W]``, drafted tokens.
      accepted: int32 ``[B, W]``, drafted tokens that are part of the output.
      rejected: int32 ``[B, W]``, blocks in which a drafted token was rejected and replaced.
      emitted: int32 ``[B, W]``, tokens appended by blocks, which are all but the first.
      proposed_by_depth: int32 ``[B, W, K]``, ``proposed`` by depth: the first number counts the
        first tokens of drafts.
      accepted_by_depth: int32 ``[B, W, K]``, ``accepted`` by depth. A block accepts at most one
        token of each depth.
      accepted_by_draft: int32 ``[B, W, C]``, ``accepted`` by draft. A token that several drafts
        share counts for the first of them that the verifier accepts. In a dynamic tree, by the
        rank of the token among those that the draft gives after the tokens before it.
      trace: with ``with_trace``, the same by block.
    """

    target_calls: Array
    draft_calls: Array
    blocks: Array
    proposed: Array
    accepted: Array
    rejected: Array
    emitted: Array
    proposed_by_depth: Array
    accepted_by_depth: Array
    accepted_by_draft: Array
    trace: BlockTrace | None = None

    @property
    def acceptance_rate(self) -> Array:
        """a: the fraction of verified draft tokens that were accepted, float32 ``[]``."""
        accepted, rejected = _sum(self.accepted), _sum(self.rejected)
        return accepted / jnp.maximum(accepted + rejected, 1)

    @property
    def acceptance_by_depth(self) -> Array:
        """The fraction of blocks that accepted a token of each depth, float32 ``[K]``.

        Their sum is the mean number of accepted tokens of a block.
        """
        accepted = jnp.asarray(self.accepted_by_depth)
        accepted = accepted.reshape(-1, accepted.shape[-1]).sum(0, dtype=jnp.int32)
        return accepted / jnp.maximum(_sum(self.blocks), 1)

    @property
    def tokens_per_call(self) -> Array:
        """The mean number of tokens that a block appends, float32 ``[]``."""
        return _sum(self.emitted) / jnp.maximum(_sum(self.blocks), 1)

    @property
    def tokens_per_iteration(self) -> Array:
        """R: tokens per lane and iteration of the loop, including lanes that are done; float32."""
        steps = self.target_calls * jnp.size(self.blocks)
        return _sum(self.emitted) / jnp.maximum(steps, 1)


def _sum(counts: Array | int) -> Array:
    """The sum of the counts of all lanes, or the count of one lane, as a ``Completion`` has it."""
    return jnp.sum(jnp.asarray(counts), dtype=jnp.int32)


def no_info(batch_size: int, lanes: int, max_draft_tokens: int, num_drafts: int) -> Info:
    """The counts before the loop."""
    zero, zeros = jnp.int32(0), jnp.zeros((batch_size, lanes), jnp.int32)
    by_depth, by_draft = (
        jnp.zeros((batch_size, lanes, size), jnp.int32) for size in (max_draft_tokens, num_drafts)
    )
    return Info(zero, zero, zeros, zeros, zeros, zeros, zeros, by_depth, by_depth, by_draft)


def count_block(
    info: Info, *, live: Array, result: BlockResult, appended: Array, draft_calls: Array
) -> Info:
    """The counts after one iteration.

    Args:
      info: the counts before it.
      live: bool ``[B, W]``, whether the lane was not done before.
      result: the result of the block.
      appended: int32 ``[B, W]``, the number of tokens appended to each lane.
      draft_calls: int32, calls of the drafter.
    """
    rejected = live & (result.accepted < result.verifiable) & (appended > result.accepted)
    proposed = jnp.where(live[..., None], result.proposed, 0)
    accepted = jnp.where(live, jnp.minimum(result.accepted, appended), 0)
    depth = jnp.arange(proposed.shape[-1], dtype=jnp.int32)[None, None]
    at_depth = (depth < accepted[..., None]).astype(jnp.int32)
    of_draft = accepted[..., None]
    if result.draft is not None:
        draft = jnp.arange(info.accepted_by_draft.shape[-1], dtype=jnp.int32)[None, None, None]
        of_draft = jnp.where(result.draft[..., None] == draft, at_depth[..., None], 0)
        of_draft = of_draft.sum(2, dtype=jnp.int32)
    return Info(
        target_calls=info.target_calls + 1,
        draft_calls=info.draft_calls + draft_calls,
        blocks=info.blocks + live.astype(jnp.int32),
        proposed=info.proposed + proposed.sum(-1, dtype=jnp.int32),
        accepted=info.accepted + accepted,
        rejected=info.rejected + rejected.astype(jnp.int32),
        emitted=info.emitted + appended,
        proposed_by_depth=info.proposed_by_depth + proposed,
        accepted_by_depth=info.accepted_by_depth + at_depth,
        accepted_by_draft=info.accepted_by_draft + of_draft,
        trace=info.trace,
    )


def no_blocks(batch_size: int, lanes: int, size: int, max_draft_tokens: int | None) -> BlockTrace:
    """The trace before the loop, with room for ``size`` blocks; None for trees."""
    zeros, drafted = jnp.zeros((batch_size, lanes, size), jnp.int32), None
    if max_draft_tokens is not None:
        drafted = jnp.full((batch_size, lanes, size, max_draft_tokens), -1, jnp.int32)
    return BlockTrace(drafted, zeros, zeros, zeros)


def trace_block(before: Info, after: Info, draft: Any) -> Info:
    """The counts after one iteration, with its block in their trace.

    Args:
      before: the counts before the iteration, with a trace.
      after: those after it.
      draft: of the iteration; a ``Draft`` unless it is a tree.
    """
    trace = before.trace
    assert trace is not None
    block = jnp.arange(trace.proposed.shape[-1], dtype=jnp.int32)[None, None]
    is_new = (block >= before.blocks[..., None]) & (block < after.blocks[..., None])
    counts = [
        jnp.where(is_new, (getattr(after, name) - getattr(before, name))[..., None], old)
        for name, old in (
            ("proposed", trace.proposed),
            ("accepted", trace.accepted),
            ("emitted", trace.appended),
        )
    ]
    drafted = trace.drafted
    if drafted is not None:
        tokens = jnp.where(draft.valid, draft.tokens, -1)
        drafted = jnp.where(is_new[..., None], tokens[:, :, None], drafted)
    return after._replace(trace=BlockTrace(drafted, *counts))
