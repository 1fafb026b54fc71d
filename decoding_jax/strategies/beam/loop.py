"""The loop of the beam family: score, choose, finish, continue, reorder.

Each step feeds the last tokens of K hypotheses to the model, scores all their continuations, and
lets these compete. The strategies differ in how they compete, by methods of ``BeamStrategy``;
``RankedBeams`` has those of beam search itself.
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from decoding_jax import fields
from decoding_jax.base import (
    Array,
    CarriedStates,
    DecodeOutput,
    LanguageModel,
    Prefix,
    Prompt,
    Stop,
    Transform,
)
from decoding_jax.loop import model_calls, shared_cache
from decoding_jax.loop.search_trace import ABSENT, CUT, EXPANDED, FINISHED, SearchTrace
from decoding_jax.loop.sequences import check_lengths, over_axes
from decoding_jax.loop.shared_cache import SharedCache
from decoding_jax.loop.strategy import Strategy
from decoding_jax.ops.gather import gather_items
from decoding_jax.ops.logits import are_nan, log_softmax
from decoding_jax.strategies.beam import competition
from decoding_jax.strategies.beam.competition import (
    Beam,
    EarlyStopping,
    Pool,
    Rules,
    join_pools,
    still_running,
)
from decoding_jax.strategies.beam.length_penalty import LengthPenalty, check_length_penalty
from decoding_jax.transforms import carried


class BeamInfo(NamedTuple):
    """Statistics of a beam search.

    Attributes:
      model_calls: int32, the prefill and every ``extend``; or ``[B]``, of each row.
      trace: with ``with_trace``.
    """

    model_calls: Array
    trace: SearchTrace | None = None


class State(NamedTuple):
    """The state of the loop.

    Attributes:
      shared: the cache of the hypotheses.
      beam: the hypotheses: a ``Beam``, or the pytree that a strategy keeps in its place.
      token: int32 ``[B, K]``, the last token of each hypothesis, which is not in the cache yet.
      keys: typed keys ``[B]``, or None for a search that draws nothing.
      step: int32, a scalar or ``[B]``, the number of tokens of each running hypothesis.
      carried: the states of the transform, after the tokens of each hypothesis but the last.
      trace: the hypotheses of each step, ``[B, L, H, ...]``; None without ``with_trace``.
    """

    shared: SharedCache
    beam: Any
    token: Array
    keys: Array | None
    step: Array
    carried: CarriedStates | None
    trace: SearchTrace | None = None


def score_tokens(
    logits: Array, path: Prefix, stop: Stop, transform: Transform | None
) -> tuple[Array, Array]:
    """Scores every next token of every hypothesis.

    Transforms are applied to log-probabilities. Their result is added to the score of the
    hypothesis without normalising again, so that a ban does not raise the scores of other tokens.

    Args:
      logits: float32 ``[B, K, V]``, after the hypotheses.
      path: the hypotheses, ``[B, K, 1, L]``.
      stop: for its ``min_new_tokens``.
      transform: applied to each hypothesis with its own path; None changes nothing.

    Returns:
      The transformed log-probabilities, and the model's, both float32 ``[B, K, V]``. Where any of
      the model's logits is NaN, the former are all -inf, and the latter all NaN.
    """
    log_probs = log_softmax(logits)
    allowed = model_calls.allowed_logits(log_probs[:, :, None], path, stop, transform)[:, :, 0]
    if transform is not None:
        allowed = jnp.where(are_nan(log_probs)[..., None], -jnp.inf, allowed)
    return allowed, log_probs


def make_output(pool: Pool, num_return: int, model_calls: Array) -> DecodeOutput:
    """The first entries of a pool. Unused ones have length 0, log-probability and score -inf.

    Those that ended at NaN logits have log-probability and score NaN.
    """
    tokens, length, log_prob, score, finished = (part[:, :num_return] for part in pool)
    exists = score > -jnp.inf
    return DecodeOutput(
        tokens=jnp.where(exists[..., None], tokens, 0),
        length=jnp.where(exists, length, 0),
        log_prob=jnp.where(exists, log_prob, -jnp.inf),
        score=jnp.where(exists & jnp.isnan(log_prob), jnp.nan, score),
        finished=finished & exists,
        info=BeamInfo(model_calls),
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class BeamStrategy(Strategy):
    """A search in which K hypotheses of a row continue at every step.

    A ``beam`` is a ``Beam``, or any pytree that the strategy keeps in its place.

    Attributes:
      beam_size: K, the number of hypotheses of a row.
      num_return: N, at most K; by default K.
      with_trace: whether ``info`` has a ``trace`` of the hypotheses, a ``SearchTrace``.
    """

    beam_size: int = fields.count()
    num_return: int | None = fields.count(default=None)
    with_trace: bool = fields.switch(default=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.num_return is not None and self.num_return > self.beam_size:
            expected = f"1 to beam_size, which is {self.beam_size}"
            raise fields.error("num_return", expected, self.num_return)

    @property
    def num_outputs(self) -> int:
        """N."""
        return self.beam_size if self.num_return is None else self.num_return

    @property
    def width(self) -> int:
        """The number of hypotheses that the search holds, K."""
        return self.beam_size

    def row_keys(self, key: Any, batch_size: int) -> Any:
        """The keys of the rows, for a strategy that draws."""
        return None

    def start(self, batch_size: int, keys: Any, max_new_tokens: int) -> Any:
        """The beam before the first token."""
        raise NotImplementedError

    def tokens(self, beam: Any) -> Array:
        """The running hypotheses, int32 ``[B, K, L]``."""
        raise NotImplementedError

    def compete(
        self, beam: Any, allowed: Array, log_probs: Array, keys: Any, step: Array
    ) -> tuple[Any, Array, Array]:
        """The stages choose, finish and continue of a step; see ``competition.compete``."""
        raise NotImplementedError

    def is_open(self, beam: Any) -> Array:
        """Whether the search of each row continues, bool ``[B]``."""
        raise NotImplementedError

    def result(self, beam: Any, step: Array) -> Pool:
        """The sequences to return, best first."""
        raise NotImplementedError

    def hypotheses(self, beam: Any, step: Array) -> Pool:
        """Every hypothesis that may still be returned, or continued, in any order."""
        raise NotImplementedError

    def init(self, model: LanguageModel, prompt: Prompt, key: Any) -> State:
        """See ``Strategy.init``. All hypotheses continue the prompt; nothing is reordered."""
        batch, size = prompt.tokens.shape
        length = check_lengths(model, size, self.max_new_tokens)
        logits, shared = shared_cache.open_cache(model, prompt, self.width, length)
        logits = jnp.broadcast_to(logits[:, None], (batch, self.width, logits.shape[-1]))
        token = jnp.zeros((batch, self.width), jnp.int32)
        keys = self.row_keys(key, batch)
        states = carried.begin(self.transform, prompt, self.width)
        beam = self.start(batch, keys, length)
        trace = self._no_trace(beam, length) if self.with_trace else None
        state = State(shared, beam, token, keys, jnp.int32(0), states, trace)
        return self.advance(logits, prompt, state)[0]

    def step(self, model: LanguageModel, prompt: Prompt, state: State) -> State:
        """See ``Strategy.step``."""
        logits, shared = shared_cache.extend_hypotheses(model, prompt, state.shared, state.token)
        state, parent = self.advance(logits, prompt, state)
        # Reorder: hypothesis k now continues the hypothesis parent[k] of the step before.
        return state._replace(shared=shared_cache.reorder(model, shared, parent))

    def advance(self, logits: Array, prompt: Prompt, state: State) -> tuple[State, Array]:
        """Lets the continuations compete; returns the state and int32 ``[B, K]``, the parents."""
        # Score: every next token of every hypothesis.
        beam, step = state.beam, state.step
        tokens = self.tokens(beam)
        length = jnp.broadcast_to(over_axes(step, 2), tokens.shape[:2])
        path = Prefix(*prompt, tokens[:, :, None], length[..., None])
        path = carried.advance(self.transform, path, state.carried)
        allowed, log_probs = score_tokens(logits, path, self.stop, self.transform)
        # Choose, finish, continue: candidates, those that end, and those that go on.
        beam, token, parent = self.compete(beam, allowed, log_probs, state.keys, step)
        states = jax.tree.map(lambda x: gather_items(x, parent), path.carried)
        trace = None if state.trace is None else self._traced(state.trace, beam, step + 1)
        state = state._replace(beam=beam, token=token, step=step + 1, carried=states, trace=trace)
        return state, parent

    def _no_trace(self, beam: Any, max_new_tokens: int) -> SearchTrace:
        """The trace before the first step."""
        batch, width = self.hypotheses(beam, jnp.int32(0)).length.shape
        none = jnp.zeros((batch, max_new_tokens, width), jnp.int32)
        tokens = jnp.zeros((*none.shape, max_new_tokens), jnp.int32)
        return SearchTrace(tokens, none, none.astype(jnp.float32), none)

    def _traced(self, trace: SearchTrace, beam: Any, step: Array) -> SearchTrace:
        """The trace with the hypotheses of ``step`` tokens, which are new."""
        tokens, length, log_prob, score, finished = self.hypotheses(beam, step)
        exists = (score > -jnp.inf) & (length == over_axes(step, 2))
        kind = jnp.where(self.is_open(beam)[:, None], EXPANDED, CUT)
        kind = jnp.where(finished, FINISHED, kind)
        new = SearchTrace(tokens, length, log_prob, jnp.where(exists, kind, ABSENT))
        place = jnp.arange(trace.kind.shape[1], dtype=jnp.int32)[None, :, None]
        is_new = jnp.broadcast_to(place == over_axes(step - 1, 3), trace.kind.shape)

        def put(old: Array, value: Array) -> Array:
            where = is_new.reshape(is_new.shape + (1,) * (old.ndim - 3))
            return jnp.where(where, value[:, None], old)

        return SearchTrace(*map(put, trace, new))

    def row_done(self, state: State) -> Array:
        """See ``Strategy.row_done``."""
        return ~self.is_open(state.beam)

    def finalize(self, prompt: Prompt, state: State) -> DecodeOutput:
        """See ``Strategy.finalize``."""
        output = make_output(self.result(state.beam, state.step), self.num_outputs, state.step)
        if state.trace is None:
            return output
        of_all = (x.reshape(x.shape[0], -1, *x.shape[3:]) for x in state.trace)
        return output._replace(info=BeamInfo(state.step, SearchTrace(*of_all)))

    def settled(self, state: State) -> Array:
        """See ``Strategy.settled``. A row returns one sequence, but not always a second."""
        shared = shared_tokens(self.hypotheses(state.beam, state.step))[:, None]
        return jnp.where(jnp.arange(self.num_outputs)[None] == 0, shared, 0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class RankedBeams(BeamStrategy):
    """A search in which the hypotheses of a row compete by score, and a pool keeps the best.

    Attributes:
      length_penalty: a number p, for division by length^p; ``[B]``, one for each row; or a function
        such as ``GNMTPenalty(0.6)``.
      early_stopping: when a row with a full pool stops (see ``competition.Rules``).
    """

    length_penalty: Any = fields.field(check_length_penalty, shared_axes=0, default=0.0)
    early_stopping: EarlyStopping = fields.choice(True, False, "never", default=False)

    @property
    def rules(self) -> Rules:
        """How hypotheses are chosen, ended and ranked."""
        penalty: LengthPenalty = self.length_penalty
        return Rules(self.stop, penalty, self.early_stopping, self.choose)

    def choose(
        self, keys: Array | None, totals: Array, count: int, step: Array
    ) -> tuple[Array, Array]:
        """Chooses the candidates; see ``competition.ChooseCandidates``."""
        return competition.best_candidates(keys, totals, count, step)

    def start(self, batch_size: int, keys: Any, max_new_tokens: int) -> Any:
        """See ``BeamStrategy.start``."""
        return competition.initial_beam(batch_size, self.width, max_new_tokens, self.stop)

    def tokens(self, beam: Beam) -> Array:
        """See ``BeamStrategy.tokens``."""
        return beam.running.tokens

    def compete(
        self, beam: Any, allowed: Array, log_probs: Array, keys: Any, step: Array
    ) -> tuple[Any, Array, Array]:
        """See ``competition.compete``."""
        return competition.compete(self.rules, beam, allowed, log_probs, keys, step)

    def is_open(self, beam: Any) -> Array:
        """See ``BeamStrategy.is_open``."""
        return beam.open

    def result(self, beam: Any, step: Array) -> Pool:
        """See ``BeamStrategy.result``."""
        return competition.final_pool(self.rules, beam, step)

    def hypotheses(self, beam: Any, step: Array) -> Pool:
        """See ``BeamStrategy.hypotheses``."""
        return every_hypothesis(self.rules, beam, step)


def every_hypothesis(rules: Rules, beam: Beam, step: Array) -> Pool:
    """The pool and the running hypotheses of open rows, ``[B, 2 K]``, in no order."""
    return join_pools(beam.pool, still_running(rules, beam, step))


def split_pool(pool: Pool, is_met: Array) -> tuple[Pool, Pool]:
    """The entries of a pool that meet the constraints, and the other entries.

    Those that ended at NaN logits are among the others, of which they rank last.
    """
    is_met &= ~jnp.isnan(pool.log_prob)
    met = pool._replace(score=jnp.where(is_met, pool.score, -jnp.inf))
    return met, pool._replace(score=jnp.where(is_met, -jnp.inf, pool.score))


def shared_tokens(pool: Pool) -> Array:
    """The number of leading tokens that all entries of a pool share, int32 ``[B]``.

    Every sequence that a search returns is one of its present hypotheses or continues one, so all
    returned sequences begin with these tokens.
    """
    exists = pool.score > -jnp.inf
    one = jnp.take_along_axis(pool.tokens, exists.argmax(-1)[:, None, None], axis=1)
    is_shared = ((pool.tokens == one) | ~exists[..., None]).all(1)
    shared = jnp.cumprod(is_shared.astype(jnp.int32), axis=-1).sum(-1, dtype=jnp.int32)
    shortest = jnp.where(exists, pool.length, pool.tokens.shape[-1]).min(-1)
    return jnp.where(exists.any(-1), jnp.minimum(shared, shortest), 0)
