"""Constrained beam search: the most probable sequences that contain what they must."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp

from decoding_jax.base import Array, DecodeOutput, Prompt, Stop, Transform
from decoding_jax.loop import Static, Steps, search, stopping
from decoding_jax.loop.values import describe
from decoding_jax.ops.gather import gather_items
from decoding_jax.ops.logits import lowest_argmax
from decoding_jax.ops.top_k import top_k
from decoding_jax.rows import PerRow
from decoding_jax.strategies.beam import competition
from decoding_jax.strategies.beam.competition import (
    Beam,
    EarlyStopping,
    Pool,
    Rules,
    first_of,
)
from decoding_jax.strategies.beam.constraints import Constraints, after, begin
from decoding_jax.strategies.beam.length_penalty import LengthPenalty, as_rule
from decoding_jax.strategies.beam.loop import Search, beam_steps, check_beams


class ConstrainedBeamInfo(NamedTuple):
    """What became of the constraints.

    Attributes:
      model_calls: int32, the prefill and every ``extend``.
      met: bool ``[B, N]``: whether a sequence contains all that it must.
    """

    model_calls: Array
    met: Array


class Banks(NamedTuple):
    """The carry of a constrained search.

    Attributes:
      beam: its pool holds sequences that meet the constraints.
      rest: those that ended without, best first.
      matched: bool ``[B, K, N, M]``, what the running hypotheses contain (``constraints.after``).
    """

    beam: Beam
    rest: Pool
    matched: Array


@search
def constrained_beam_search(
    *,
    constraints: Constraints,
    beam_size: Static[int],
    num_return: Static[int | None] = None,
    max_new_tokens: Static[int],
    length_penalty: PerRow[float | Array | LengthPenalty] = 0.0,
    early_stopping: Static[EarlyStopping] = False,
    transform: Transform | None = None,
    stop: Stop | None = None,
) -> Steps:
    """Beam search among the sequences that contain given phrases.

    Dynamic beam allocation: Post & Vilar 2018, "Fast Lexically Constrained Decoding with Dynamic
    Beam Allocation for Neural Machine Translation", with the candidates of every row dealt with at
    once as in Hu et al. 2019, "Improved Lexically Constrained Decoding for Translation and
    Monolingual Rewriting". At every step the candidates are the best of all continuations, each
    hypothesis's best, and the continuations that take a hypothesis a token further into a phrase.
    They are sorted into banks by how many tokens they lack, and the K places are handed out in
    turn: the best of the bank that lacks least, the best of the next, ..., then every bank's second
    best. A phrase in progress that is broken off goes back to the longest part of it that the text
    still ends with. Without constraints all this is ``beam_search``.

    What would end a sequence is banned until the sequence contains all it must, or does with that
    very token. Sequences that reach the limit, or a place where all is banned, without containing
    it are returned after all those that do, not finished; ``info.met`` tells them apart.

    Args:
      model: the language model.
      prompt: tokens int32 ``[B, P]`` and their length ``[B]``.
      constraints: the phrases, and the sets of alternatives of which one must appear.
      beam_size: K, hypotheses a row. There is a bank for each token of the phrases and one more;
        where K is less than that, the emptier ones get no place.
      num_return: N, at most K; K where None.
      max_new_tokens: L, the most new tokens.
      length_penalty: as for ``beam_search``.
      early_stopping: as for ``beam_search``; only sequences that meet the constraints count.
      transform: applied to each hypothesis's log-probabilities, and added to the score as it is. A
        token that it bans is banned inside a phrase, too.
      stop: when a sequence ends.

    Returns:
      A ``DecodeOutput``, first the sequences that meet the constraints, best first, then those
      that do not, best first; otherwise as from ``beam_search``. ``info`` is a
      ``ConstrainedBeamInfo``.

    Raises:
      ValueError: as ``beam_search``, and for constraints of another number of rows.

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
    if not isinstance(constraints, Constraints):
        raise ValueError(
            f"constraints: got {describe(constraints)}; takes Constraints(phrases=((5, 6),)) of "
            "token ids, or decoding_jax.text.constraints(tokenizer, phrases) of strings"
        )
    num_return = check_beams(beam_size, num_return, early_stopping)
    stop = Stop() if stop is None else stop
    rules = Rules(stop, as_rule(length_penalty), early_stopping)

    def start(batch_size: int, rule: Any) -> Banks:
        beam = competition.open_beam(batch_size, beam_size, max_new_tokens, stop)
        table = constraints.table(batch_size)
        matched = begin(table, beam_size)
        pool, rest = _apart(beam.pool, constraints.lacking(table, matched) == 0)
        return Banks(beam._replace(pool=pool), rest, matched)

    def grow(
        banks: Banks, allowed: Array, log_probs: Array, rule: Any, step: Array
    ) -> tuple[Banks, Array, Array]:
        beam, rest, matched = banks
        batch, width, vocab = allowed.shape
        table = constraints.table(batch)
        count = competition.candidate_count(stop, width, vocab)

        def grown(parent: Array, token: Array) -> tuple[Array, Array]:
            taken = after(table, gather_items(matched, parent), token)
            return taken, constraints.lacking(table, taken)

        allowed = _ban_ends(stop, allowed, beam.running.tokens, grown, step)
        totals = beam.running.score[..., None] + allowed
        index = _candidates(totals, constraints.wanted(table, matched), count)
        matched_after, lacking = grown(index // vocab, index % vocab)
        score, order = _in_turn(totals, index, lacking, count)
        lacking, index = gather_items(lacking, order), gather_items(index, order)
        candidates = competition.candidates_of(stop, beam, score, index, log_probs, step)

        met = constraints.lacking(table, matched) == 0
        stuck = _apart(competition.stuck_of(rules, beam, totals, step), met)
        ending = competition.leaving(rules, candidates, width, step)
        leaving = _apart(ending, lacking[:, :width] == 0)
        pool = competition.best_of(beam.pool, stuck[0], leaving[0])
        rest = competition.best_of(rest, stuck[1], leaving[1])
        at = first_of(candidates.goes_on, width)
        beam, token, parent = competition.go_on(rules, beam.open, candidates, at, pool, step)
        return (
            Banks(beam, rest, gather_items(matched_after, gather_items(order, at))),
            token,
            parent,
        )

    def with_running(banks: Banks, step: Array) -> tuple[Pool, Pool]:
        """The sequences that meet the constraints, and the others, best first."""
        met = constraints.lacking(constraints.table(banks.matched.shape[0]), banks.matched) == 0
        running = _apart(competition.still_running(rules, banks.beam, step), met)
        pool = competition.best_of(banks.beam.pool, running[0])
        return pool, competition.best_of(banks.rest, running[1])

    def result(banks: Banks, step: Array) -> Pool:
        pair = zip(*with_running(banks, step), strict=True)
        both = Pool(*(jnp.concatenate(parts, axis=1) for parts in pair))
        at = first_of(both.score > -jnp.inf, beam_size)
        return Pool(*(gather_items(part, at) for part in both))

    made = beam_steps(
        Search(
            start=start,
            tokens=lambda banks: banks.beam.running.tokens,
            grow=grow,
            is_open=lambda banks: banks.beam.open,
            result=result,
        ),
        beam_size=beam_size,
        num_return=num_return,
        max_new_tokens=max_new_tokens,
        transform=transform,
        stop=stop,
    )

    def finalize(prompt: Prompt, state: Any) -> DecodeOutput:
        output = made.finalize(prompt, state)
        ready, _ = with_running(state.beam, state.step)
        count = (ready.score > -jnp.inf).sum(-1, dtype=jnp.int32)
        met = jnp.arange(num_return, dtype=jnp.int32)[None] < count[:, None]
        return output._replace(info=ConstrainedBeamInfo(output.info.model_calls, met))

    return made._replace(finalize=finalize)


def _candidates(totals: Array, wanted: Array, count: int) -> Array:
    """int32 ``[B, n]``, into ``[K * V]``: the continuations to be looked at, some of them twice.

    Args:
      totals: float32 ``[B, K, V]``, the score of every continuation.
      wanted: int32 ``[B, K, N]``, tokens that get a hypothesis on, -1 for none.
      count: how many of the best of all.
    """
    batch, width, vocab = totals.shape
    _, best_of_all = top_k(totals.reshape(batch, width * vocab), count)
    first = vocab * jnp.arange(width, dtype=jnp.int32)[None]
    best_of_each = first + lowest_argmax(totals)
    # What is no token repeats the hypothesis's best.
    real = (wanted >= 0) & (wanted < vocab)
    steps_on = jnp.where(real, first[..., None] + wanted, best_of_each[..., None])
    return jnp.concatenate([best_of_all, best_of_each, steps_on.reshape(batch, -1)], axis=1)


def _in_turn(totals: Array, index: Array, lacking: Array, count: int) -> tuple[Array, Array]:
    """Deals places out to banks in turn, first to that which lacks least.

    Args:
      totals: float32 ``[B, K, V]``.
      index: int32 ``[B, n]``, the candidates; one that is there twice counts once.
      lacking: int32 ``[B, n]``, each candidate's bank.
      count: how many places.

    Returns:
      The score ``[B, count]`` of the candidates that get the places, -inf where there are no more,
      and which they are: int32 ``[B, count]``.
    """
    score = gather_items(totals.reshape(totals.shape[0], -1), index)
    place = jnp.arange(index.shape[1], dtype=jnp.int32)
    earlier = (place[:, None] > place[None])[None]
    again = ((index[..., None] == index[:, None]) & earlier).any(-1)
    score = jnp.where(again, -jnp.inf, score)
    mine, other = score[..., None], score[:, None]
    better = (other > mine) | ((other == mine) & earlier)
    better &= (lacking[..., None] == lacking[:, None]) & (other > -jnp.inf)
    rounds = better.sum(-1, dtype=jnp.int32)
    turn = rounds * (lacking.max(-1, keepdims=True) + 1) + lacking
    _, order = top_k(jnp.where(score > -jnp.inf, -turn.astype(jnp.float32), -jnp.inf), count)
    return gather_items(score, order), order


def _ban_ends(
    stop: Stop,
    allowed: Array,
    tokens: Array,
    grown: Callable[[Array, Array], tuple[Array, Array]],
    step: Array,
) -> Array:
    """Bans what would end a hypothesis that lacks something even then.

    Args:
      stop: the stop conditions.
      allowed: float32 ``[B, K, V]``.
      tokens: int32 ``[B, K, L]``, hypotheses of ``step`` tokens.
      grown: ``(parent [B, n], token [B, n]) -> (matched, lacking [B, n])``.
      step: int32.
    """
    batch, width, vocab = allowed.shape
    rows = lambda x: jnp.broadcast_to(x, (batch, x.shape[-1]))  # noqa: E731
    lasts = [rows(stopping.end_tokens(stop))]
    if jnp.shape(stop.sequences)[-1]:
        lasts.append(rows(jnp.asarray(stop.sequences, jnp.int32)[..., -1]))
    ways = jnp.concatenate(lasts, axis=1)
    count = ways.shape[1]
    if count == 0:
        return allowed
    parent = jnp.broadcast_to(
        jnp.repeat(jnp.arange(width, dtype=jnp.int32), count)[None], (batch, width * count)
    )
    token = jnp.tile(ways, (1, width))
    here = jnp.arange(tokens.shape[-1], dtype=jnp.int32)[None, None] == step
    texts = jnp.where(here, token[..., None], gather_items(tokens, parent))
    length = jnp.broadcast_to(step + 1, token.shape)
    banned = stopping.ends(stop, token, texts, length) & (grown(parent, token)[1] > 0)
    token = jnp.where(banned, token, -1).reshape(batch, width, count)
    hit = (jnp.arange(vocab, dtype=jnp.int32)[None, None, :, None] == token[:, :, None]).any(-1)
    return jnp.where(hit, -jnp.inf, allowed)


def _apart(pool: Pool, met: Array) -> tuple[Pool, Pool]:
    """The part of a pool that meets the constraints, and the other."""
    ready = pool._replace(score=jnp.where(met, pool.score, -jnp.inf))
    return ready, pool._replace(score=jnp.where(met, -jnp.inf, pool.score))
