"""Decode functions that search with beams: T5X's ``beam_search``."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, NamedTuple

import jax.numpy as jnp

from decoding_jax.base import Array, DecodeOutput, LanguageModel, Prompt
from decoding_jax.loop import Steps, run
from decoding_jax.ops.top_k import top_k
from decoding_jax.strategies.beam import competition
from decoding_jax.strategies.beam.competition import (
    Beam,
    ChooseCandidates,
    Pool,
    Rules,
    Running,
)
from decoding_jax.strategies.beam.length_penalty import GNMTPenalty, LengthPenalty
from decoding_jax.strategies.beam.loop import State, beam_steps, single_beam
from decoding_jax.t5x.decode_fns.arguments import BEAM_ORDER, Decodes, T5XArguments, decode_fn
from decoding_jax.t5x.decode_fns.call import open_call
from decoding_jax.t5x.decode_fns.temperature import keep_forced

# T5X's minus infinity: networks and callbacks ban tokens by logits of this size.
_BANNED = -1e7


@decode_fn(BEAM_ORDER, num_decodes=4)
def beam_search(
    arguments: T5XArguments,
    *,
    alpha: Any = 0.6,
    max_decode_len: int | None = None,
    max_decode_step: Any = -1,
    min_log_prob: Any = -jnp.inf,
) -> Decodes:
    """Beam search with T5X's pool and length penalty, ((5 + length) / 6)^alpha.

    This is T5X's function of the same name with three differences. Where fewer than N hypotheses
    have ended, those that ran out of length follow them, instead of empty ones at -1e7. Every score
    is divided by its length penalty, also where none has ended. A row stops by itself, so its
    hypotheses do not depend on other rows, nor on a NaN in another hypothesis.

    Args:
      inputs, cache, tokens_to_logits, eos_id, cache_offset, initial_index, transform: see
        ``T5XArguments``. Lengths count from the start token, prompt included; what the transform
        returns is added to the scores without normalising again.
      num_decodes: N, hypotheses that a row keeps and returns.
      decode_rng: not used.
      alpha: the exponent of the length penalty, a number or ``[B]``.
      max_decode_len: the maximum length of a result, prompt included; L where None.
      max_decode_step: the maximum number of tokens after the start token, or after a prefilled
        prompt; unlimited if 0 or below.
      min_log_prob: a row ends once no running hypothesis has this log-probability.

    Returns:
      Decodes int32 ``[B, N, max_decode_len]`` and scores float32 ``[B, N]``, in rising order: the
      best finished hypothesis last, and every unfinished one before all finished ones. Where the
      vocabulary gives fewer hypotheses, length 0 and -inf.

    Raises:
      ValueError: for a length or a number of hypotheses below 1.

    Example:
      >>> import jax
      >>> def tokens_to_logits(state):
      ...     return jax.nn.one_hot(state.cur_token[:, 0] + 1, 5), state.cache
      >>> inputs = jnp.array([[0, 2, 0, 0]])
      >>> beam_search(inputs, {}, tokens_to_logits, eos_id=4, num_decodes=2, alpha=0.0)[0]
      Array([[[2, 0, 1, 2],
              [2, 3, 4, 0]]], dtype=int32)
    """
    call, width = open_call(arguments), arguments.num_decodes
    max_length = call.length if max_decode_len is None else max_decode_len
    if max_length < 1:
        raise ValueError(f"max_decode_len: got {max_length}; takes 1 or more")
    limits = call.limits(max_length=max_length)
    step_limit = jnp.asarray(max_decode_step, jnp.int32)
    last = jnp.where(step_limit > 0, jnp.minimum(limits, step_limit), limits)
    penalty = FromStart(GNMTPenalty(alpha), call.prompt_end)

    # The limit is one above the row's own, so that `Cut` ends the row instead of the search:
    # hypotheses that run out of length must not push finished ones out of the pool.
    stop = call.stop(limits + 1)
    rules = Rules(stop, penalty, "never", _candidates(width))
    search = single_beam(rules, width, max_length + 1)
    steps = beam_steps(
        search._replace(compete=functools.partial(_compete, rules)),
        beam_size=width,
        num_return=width,
        max_new_tokens=max_length + 1,
        transform=keep_forced(arguments.transform),
        stop=stop,
    )
    cut = Cut(steps, last, jnp.asarray(min_log_prob, jnp.float32), penalty)
    return call.best_last(run(cut.steps(), call.model, call.prompt), max_length)


def _compete(
    rules: Rules, beam: Beam, allowed: Array, log_probs: Array, keys: Any, step: Array
) -> tuple[Beam, Array, Array]:
    """``competition.compete``, except that any of the best 2 N candidates may enter the pool.

    In ``transformers``, and so in ``competition.compete``, only the best N may.
    """
    width = allowed.shape[1]
    totals = beam.running.score[..., None] + allowed
    candidates = competition.choose_candidates(rules, beam, totals, log_probs, keys, step)
    pool = competition.merge_pools(
        beam.pool,
        competition.dead_ends(rules, beam, totals, step),
        competition.completed_candidates(rules, candidates, 2 * width, step),
    )
    chosen = competition.best_continuing(candidates, width)
    return competition.continue_with(rules, beam.open, candidates, chosen, pool, step)


def _candidates(num_decodes: int) -> ChooseCandidates:
    """The best; of equals, as in T5X, those that continue the hypothesis ranked last."""

    def choose(keys: Any, totals: Array, count: int, step: Array) -> tuple[Array, Array]:
        score, index = top_k(totals, count)
        vocab = totals.shape[-1] // num_decodes
        order = jnp.lexsort((index % vocab, -(index // vocab), -score), axis=-1)
        score = jnp.take_along_axis(score, order, axis=-1)
        score = jnp.where(score > _BANNED, score, -jnp.inf)
        return score, jnp.take_along_axis(index, order, axis=-1)

    return choose


@dataclasses.dataclass(frozen=True)
class FromStart:
    """A length penalty by T5X's count: from the start token, prompt included."""

    penalty: LengthPenalty
    base: Array

    def __call__(self, length: Array) -> Array:
        return self.penalty(length + self.base.reshape(-1, *(1,) * (length.ndim - 1)))


class CutState(NamedTuple):
    """A search, and what was running in each row when it was cut.

    Attributes:
      search: the search.
      live: hypotheses, of ``length`` tokens each.
      length: int32 ``[B]``.
    """

    search: State
    live: Running
    length: Array


@dataclasses.dataclass(frozen=True)
class Cut:
    """A beam search that is cut row by row, and what it returns then.

    Attributes:
      search: its steps.
      last: int32 ``[B]``, the tokens at which a row is cut.
      min_log_prob: float32, below which a row is cut.
      penalty: divides the scores of what was still running.
    """

    search: Steps
    last: Array
    min_log_prob: Array
    penalty: LengthPenalty

    def steps(self) -> Steps:
        return Steps(self.init, self.step, lambda state: self.search.done(state.search),
                     self.finalize)  # fmt: skip

    def init(self, model: LanguageModel, prompt: Prompt, key: Any) -> CutState:
        search = self.search.init(model, prompt, key)
        running = search.beam.running
        return self._cut(CutState(search, running, jnp.zeros_like(self.last)))

    def step(self, model: LanguageModel, prompt: Prompt, state: CutState) -> CutState:
        return self._cut(state._replace(search=self.search.step(model, prompt, state.search)))

    def _cut(self, state: CutState) -> CutState:
        beam, step = state.search.beam, state.search.step
        going = beam.running.score.max(-1)
        here = beam.open & ((step >= self.last) | (going < self.min_log_prob))

        def pick(new: Array, old: Array) -> Array:
            return jnp.where(here.reshape(-1, *(1,) * (new.ndim - 1)), new, old)

        live = Running(*map(pick, beam.running, state.live))
        beam = beam._replace(open=beam.open & ~here)
        length = jnp.where(here, step, state.length)
        return CutState(state.search._replace(beam=beam), live, length)

    def finalize(self, prompt: Prompt, state: CutState) -> DecodeOutput:
        """Those that ended, best first, and behind them those that were running."""
        pool, live = state.search.beam.pool, state.live
        length = jnp.broadcast_to(state.length[:, None], live.score.shape)
        exists = (live.score > -jnp.inf) & (length > 0)
        score = jnp.where(exists, live.score / self.penalty(jnp.maximum(length, 1)), -jnp.inf)
        joined = Pool(
            jnp.concatenate([pool.tokens, live.tokens], axis=1),
            jnp.concatenate([pool.length, length], axis=1),
            jnp.concatenate([pool.log_prob, live.log_prob], axis=1),
            jnp.concatenate([pool.score, score], axis=1),
            jnp.concatenate([pool.finished, jnp.zeros_like(exists)], axis=1),
        )
        width = pool.score.shape[1]
        place = jnp.broadcast_to(jnp.arange(2 * width, dtype=jnp.int32)[None], joined.score.shape)
        order = jnp.argsort(jnp.where(joined.score > -jnp.inf, place, 2 * width), axis=-1)
        order = order[:, :width]
        take = lambda part: jnp.take_along_axis(  # noqa: E731
            part, order.reshape(*order.shape, *(1,) * (part.ndim - 2)), axis=1
        )
        tokens, length, log_prob, score, finished = map(take, joined)
        length = jnp.where(score > -jnp.inf, length, 0)
        return DecodeOutput(tokens, length, log_prob, score, finished, state.search.step)
