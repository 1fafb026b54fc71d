"""Constrained beam search: the most probable sequences that contain given phrases."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp

from decoding_jax import fields
from decoding_jax.base import Array, DecodeOutput, Prompt, Stop
from decoding_jax.loop import as_function, stopping
from decoding_jax.loop.search_trace import SearchTrace
from decoding_jax.loop.sequences import over_axes, write
from decoding_jax.ops.gather import gather_items
from decoding_jax.ops.logits import lowest_argmax
from decoding_jax.ops.top_k import top_k
from decoding_jax.pytrees import pytree
from decoding_jax.strategies.beam import competition
from decoding_jax.strategies.beam.competition import Beam, Pool, first_true, join_pools
from decoding_jax.strategies.beam.constraints import Constraints, match_nothing, match_token
from decoding_jax.strategies.beam.loop import RankedBeams, State, split_pool


class ConstrainedBeamInfo(NamedTuple):
    """Statistics of a constrained beam search.

    Attributes:
      model_calls: int32, the prefill and every ``extend``.
      met: bool ``[B, N]``, whether each sequence meets the constraints.
      trace: with ``with_trace``.
    """

    model_calls: Array
    met: Array
    trace: SearchTrace | None = None


class Banks(NamedTuple):
    """The hypotheses of a constrained search.

    Attributes:
      beam: the hypotheses; its pool holds sequences that meet the constraints.
      unmet: the sequences that ended without meeting them, best first.
      matched: bool ``[B, K, N, M]``, the matches of the running hypotheses (see
        ``constraints.match_token``).
    """

    beam: Beam
    unmet: Pool
    matched: Array


def _check_constraints(name: str, constraints: Any) -> Constraints:
    if not isinstance(constraints, Constraints):
        expected = (
            "Constraints(phrases=((5, 6),)) of token ids, or decoding_jax.text.constraints("
            "tokenizer, phrases) of strings"
        )
        raise fields.error(name, expected, constraints)
    return constraints


@pytree
@dataclasses.dataclass(frozen=True, kw_only=True)
class ConstrainedBeamSearch(RankedBeams):
    """Beam search among the sequences that contain given phrases.

    Dynamic beam allocation: Post & Vilar 2018, "Fast Lexically Constrained Decoding with Dynamic
    Beam Allocation for Neural Machine Translation". All rows are processed at once, as in Hu et al.
    2019, "Improved Lexically Constrained Decoding for Translation and Monolingual Rewriting".

    At every step, the candidates are the best of all continuations, the best continuation of each
    hypothesis, and the continuations that add the next token of a phrase. The candidates are sorted
    into banks by the number of tokens that they lack. The K places are assigned in turn: to the
    best of the bank that lacks the fewest tokens, then to the best of the next bank, and so on,
    then to the second best of every bank. When a phrase is interrupted, its progress falls back to
    the longest part of it that the text still ends with. Without constraints, the search is
    ``beam_search``.

    Tokens that would end a sequence are banned, unless the sequence meets the constraints with
    them. Sequences that reach the length limit, or a point where every token is banned, without
    meeting the constraints are returned unfinished, after all those that meet them. ``info.met``
    distinguishes the two.

    The output has first the sequences that meet the constraints, best first, then those that do
    not, best first; it is otherwise as from ``beam_search``. ``info`` is a ``ConstrainedBeamInfo``.

    Attributes:
      constraints: the phrases, and the sets of alternatives of which one must appear.
      beam_size: K, the number of hypotheses of a row. There is a bank for each token of the phrases
        and one more. If K is smaller, the banks that lack the most tokens get no place.
      num_return: N, at most K; by default K.
      with_trace: whether ``info`` has a ``trace`` of the hypotheses, a ``SearchTrace``.
      max_new_tokens: L, the maximum number of new tokens.
      length_penalty: as for ``beam_search``.
      early_stopping: as for ``beam_search``; only sequences that meet the constraints count.
      transform: applied to the log-probabilities after each hypothesis. Its result is added to the
        score without normalising again. Tokens that it bans are banned within phrases, too.
      stop: when a sequence ends.

    Raises:
      ValueError: as ``beam_search``, and for constraints with another number of rows.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from decoding_jax import Prompt
      >>> from decoding_jax.testing import TableLM
      >>> model = TableLM.random(jax.random.key(0), 5)
      >>> prompt = Prompt(jnp.array([[1, 2]]), jnp.array([2]))
      >>> must = Constraints(phrases=((3, 3, 1),))
      >>> output = constrained_beam_search(
      ...     model, prompt, constraints=must, beam_size=4, max_new_tokens=5
      ... )
      >>> output.tokens[0, 0].tolist()
      [1, 3, 3, 1, 4]
    """

    constraints: Constraints = fields.field(_check_constraints, expected="Constraints(phrases=...)")

    def start(self, batch_size: int, keys: Any, max_new_tokens: int) -> Banks:
        beam = super().start(batch_size, keys, max_new_tokens)
        table = self.constraints.table(batch_size)
        matched = match_nothing(table, self.beam_size)
        pool, unmet = split_pool(beam.pool, self.constraints.lacking(table, matched) == 0)
        return Banks(beam._replace(pool=pool), unmet, matched)

    def tokens(self, beam: Banks) -> Array:  # type: ignore[override]
        return super().tokens(beam.beam)

    def compete(
        self, beam: Banks, allowed: Array, log_probs: Array, keys: Any, step: Array
    ) -> tuple[Banks, Array, Array]:
        hypotheses, unmet, matched = beam
        rules, constraints = self.rules, self.constraints
        batch, width, vocab = allowed.shape
        table = constraints.table(batch)
        count = competition.num_candidates(self.stop, width, vocab)

        def match(parent: Array, token: Array) -> tuple[Array, Array]:
            """The matches of ``parent`` with another ``token``, and the tokens that they lack."""
            new = match_token(table, gather_items(matched, parent), token)
            return new, constraints.lacking(table, new)

        # Score: every continuation, except those that would end before the constraints are met.
        allowed = _ban_ends(self.stop, allowed, hypotheses.running.tokens, match, step)
        totals = hypotheses.running.score[..., None] + allowed

        # Choose: candidates for all banks, to which places are assigned in turn.
        index = _find_candidates(totals, constraints.next_tokens(table, matched), count)
        new_matched, lacking = match(index // vocab, index % vocab)
        score, order = _assign_places(totals, index, lacking, count)
        lacking, index = gather_items(lacking, order), gather_items(index, order)
        candidates = competition.make_candidates(
            self.stop, hypotheses, score, index, log_probs, step
        )

        # Finish: sequences that meet the constraints and those that do not have a pool each.
        completed = competition.completed_candidates(rules, candidates, width, step)
        met_completed, unmet_completed = split_pool(completed, lacking[:, :width] == 0)
        is_met = constraints.lacking(table, matched) == 0
        dead_ends = competition.dead_ends(rules, hypotheses, totals, log_probs, step)
        met_ends, unmet_ends = split_pool(dead_ends, is_met)
        pool = competition.merge_pools(hypotheses.pool, met_ends, met_completed)
        unmet = competition.merge_pools(unmet, unmet_ends, unmet_completed)

        # Continue: the first K candidates that have not ended, in the order of their places.
        chosen = first_true(candidates.continues, width)
        hypotheses, token, parent = competition.continue_with(
            rules, hypotheses.open, candidates, chosen, pool, step
        )
        matched = gather_items(new_matched, gather_items(order, chosen))
        return Banks(hypotheses, unmet, matched), token, parent

    def is_open(self, beam: Banks) -> Array:
        return beam.beam.open

    def final_pools(self, banks: Banks, step: Array) -> tuple[Pool, Pool]:
        """The sequences that meet the constraints, and the others, each best first."""
        table = self.constraints.table(banks.matched.shape[0])
        is_met = self.constraints.lacking(table, banks.matched) == 0
        running = split_pool(competition.still_running(self.rules, banks.beam, step), is_met)
        pool = competition.merge_pools(banks.beam.pool, running[0])
        return pool, competition.merge_pools(banks.unmet, running[1])

    def result(self, beam: Banks, step: Array) -> Pool:
        joined = join_pools(*self.final_pools(beam, step))
        existing = first_true(joined.score > -jnp.inf, self.beam_size)
        return Pool(*(gather_items(part, existing) for part in joined))

    def hypotheses(self, beam: Banks, step: Array) -> Pool:
        return join_pools(super().hypotheses(beam.beam, step), beam.unmet)

    def finalize(self, prompt: Prompt, state: State) -> DecodeOutput:
        """See ``Strategy.finalize``."""
        output = super().finalize(prompt, state)
        met_pool, _ = self.final_pools(state.beam, state.step)
        count = (met_pool.score > -jnp.inf).sum(-1, dtype=jnp.int32)
        met = jnp.arange(self.num_outputs, dtype=jnp.int32)[None] < count[:, None]
        info = ConstrainedBeamInfo(output.info.model_calls, met, output.info.trace)
        return output._replace(info=info)


constrained_beam_search = as_function(ConstrainedBeamSearch)


def _find_candidates(totals: Array, next_tokens: Array, count: int) -> Array:
    """The continuations to be considered, some of them possibly twice.

    Args:
      totals: float32 ``[B, K, V]``, the score of every continuation.
      next_tokens: int32 ``[B, K, N]``, the tokens that continue a sequence, -1 for none.
      count: the number of candidates among the best of all.

    Returns:
      int32 ``[B, n]``, which counts the K * V continuations of a row.
    """
    batch, width, vocab = totals.shape
    _, best_of_all = top_k(totals.reshape(batch, width * vocab), count)
    offset = vocab * jnp.arange(width, dtype=jnp.int32)[None]
    best_of_each = offset + lowest_argmax(totals)
    # An entry that is not a token is replaced by the best continuation of the hypothesis.
    is_token = (next_tokens >= 0) & (next_tokens < vocab)
    progress = jnp.where(is_token, offset[..., None] + next_tokens, best_of_each[..., None])
    return jnp.concatenate([best_of_all, best_of_each, progress.reshape(batch, -1)], axis=1)


def _assign_places(totals: Array, index: Array, lacking: Array, count: int) -> tuple[Array, Array]:
    """Assigns places to the banks in turn, first to the bank that lacks the fewest tokens.

    Args:
      totals: float32 ``[B, K, V]``.
      index: int32 ``[B, n]``, the candidates; duplicates count once.
      lacking: int32 ``[B, n]``, the bank of each candidate.
      count: the number of places.

    Returns:
      The scores of the candidates that get the places, float32 ``[B, count]``, -inf for places that
      remain empty; and the positions of these candidates in ``index``, int32 ``[B, count]``.
    """
    score = gather_items(totals.reshape(totals.shape[0], -1), index)
    position = jnp.arange(index.shape[1], dtype=jnp.int32)
    is_earlier = (position[:, None] > position[None])[None]
    is_duplicate = ((index[..., None] == index[:, None]) & is_earlier).any(-1)
    score = jnp.where(is_duplicate, -jnp.inf, score)
    mine, other = score[..., None], score[:, None]
    is_better = (other > mine) | ((other == mine) & is_earlier)
    is_better &= (lacking[..., None] == lacking[:, None]) & (other > -jnp.inf)
    rank_in_bank = is_better.sum(-1, dtype=jnp.int32)
    turn = rank_in_bank * (lacking.max(-1, keepdims=True) + 1) + lacking
    _, order = top_k(jnp.where(score > -jnp.inf, -turn.astype(jnp.float32), -jnp.inf), count)
    return gather_items(score, order), order


def _ban_ends(
    stop: Stop,
    allowed: Array,
    tokens: Array,
    match: Callable[[Array, Array], tuple[Array, Array]],
    step: Array,
) -> Array:
    """Bans tokens that would end a hypothesis before it meets the constraints.

    Args:
      stop: the stop conditions.
      allowed: float32 ``[B, K, V]``.
      tokens: int32 ``[B, K, L]``, hypotheses of ``step`` tokens.
      match: ``(parent [B, n], token [B, n]) -> (matched, lacking [B, n])``.
      step: int32, a scalar or ``[B]``.
    """
    batch, width, vocab = allowed.shape
    rows = lambda x: jnp.broadcast_to(x, (batch, x.shape[-1]))  # noqa: E731
    ending = jnp.concatenate([rows(tokens) for tokens in stopping.last_tokens(stop)], axis=1)
    count = ending.shape[1]
    if count == 0:
        return allowed
    parent = jnp.broadcast_to(
        jnp.repeat(jnp.arange(width, dtype=jnp.int32), count)[None], (batch, width * count)
    )
    token = jnp.tile(ending, (1, width))
    texts = write(gather_items(tokens, parent), token, step)
    length = jnp.broadcast_to(over_axes(step, 2) + 1, token.shape)
    is_banned = stopping.ends(stop, token, texts, length) & (match(parent, token)[1] > 0)
    banned = jnp.where(is_banned, token, -1).reshape(batch, width, count)
    ids = jnp.arange(vocab, dtype=jnp.int32)[None, None, :, None]
    return jnp.where((ids == banned[:, :, None]).any(-1), -jnp.inf, allowed)
