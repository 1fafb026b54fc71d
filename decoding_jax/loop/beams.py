"""What every beam search shares: hypotheses that compete, a pool of those that ended, and a loop.

A strategy says how candidates are chosen (``Choose``) and, where that is not all, how the
hypotheses of one step are taken through ``compete``; ``beam_steps`` does the rest.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax.numpy as jnp

from decoding_jax.base import Array, DecodeOutput, LanguageModel, Prefix, Prompt, Stop, Transform
from decoding_jax.loop import stopping
from decoding_jax.loop.branches import Branches, feed, follow, sprout
from decoding_jax.loop.driver import Steps
from decoding_jax.loop.length_penalty import LengthPenalty
from decoding_jax.loop.lockstep import check_lengths
from decoding_jax.ops.logits import clean, log_softmax
from decoding_jax.ops.top_k import top_k

EarlyStopping = bool | Literal["never"]

Choose = Callable[[Any, Array, int, Array], tuple[Array, Array]]
"""``(rule, totals [B, n], count, step) -> (score [B, count], index [B, count])``: candidates, those
that rank first in front. A score of -inf is no candidate."""


class Running(NamedTuple):
    """Hypotheses that go on, all of one length.

    Attributes:
      tokens: int32 ``[B, K, L]``, 0 from that length on.
      log_prob: float32 ``[B, K]``.
      score: float32 ``[B, K]``, the sum that candidates are chosen by; -inf where there is none.
    """

    tokens: Array
    log_prob: Array
    score: Array


class Pool(NamedTuple):
    """The best hypotheses that ended, best first.

    Attributes:
      tokens: int32 ``[B, K, L]``, 0 from ``length`` on.
      length: int32 ``[B, K]``.
      log_prob: float32 ``[B, K]``.
      score: float32 ``[B, K]``, divided by the length penalty; -inf where there is none.
      finished: bool ``[B, K]``, by a stop condition.
    """

    tokens: Array
    length: Array
    log_prob: Array
    score: Array
    finished: Array


class Beam(NamedTuple):
    """K hypotheses of every row that compete with each other.

    Attributes:
      running: those that go on.
      pool: those that ended.
      open: bool ``[B]``: whether the row goes on.
    """

    running: Running
    pool: Pool
    open: Array


class Rules(NamedTuple):
    """How hypotheses end and are ranked.

    Attributes:
      stop: the stop conditions.
      penalty: divides the scores of the pool.
      early_stopping: when a full pool closes its row: True at once; False when no running
        hypothesis would beat its worst at the present length; "never" when none could at any.
      choose: the candidates.
      finish_from: how many of the candidates, from the first, may enter the pool: K where None.
        The others only replace those of the first K that end.
    """

    stop: Stop
    penalty: LengthPenalty
    early_stopping: EarlyStopping
    choose: Choose
    finish_from: int | None = None


class BeamInfo(NamedTuple):
    """``model_calls``: int32, the prefill and every ``extend``."""

    model_calls: Array


class State(NamedTuple):
    """The carry: the cache's branches, the beams, their last tokens, the strategy's own state.

    Attributes:
      branches: the hypotheses' keys and values.
      beam: a ``Beam``, or a stack of them, as the strategy has it.
      token: int32 ``[B, K]``, chosen and not fed yet.
      rule: the strategy's own.
      step: int32, tokens that each running hypothesis has.
    """

    branches: Branches
    beam: Any
    token: Array
    rule: Any
    step: Array


def check_beams(
    beam_size: int, num_return: int | None, early_stopping: EarlyStopping = False
) -> int:
    """``num_return``, by default ``beam_size``.

    Raises:
      ValueError: for sizes below 1, more returned than there are, or another ``early_stopping``.
    """
    if beam_size < 1:
        raise ValueError(f"beam_size: got {beam_size}; takes 1 or more")
    num_return = beam_size if num_return is None else num_return
    if not 1 <= num_return <= beam_size:
        raise ValueError(
            f"num_return: got {num_return}; takes 1 to beam_size, which is {beam_size}"
        )
    if early_stopping not in (True, False, "never"):
        raise ValueError(f'early_stopping: got {early_stopping!r}; takes True, False or "never"')
    return num_return


def open_beam(batch_size: int, beam_size: int, max_new_tokens: int, stop: Stop) -> Beam:
    """One empty hypothesis a row, at score 0. A row whose limit is 0 ends with it."""
    shape = (batch_size, beam_size)
    no_tokens = jnp.zeros((*shape, max_new_tokens), jnp.int32)
    first = jnp.broadcast_to(jnp.arange(beam_size)[None] == 0, shape)
    closed = stopping.limits(stop, batch_size, max_new_tokens) < 1
    score = jnp.where(first, 0.0, -jnp.inf)
    ended = jnp.where(closed[:, None], score, -jnp.inf)
    pool = Pool(no_tokens, jnp.zeros(shape, jnp.int32), ended, ended, jnp.zeros(shape, bool))
    return Beam(Running(no_tokens, score, score), pool, ~closed)


def scores_of(
    logits: Array, tokens: Array, prompt: Prompt, step: Array, stop: Stop, transform: Any
) -> tuple[Array, Array]:
    """What a token adds to a hypothesis: the transformed log-probabilities, and the model's own.

    Transforms are given log-probabilities, and what they return is added as it is, without
    normalising again: a ban does not raise the score of what is left.

    Args:
      logits: float32 ``[B, K, V]`` after hypotheses of ``step`` tokens.
      tokens: int32 ``[B, K, L]``, the hypotheses.
      prompt: B prompts.
      step: int32.
      stop: for its ``min_new_tokens``.
      transform: applied to each hypothesis with its own path; None leaves them.
    """
    log_probs = log_softmax(clean(logits))
    length = jnp.broadcast_to(step, tokens.shape[:2])
    allowed = stopping.ban_end_tokens(stop, log_probs, length)
    if transform is not None:
        path = Prefix(*prompt, tokens[:, :, None], length[..., None])
        allowed = clean(transform(allowed[:, :, None], path))[:, :, 0]
    return allowed, log_probs


def compete(
    rules: Rules, beam: Beam, allowed: Array, log_probs: Array, rule: Any, step: Array
) -> tuple[Beam, Array, Array]:
    """Grows K hypotheses by a token each: candidates, those that end, those that go on.

    Args:
      rules: how hypotheses end and are ranked.
      beam: hypotheses of ``step`` tokens.
      allowed: float32 ``[B, K, V]``, what each next token adds to the score; -inf is banned.
      log_probs: float32 ``[B, K, V]``, the model's own.
      rule: for ``rules.choose``.
      step: int32.

    Returns:
      The beam, its last tokens ``[B, K]``, and the hypothesis ``[B, K]`` that each continues.
    """
    running, pool, is_open = beam
    batch, width, limit_of_buffer = running.tokens.shape
    vocab = allowed.shape[-1]
    limit = stopping.limits(rules.stop, batch, limit_of_buffer)

    # Enough that K go on even if every way to end is among them.
    ends = jnp.shape(rules.stop.eos_ids)[-1] + jnp.shape(rules.stop.sequences)[-2:][0]
    count = min(max(2, 1 + ends) * width, width * vocab)
    totals = running.score[..., None] + allowed
    score, index = rules.choose(rule, totals.reshape(batch, width * vocab), count, step)
    parent, token = index // vocab, index % vocab
    exists = (score > -jnp.inf) & is_open[:, None]
    log_prob = _take(running.log_prob, parent) + _take(
        log_probs.reshape(batch, width * vocab), index
    )
    tokens = jnp.take_along_axis(running.tokens, parent[..., None], axis=1)
    here = jnp.arange(limit_of_buffer)[None, None] == step
    tokens = jnp.where(here, token[..., None], tokens)

    length = jnp.broadcast_to(step + 1, parent.shape)
    enough = length >= stopping.minimum(rules.stop)[:, None]
    ended = stopping.is_end_token(rules.stop, token)
    ended |= enough & stopping.ends_with_sequence(rules.stop, tokens, length)
    stays = exists & ~ended & (step + 1 < limit)[:, None]

    # A hypothesis without an allowed continuation ends where it is, as one at its limit does.
    stuck = (running.score > -jnp.inf) & is_open[:, None] & (totals.max(-1) == -jnp.inf)
    so_far = jnp.broadcast_to(step, stuck.shape)
    first = width if rules.finish_from is None else rules.finish_from
    divided = score[:, :first] / rules.penalty(length[:, :first])
    leaves = (exists & ~stays)[:, :first]
    pool = best_of(
        pool,
        Pool(
            running.tokens,
            so_far,
            running.log_prob,
            jnp.where(stuck, running.score / rules.penalty(jnp.maximum(so_far, 1)), -jnp.inf),
            jnp.zeros_like(stuck),
        ),
        Pool(
            tokens[:, :first],
            length[:, :first],
            log_prob[:, :first],
            jnp.where(leaves, divided, -jnp.inf),
            ended[:, :first],
        ),
    )

    kept, at = top_k(jnp.where(stays, score, -jnp.inf), width)
    going = Running(jnp.take_along_axis(tokens, at[..., None], axis=1), _take(log_prob, at), kept)
    is_open &= (step + 1 < limit) & _may_improve(rules, going, pool, step + 1, limit)
    return Beam(going, pool, is_open), _take(token, at), _take(parent, at)


def best_of(*pools: Pool) -> Pool:
    """The best K of several pools, K the size of the first; of equals, the earlier."""
    joined = Pool(*(jnp.concatenate(parts, axis=1) for parts in zip(*pools, strict=True)))
    score, at = top_k(joined.score, pools[0].score.shape[1])
    return Pool(
        jnp.take_along_axis(joined.tokens, at[..., None], axis=1),
        _take(joined.length, at),
        _take(joined.log_prob, at),
        score,
        _take(joined.finished, at),
    )


def _take(values: Array, index: Array) -> Array:
    return jnp.take_along_axis(values, index, axis=1)


def _may_improve(rules: Rules, running: Running, pool: Pool, step: Array, limit: Array) -> Array:
    """bool ``[B]``: whether a running hypothesis may still enter the pool."""
    best = running.score.max(-1)
    full = (pool.score > -jnp.inf).all(-1)
    if rules.early_stopping is True:
        return (best > -jnp.inf) & ~full
    divisor = rules.penalty(jnp.broadcast_to(step, best.shape))
    if rules.early_stopping == "never":
        divisor = jnp.maximum(divisor, rules.penalty(jnp.maximum(limit, 1)))
    return (best > -jnp.inf) & (~full | (best / divisor > pool.score.min(-1)))


def ranked(rules: Rules, beam: Beam, step: Array) -> Pool:
    """The pool, and what is still running in an open row, best first."""
    running, pool, is_open = beam
    length = jnp.broadcast_to(step, running.score.shape)
    divided = running.score / rules.penalty(jnp.maximum(length, 1))
    score = jnp.where(is_open[:, None], divided, -jnp.inf)
    unfinished = jnp.zeros_like(pool.finished)
    return best_of(pool, Pool(running.tokens, length, running.log_prob, score, unfinished))


def output_of(pool: Pool, num_return: int, model_calls: Array) -> DecodeOutput:
    """The first of a pool. Where there is none: length 0, log-probability and score -inf."""
    tokens, length, log_prob, score, finished = (part[:, :num_return] for part in pool)
    exists = score > -jnp.inf
    return DecodeOutput(
        tokens=jnp.where(exists[..., None], tokens, 0),
        length=jnp.where(exists, length, 0),
        log_prob=jnp.where(exists, log_prob, -jnp.inf),
        score=score,
        finished=finished & exists,
        info=BeamInfo(model_calls),
    )


def beam_steps(
    rules: Rules,
    *,
    beam_size: int,
    num_return: int | None,
    max_new_tokens: int,
    transform: Transform | None = None,
    init_rule: Callable[[Any, int], Any] = lambda key, batch_size: None,
) -> Steps:
    """The steps of a search whose hypotheses all compete with each other.

    Args:
      rules: how candidates are chosen, end and are ranked.
      beam_size: K.
      num_return: N, at most K.
      max_new_tokens: L.
      transform: see ``scores_of``.
      init_rule: ``(key, B) -> rule``, what ``rules.choose`` is given.

    Raises:
      ValueError: for static settings out of range, when the steps are made or traced.
    """
    num_return = check_beams(beam_size, num_return, rules.early_stopping)

    def advance(
        logits: Array, model: LanguageModel, prompt: Prompt, state: State, *, fed: bool
    ) -> State:
        allowed, log_probs = scores_of(
            logits, state.beam.running.tokens, prompt, state.step, rules.stop, transform
        )
        beam, token, parent = compete(rules, state.beam, allowed, log_probs, state.rule, state.step)
        branches = follow(model, state.branches, parent) if fed else state.branches
        return State(branches, beam, token, state.rule, state.step + 1)

    def init(model: LanguageModel, prompt: Prompt, key: Any) -> State:
        batch, size = prompt.tokens.shape
        check_lengths(model, size, max_new_tokens)
        logits, branches = sprout(model, prompt, beam_size, max_new_tokens)
        beam = open_beam(batch, beam_size, max_new_tokens, rules.stop)
        token = jnp.zeros((batch, beam_size), jnp.int32)
        state = State(branches, beam, token, init_rule(key, batch), jnp.int32(0))
        logits = jnp.broadcast_to(logits[:, None], (batch, beam_size, logits.shape[-1]))
        return advance(logits, model, prompt, state, fed=False)

    def step(model: LanguageModel, prompt: Prompt, state: State) -> State:
        logits, branches = feed(model, prompt, state.branches, state.token)
        return advance(logits, model, prompt, state._replace(branches=branches), fed=True)

    def done(state: State) -> Array:
        return ~state.beam.open.any()

    def finalize(prompt: Prompt, state: State) -> DecodeOutput:
        return output_of(ranked(rules, state.beam, state.step), num_return, state.step)

    return Steps(init, step, done, finalize)
