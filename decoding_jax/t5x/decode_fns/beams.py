"""Decode functions of the beam searches: T5X's ``beam_search`` and the others of its family."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import jax.numpy as jnp

from decoding_jax import strategies
from decoding_jax.base import Array, DecodeOutput, LanguageModel, Prompt
from decoding_jax.ops.top_k import top_k
from decoding_jax.pytrees import pytree
from decoding_jax.strategies.beam import competition, length_penalty
from decoding_jax.strategies.beam.loop import RankedBeams, State
from decoding_jax.strategies.beam.stochastic_beam_search import sampling_log_prob_of
from decoding_jax.t5x.decode_fns import calls
from decoding_jax.t5x.decode_fns.calls import (
    Decodes,
    T5XArguments,
    decode_fn,
    open_call,
)

# T5X's networks and callbacks ban tokens by logits at or below this value.
_BANNED = -1e7


@decode_fn(calls.BEAM_ORDER, num_decodes=4)
def beam_search(
    arguments: T5XArguments,
    *,
    alpha: float | Array = 0.6,
    max_decode_len: int | None = None,
    max_decode_step: int | Array = -1,
    min_log_prob: float | Array = -jnp.inf,
) -> Decodes:
    """Beam search with T5X's pool and length penalty, ((5 + length) / 6)^alpha.

    This is T5X's function of the same name with three differences. Where fewer than N hypotheses
    have ended, those that reached the length limit fill the other places, instead of empty ones at
    -1e7. Every score is divided by its length penalty, even if no hypothesis of the row has ended.
    Each row stops separately, so its hypotheses do not depend on other rows, nor on a NaN in
    another hypothesis.

    Args:
      inputs, cache, tokens_to_logits, eos_id, cache_offset, initial_index, transform: see
        ``T5XArguments``. Lengths count from the start token and include the prompt. The output of
        the transform is added to the scores without normalising again.
      num_decodes: N, the number of hypotheses that a row keeps and returns.
      decode_rng: not used.
      alpha: the exponent of the length penalty, a number or ``[B]``.
      max_decode_len: the maximum length of a result, prompt included; None means L.
      max_decode_step: the maximum number of tokens after the start token, or after a prefilled
        prompt; unlimited if 0 or below.
      min_log_prob: a row ends once no running hypothesis has this log-probability.

    Returns:
      Decodes int32 ``[B, N, max_decode_len]`` and scores float32 ``[B, N]``, in ascending order:
      the best finished hypothesis last, and every unfinished one before all finished ones. If the
      vocabulary is too small for N hypotheses, the missing ones have length 0 and score -inf.

    Raises:
      ValueError: for a length or a number of hypotheses below 1.

    Example:
      >>> import jax
      >>> def tokens_to_logits(state):
      ...     return jax.nn.one_hot(state.cur_token[:, 0] + 1, 5), state.cache
      >>> inputs = jnp.array([[0, 2, 0, 0]])
      >>> beam_search(inputs, {}, tokens_to_logits, eos_id=4, num_decodes=2, alpha=0.0)[0]
      Array([[[2, 3, 1, 2],
              [2, 3, 4, 0]]], dtype=int32)
    """
    call, width = open_call(arguments), arguments.num_decodes
    max_length = call.length if max_decode_len is None else max_decode_len
    if max_length < 1:
        raise ValueError(f"max_decode_len: expected 1 or more, got {max_length}")
    limits = call.limits(max_length=max_length)
    step_limit = jnp.asarray(max_decode_step, jnp.int32)
    last = jnp.where(step_limit > 0, jnp.minimum(limits, step_limit), limits)

    # The search is given a limit one above that of the row, so that `CutSearch` ends the row first:
    # hypotheses that reach the limit must not replace finished ones in the pool.
    search = T5XBeamSearch(
        beam_size=width,
        max_new_tokens=max_length + 1,
        length_penalty=t5x_penalty(alpha, call),
        early_stopping="never",
        transform=call.kept_transform,
        stop=call.stop(limits + 1),
    )
    cut = CutSearch(search, last, jnp.asarray(min_log_prob, jnp.float32))
    return call.best_last(call.run(cut), max_length)


@pytree
@dataclasses.dataclass(frozen=True, kw_only=True)
class T5XBeamSearch(RankedBeams):
    """A beam search with the candidates of T5X, of which any of the best 2 N may enter the pool.

    In ``transformers``, and so in ``competition.compete``, only the best N may.
    """

    def compete(
        self, beam: competition.Beam, allowed: Array, log_probs: Array, keys: Any, step: Array
    ) -> tuple[competition.Beam, Array, Array]:
        rules, width = self.rules, allowed.shape[1]
        totals = beam.running.score[..., None] + allowed
        candidates = competition.choose_candidates(rules, beam, totals, log_probs, keys, step)
        pool = competition.merge_pools(
            beam.pool,
            competition.dead_ends(rules, beam, totals, log_probs, step),
            competition.completed_candidates(rules, candidates, 2 * width, step),
        )
        chosen = competition.best_continuing(candidates, width)
        return competition.continue_with(rules, beam.open, candidates, chosen, pool, step)

    def choose(
        self, keys: Array | None, totals: Array, count: int, step: Array
    ) -> tuple[Array, Array]:
        """Of candidates with equal scores, those that continue the hypothesis ranked last win."""
        score, index = top_k(totals, count)
        vocab = totals.shape[-1] // self.width
        order = jnp.lexsort((index % vocab, -(index // vocab), -score), axis=-1)
        score = jnp.take_along_axis(score, order, axis=-1)
        score = jnp.where(score > _BANNED, score, -jnp.inf)
        return score, jnp.take_along_axis(index, order, axis=-1)


@dataclasses.dataclass(frozen=True)
class FromStart:
    """A length penalty for lengths that count from the start token, as in T5X.

    Attributes:
      penalty: a length penalty.
      base: int32 ``[B]``, added to the number of new tokens.
    """

    penalty: length_penalty.LengthPenalty
    base: Array

    def __call__(self, length: Array) -> Array:
        return self.penalty(length + self.base.reshape(-1, *(1,) * (length.ndim - 1)))


def t5x_penalty(alpha: float | Array, call: calls.T5XCall) -> FromStart:
    """T5X's length penalty, ((5 + length) / 6)^alpha."""
    return FromStart(length_penalty.GNMTPenalty(alpha), call.prompt_end)


class CutState(NamedTuple):
    """The state of a search, and the running hypotheses of each row when it was cut.

    Attributes:
      search: the state of the search.
      live: the running hypotheses, of ``length`` tokens each.
      length: int32 ``[B]``.
    """

    search: State
    live: competition.Running
    length: Array


@dataclasses.dataclass(frozen=True)
class CutSearch:
    """A beam search that ends each row at its own limit.

    Attributes:
      search: the beam search.
      last: int32 ``[B]``, the number of tokens at which a row is cut.
      min_log_prob: float32; a row whose running hypotheses are all below it is cut.
    """

    search: T5XBeamSearch
    last: Array
    min_log_prob: Array

    def done(self, state: CutState) -> Array:
        return self.search.done(state.search)

    def init(self, model: LanguageModel, prompt: Prompt, key: Any) -> CutState:
        search = self.search.init(model, prompt, key)
        running = search.beam.running
        return self._cut(CutState(search, running, jnp.zeros_like(self.last)))

    def step(self, model: LanguageModel, prompt: Prompt, state: CutState) -> CutState:
        return self._cut(state._replace(search=self.search.step(model, prompt, state.search)))

    def _cut(self, state: CutState) -> CutState:
        beam, step = state.search.beam, state.search.step
        best_running = beam.running.score.max(-1)
        is_cut = beam.open & ((step >= self.last) | (best_running < self.min_log_prob))

        def keep_if_cut(new: Array, old: Array) -> Array:
            return jnp.where(is_cut.reshape(-1, *(1,) * (new.ndim - 1)), new, old)

        live = competition.Running(*map(keep_if_cut, beam.running, state.live))
        beam = beam._replace(open=beam.open & ~is_cut)
        length = jnp.where(is_cut, step, state.length)
        return CutState(state.search._replace(beam=beam), live, length)

    def finalize(self, prompt: Prompt, state: CutState) -> DecodeOutput:
        """The finished hypotheses, best first, followed by those that were running."""
        pool, live, penalty = state.search.beam.pool, state.live, self.search.length_penalty
        length = jnp.broadcast_to(state.length[:, None], live.score.shape)
        exists = (live.score > -jnp.inf) & (length > 0)
        score = jnp.where(exists, live.score / penalty(jnp.maximum(length, 1)), -jnp.inf)
        joined = competition.Pool(
            jnp.concatenate([pool.tokens, live.tokens], axis=1),
            jnp.concatenate([pool.length, length], axis=1),
            jnp.concatenate([pool.log_prob, live.log_prob], axis=1),
            jnp.concatenate([pool.score, score], axis=1),
            jnp.concatenate([pool.finished, jnp.zeros_like(exists)], axis=1),
        )
        width = pool.score.shape[1]
        place = jnp.broadcast_to(jnp.arange(2 * width, dtype=jnp.int32)[None], joined.score.shape)
        # Hypotheses that ended at NaN logits come after all others and before unused places.
        exists, is_nan = joined.score > -jnp.inf, jnp.isnan(joined.log_prob)
        joined = joined._replace(score=jnp.where(exists & is_nan, jnp.nan, joined.score))
        place = jnp.where(is_nan, place + 2 * width, place)
        order = jnp.argsort(jnp.where(exists, place, 4 * width), axis=-1)[:, :width]
        take = lambda part: jnp.take_along_axis(  # noqa: E731
            part, order.reshape(*order.shape, *(1,) * (part.ndim - 2)), axis=1
        )
        tokens, length, log_prob, score, finished = map(take, joined)
        length = jnp.where(score == -jnp.inf, 0, length)
        return DecodeOutput(tokens, length, log_prob, score, finished, state.search.step)


@pytree
@dataclasses.dataclass(frozen=True, kw_only=True)
class AllDrawn(strategies.StochasticBeamSearch):
    """Returns the sequence that is the threshold of the others too."""

    def finalize(self, prompt: Prompt, state: State) -> DecodeOutput:
        drawn = state.beam
        exists = drawn.perturbed_log_prob > -jnp.inf
        score = sampling_log_prob_of(drawn)
        length = jnp.where(exists, drawn.length, 0)
        return DecodeOutput(drawn.tokens, length, drawn.log_prob, score, drawn.finished & exists)
