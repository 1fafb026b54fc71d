"""Decode functions that search with beams: T5X's ``beam_search``."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp

from decoding_jax.base import Array, DecodeOutput, LanguageModel, Prompt, Transform
from decoding_jax.loop import Steps, run
from decoding_jax.ops.top_k import top_k
from decoding_jax.strategies.beam.competition import Choose, Pool, Rules, Running
from decoding_jax.strategies.beam.length_penalty import GNMTPenalty, LengthPenalty
from decoding_jax.strategies.beam.loop import State, beam_steps, one_beam
from decoding_jax.t5x.decode_fns import call as requests
from decoding_jax.t5x.decode_fns.sampling_settings import KeepForced

# T5X's minus infinity: networks and callbacks ban tokens by logits of this size.
_BANNED = -1e7


def beam_search(
    inputs: Array,
    cache: Any,
    tokens_to_logits: Callable[..., Any],
    eos_id: int | Array,
    num_decodes: int = 4,
    alpha: float | Array = 0.6,
    max_decode_len: int | None = None,
    max_decode_step: int | Array = -1,
    min_log_prob: float | Array = -jnp.inf,
    decode_rng: Array | None = None,
    cache_offset: int = 0,
    initial_index: Array | None = None,
    transform: Transform | None = None,
) -> tuple[Array, Array]:
    """Beam search with T5X's pool and length penalty, ((5 + length) / 6)^alpha.

    T5X's function of this name with three differences. Where fewer than N hypotheses ended, those
    that ran out of length come after them rather than empty ones at -1e7. Every score is divided
    by its length penalty, also where none ended. A row stops by itself, so that its hypotheses do
    not depend on the rows beside it, nor one of them on a NaN in another.

    Args:
      inputs: int32 ``[B, L]``, shifted right: a start token, the prompt, zeros. A non-zero token
        is forced, and adds no score. Lengths count from here, the prompt included.
      cache: T5X's, of B rows.
      tokens_to_logits: T5X's.
      eos_id: the token that ends a text; several as ``[E]``. In a prompt it ends nothing.
      num_decodes: N, hypotheses that a row keeps and returns.
      alpha: a number or ``[B]``.
      max_decode_len: the longest answer, its prompt included; L where None.
      max_decode_step: the most tokens after the start token, or after a prefilled prompt; any
        number if 0 or below.
      min_log_prob: a row ends where no hypothesis that goes on has this log-probability.
      decode_rng: not used.
      cache_offset: 1 where layers are scanned.
      initial_index: int32 ``[B]``, where the last token of each prompt stands, after a prefill.
      transform: of each hypothesis's log-probabilities; what it returns is added as it is.

    Returns:
      Decodes int32 ``[B, N, max_decode_len]`` and scores float32 ``[B, N]``, in rising order:
      the best that ended last, those that did not before all that did. Where the vocabulary has
      not enough hypotheses, length 0 and -inf.

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
    request = requests.read(
        inputs, cache, tokens_to_logits, eos_id, decode_rng, num_decodes, cache_offset,
        initial_index,
    )  # fmt: skip
    most = request.length if max_decode_len is None else max_decode_len
    if most < 1:
        raise ValueError(f"max_decode_len: got {most}; takes 1 or more")
    limits = request.limits(most=most)
    steps_allowed = jnp.asarray(max_decode_step, jnp.int32)
    last = jnp.where(steps_allowed > 0, jnp.minimum(limits, steps_allowed), limits)
    penalty = FromStart(GNMTPenalty(alpha), request.base)

    # One more than a row may have, so that it is `Cut`, not the search, that ends it: what ran
    # out of length is not to push what ended out of the pool.
    stop = request.stop(limits + 1)
    rules = Rules(stop, penalty, "never", _candidates(num_decodes), 2 * num_decodes)
    steps = beam_steps(
        one_beam(rules, num_decodes, most + 1),
        beam_size=num_decodes,
        num_return=num_decodes,
        max_new_tokens=most + 1,
        transform=None if transform is None else KeepForced(transform),
        stop=stop,
    )
    cut = Cut(steps, last, jnp.asarray(min_log_prob, jnp.float32), penalty)
    return request.best_last(run(cut.steps(), request.model, request.prompt), most)


def _candidates(num_decodes: int) -> Choose:
    """The best; of equals, as in T5X, those that continue the hypothesis ranked last."""

    def choose(rule: Any, totals: Array, count: int, step: Array) -> tuple[Array, Array]:
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
