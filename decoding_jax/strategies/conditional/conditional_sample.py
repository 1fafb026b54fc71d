"""Exact draws from the texts of a language: rejection that learns what failed beginnings weigh."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar, NamedTuple

import jax.numpy as jnp

from decoding_jax import codes, fields
from decoding_jax.base import (
    Array,
    Cache,
    CarriedStates,
    DecodeOutput,
    LanguageModel,
    Prefix,
    Prompt,
    Transform,
)
from decoding_jax.loop import as_function, model_calls, stopping
from decoding_jax.loop.inputs import check_transform
from decoding_jax.loop.sequences import (
    Sequences,
    append_token,
    check_lengths,
    empty_sequences,
    new_values,
    output_of_some,
    over_axes,
    per_lane,
)
from decoding_jax.loop.strategy import Strategy
from decoding_jax.ops import random
from decoding_jax.ops.gather import gather_last, where_lanes
from decoding_jax.ops.logits import log_total
from decoding_jax.pytrees import pytree
from decoding_jax.strategies.conditional import failures
from decoding_jax.strategies.conditional.failures import Attempts, Failures
from decoding_jax.transforms import carried

ATTEMPTS = 8
"""How many texts of full length the default budget has room for."""


class ConditionalInfo(NamedTuple):
    """What was accepted, and what that says about the language.

    Attributes:
      model_calls: int32, the prefill and every ``extend``; or ``[B]``, of each row.
      accepted: bool ``[B, N]``, which sequences are samples. The others have no text.
      num_attempts: int32 ``[B]``, how many texts were begun and then accepted or rejected.
      acceptance: float32 ``[B]``, the share of them that was accepted; NaN without any.
      log_language_prob: float32 ``[B]``, in nats: the logarithm of an estimate of the probability
        of the language, ``A / sum_k 1 / U_k`` for A accepted texts and the bound ``U_k`` at the
        beginning of attempt k. It is consistent in A, and -inf without an accepted text. It is too
        high on average where A is small: by a factor of up to A / (A - 1) if nothing is learned and
        no budget ends, and of 1.18 for A = 4 in ``docs/conditional.md``. The estimate of
        ``smc_sample`` is unbiased.
      relative_error: float32 ``[B]``, the standard error of this estimate divided by it,
        ``sqrt((1 - acceptance) / A)``; inf without an accepted text.
      log_bound: float32 ``[B]``, in nats: the logarithm of an upper bound of that probability,
        which is certain; -inf for a language that the model cannot reach.
    """

    model_calls: Array
    accepted: Array
    num_attempts: Array
    acceptance: Array
    log_language_prob: Array
    relative_error: Array
    log_bound: Array


class State(NamedTuple):
    """The state of the loop.

    Attributes:
      cache: the model's cache; each lane draws one text after another in the same slots.
      first_logits: float32 ``[B, V]``, after the prompts.
      sequences: the texts that are being drawn, or were accepted.
      node: int32 ``[B, N]``, the node of each text in ``failures``, -1 where it is not stored.
      log_claim: float32 ``[B, N]``, the bound of each text when its last token was drawn.
      log_start: float32 ``[B, N]``, the bound of the empty text when the text was begun.
      attempts: what the texts have met.
      failures: the beginnings of rejected texts.
      keys: typed keys ``[B, N]``.
      accepted: bool ``[B, N]``.
      closed: bool ``[B, N]``, accepted, at NaN logits, or without room for another attempt.
      num_attempts: int32 ``[B]``.
      log_trials: float32 ``[B]``, the logarithm of the sum over attempts of ``1 / U_k``.
      calls: int32, a scalar or ``[B]``.
      carried: the states of the transform and of the language.
    """

    cache: Cache
    first_logits: Array
    sequences: Sequences
    node: Array
    log_claim: Array
    log_start: Array
    attempts: Attempts
    failures: Failures
    keys: Array
    accepted: Array
    closed: Array
    num_attempts: Array
    log_trials: Array
    calls: Array
    carried: CarriedStates | None


class Drawn(NamedTuple):
    """One more token of each text.

    Attributes:
      sequences: with the token.
      attempts: with what the token has met.
      node: of the longer text.
      log_claim: its bound.
      log_mass: float32 ``[B, N]``, the bound of the text before the token, computed from its
        tokens.
      passed: bool ``[B, N]``, whether that text has not been rejected.
      carried: the states after it.
    """

    sequences: Sequences
    attempts: Attempts
    node: Array
    log_claim: Array
    log_mass: Array
    passed: Array
    carried: CarriedStates | None


@pytree
@dataclasses.dataclass(frozen=True, kw_only=True)
class ConditionalSample(Strategy):
    """Draws independent samples from ``p(text | the text is in the language)``, exactly.

    p is the model after ``transform``. To mask tokens one by one gives another distribution. Here,
    texts are drawn and rejected (Parys et al. 2025, "Constrained Adaptive Rejection Sampling",
    arXiv:2510.01902; Lipkin et al. 2025, "Fast Controlled Generation from Language Models with
    Adaptive Weighted Rejection Sampling", arXiv:2504.05410): each text that fails teaches how much
    of the probability of its beginnings lies outside the language, and later texts are drawn
    without it. A token v after a text x is drawn by ``p(v | x) U(x v)``, where U is a bound of the
    probability that the text ends in the language, 1 where nothing is known. At the longer text,
    the tokens that are allowed give a lower bound ``U'``, and the text goes on with probability
    ``U' / U``; otherwise it is rejected at once. Over a whole text, the bounds cancel: whatever has
    been learned, a text of the language is accepted with a probability proportional to p.

    Only rejected texts teach, and a lane begins a text only while the budget has room for the
    longest. Thus neither the value nor the length of a sample decides what is drawn or accepted
    afterwards, and the accepted samples of a row are independent, each exact up to rounding
    (float32 bounds, some 1e-6 a token).

    Every lane feeds one token in each call of the model. What is not accepted within the budget has
    length 0, ``log_prob`` -inf, and is False in ``info.accepted``; it is never a text that is not a
    sample. ``smc_sample`` gives approximate samples where acceptance is too rare. ``score`` is
    ``log_prob``.

    The key is a typed key, which is folded with each row's index; or typed keys ``[B]``, one for
    each row.

    Attributes:
      num_samples: N, the number of samples of a row.
      language: a transform that bans the tokens which may not follow, such as
        ``transforms.prefix_allowed_tokens``; only what it bans counts. None allows every text.
        Sequences of a trie need their end tokens.
      finished_only: whether a text that ends unfinished, at its limit or without an allowed token,
        is outside the language; by default, if there is one.
      budget: the maximum number of model calls of a row, above ``max_new_tokens``; by default
        ``8 max_new_tokens + 1``.
      max_prefixes: how many beginnings of rejected texts a row remembers.
      max_new_tokens: L, the maximum number of new tokens.
      transform: applied to the logits before the language; it is a part of p.
      stop: when a sequence ends.

    Raises:
      ValueError: for a raw key, a prompt of wrong shapes, ``num_samples`` below 1, a length that
        the model cannot hold, a budget without room for a text, or a model that is not ``ragged``.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from decoding_jax import Prompt, Stop, transforms
      >>> from decoding_jax.testing import TableLM
      >>> model = TableLM.random(jax.random.key(0), 5)
      >>> prompt = Prompt(jnp.array([[1, 2]]), jnp.array([2]))
      >>> trie = transforms.Trie.from_sequences([(2, 3), (4,)], eos_ids=1)
      >>> output = conditional_sample(
      ...     model, prompt, jax.random.key(1), num_samples=4, max_new_tokens=4, budget=64,
      ...     language=transforms.prefix_allowed_tokens(trie), stop=Stop(eos_ids=1),
      ... )
      >>> output.info.accepted.tolist()
      [[True, True, True, True]]
    """

    num_samples: int = fields.count()
    language: Transform | None = fields.field(check_transform, default=None)
    finished_only: bool | None = fields.switch(default=None)
    budget: int | None = fields.count(default=None)
    max_prefixes: int = fields.count(default=1024)

    draws: ClassVar[bool] = True

    @property
    def only_finished(self) -> bool:
        """Whether texts that end unfinished are outside the language."""
        has_language = self.language is not None
        return has_language if self.finished_only is None else self.finished_only

    @property
    def banning(self) -> tuple[Transform | None, Transform | None]:
        """The transform and the language, whose states are carried."""
        return self.transform, self.language

    def check(self, model: LanguageModel) -> None:
        """See ``Strategy.check``.

        Raises:
          ValueError: for a model that is not ragged, or a budget without room for a text.
        """
        if not model.ragged:
            raise ValueError(
                "model: expected one with ragged=True, since texts end and begin anew one by one, "
                "got one whose rows advance in step"
            )
        if self.max_new_tokens is not None:
            self.max_calls(self.max_new_tokens)

    def max_calls(self, max_new_tokens: int) -> int:
        """The budget.

        Raises:
          ValueError: for one without room for a text of ``max_new_tokens``.
        """
        if self.budget is None:
            return ATTEMPTS * max_new_tokens + 1
        if self.budget <= max_new_tokens:
            expected = f"an int above max_new_tokens, which is {max_new_tokens}"
            raise fields.error("budget", expected, self.budget)
        return self.budget

    def init(self, model: LanguageModel, prompt: Prompt, key: Any) -> State:
        """See ``Strategy.init``. The first tokens are drawn by the first step."""
        self.check(model)
        batch, size = prompt.tokens.shape
        lanes, limit = self.num_samples, check_lengths(model, size, self.max_new_tokens)
        output, cache = model_calls.prefill(model, prompt, lanes=lanes, slots=max(limit - 1, 1))
        empty = empty_sequences(stopping.limits(self.stop, batch, limit), lanes, limit)
        zeros = jnp.zeros((batch, lanes), jnp.float32)
        recorded = jnp.zeros(empty.tokens.shape, jnp.float32)
        return State(
            cache=cache,
            first_logits=output.logits[:, 0, 0],
            sequences=empty,
            node=empty.length,
            log_claim=zeros,
            log_start=zeros,
            attempts=Attempts(recorded, recorded),
            failures=failures.empty(batch, self.max_prefixes + 1),
            keys=random.lane_keys(random.row_keys(key, batch), lanes),
            accepted=empty.done & (not self.only_finished),
            closed=empty.done,
            num_attempts=empty.length[:, 0],
            log_trials=jnp.full(batch, -jnp.inf, jnp.float32),
            calls=jnp.int32(1),
            carried=carried.begin(self.banning, prompt, lanes),
        )

    def step(self, model: LanguageModel, prompt: Prompt, state: State) -> State:
        """See ``Strategy.step``: every text gets a token, is accepted, or begins anew."""
        sequences = state.sequences
        start = jnp.maximum(sequences.length - 1, 0)
        token = gather_last(sequences.tokens, start)
        output, cache = model_calls.extend(model, state.cache, token[..., None], start)
        is_first = (sequences.length == 0)[..., None]
        logits = jnp.where(is_first, state.first_logits[:, None], output.logits[:, :, 0])
        drawn = self.drawn(logits, prompt, state)
        state = self.judged(state._replace(cache=cache, calls=state.calls + 1), drawn)
        begins = state.sequences.length == 0
        begun = carried.begin(self.banning, prompt, self.num_samples)
        return state._replace(carried=where_lanes(begins, begun, drawn.carried))

    def drawn(self, logits: Array, prompt: Prompt, state: State) -> Drawn:
        """Draws a token of each text after ``logits [B, N, V]``."""
        old, limit = state.sequences, state.sequences.tokens.shape[-1]
        path = Prefix(*prompt, old.tokens[:, :, None], old.length[..., None])
        path = carried.advance(self.banning, path, state.carried)
        allowed = model_calls.allowed_logits(
            logits[:, :, None], path.part(0), self.stop, self.transform
        )
        log_probs, in_language = model_calls.in_language(
            allowed[:, :, 0],
            path.part(1),
            self.language,
            self.stop,
            only_finished=self.only_finished,
        )
        is_child = failures.children(state.failures, state.node)
        bounds = failures.bounds_of_tokens(state.failures, is_child, log_probs.shape[-1])
        masses = jnp.where(in_language, log_probs + bounds, -jnp.inf)

        # The text before goes on with the probability that its bound has fallen by.
        log_mass = log_total(masses)
        is_first = old.length == 0
        log_claim = jnp.where(is_first, log_mass, state.log_claim)
        # Draws and decisions have positions of their own.
        position = 2 * per_lane(state.calls, self.num_samples)
        chance = random.log_uniform(random.bits_at(state.keys, position + 1))
        is_dead_end = allowed[:, :, 0].max(-1) == -jnp.inf
        passed = (log_mass > -jnp.inf) & (chance <= log_mass - log_claim)
        passed |= is_dead_end & (not self.only_finished)

        token = codes.draw(masses, random.bits_at(state.keys, position))
        new = append_token(old, token, logits, masses, self.stop, limit)
        vocab = jnp.arange(masses.shape[-1], dtype=jnp.int32)[None, None]
        rest = jnp.where(vocab == token[..., None], -jnp.inf, masses)
        values = gather_last(log_probs, token), log_total(rest)
        pairs = zip(values, state.attempts, strict=True)
        attempts = Attempts(*(new_values(old, new, value, kept) for value, kept in pairs))
        return Drawn(
            sequences=new,
            attempts=attempts,
            node=failures.child_at(state.failures, is_child, token),
            log_claim=gather_last(bounds, token),
            log_mass=log_mass,
            passed=passed,
            carried=path.carried,
        )

    def judged(self, state: State, drawn: Drawn) -> State:
        """Accepts and rejects texts; rejected ones teach, and their lanes begin anew."""
        old, new = state.sequences, drawn.sequences
        is_open = ~state.closed
        is_first = old.length == 0
        log_start = jnp.where(is_first & is_open, drawn.log_mass, state.log_start)
        is_nan = is_open & jnp.isnan(new.log_prob)
        is_cut = new.done & ~new.finished & self.only_finished
        rejected = is_open & ~is_nan & (~drawn.passed | is_cut)
        accepted = is_open & ~is_nan & ~rejected & new.done

        # A text that was not rejected before its last token failed with that token.
        fails_late = drawn.passed & (new.length > old.length)
        depth = old.length + fails_late.astype(jnp.int32)
        log_bound = jnp.where(fails_late, -jnp.inf, drawn.log_mass)
        learned = failures.learn(
            state.failures, drawn.attempts, new.tokens, depth, log_bound, rejected
        )
        ended = accepted | rejected
        trials = jnp.where(ended & (log_start > -jnp.inf), -log_start, -jnp.inf)
        log_trials = jnp.logaddexp(state.log_trials, log_total(trials))

        batch, lanes, limit = new.tokens.shape
        limits = stopping.limits(self.stop, batch, limit)
        room = over_axes(state.calls, 1) + limits <= self.max_calls(limit)
        is_hopeless = learned.log_bound[:, 0] == -jnp.inf
        closed = state.closed | accepted | is_nan
        closed |= rejected & ~(room & ~is_hopeless)[:, None]
        begun = empty_sequences(limits, lanes, limit)
        return state._replace(
            sequences=where_lanes(rejected, begun, where_lanes(is_open, new, old)),
            node=jnp.where(rejected, 0, drawn.node),
            log_claim=jnp.where(rejected, 0.0, drawn.log_claim),
            log_start=log_start,
            attempts=drawn.attempts,
            failures=learned,
            accepted=state.accepted | accepted,
            closed=closed,
            num_attempts=state.num_attempts + ended.sum(-1, dtype=jnp.int32),
            log_trials=log_trials,
        )

    def row_done(self, state: State) -> Array:
        """See ``Strategy.row_done``."""
        return state.closed.all(-1)

    def finalize(self, prompt: Prompt, state: State) -> DecodeOutput:
        """See ``Strategy.finalize``: what is not accepted has no text."""
        sequences = state.sequences
        exists = state.accepted | jnp.isnan(sequences.log_prob)
        count = state.accepted.sum(-1, dtype=jnp.int32).astype(jnp.float32)
        acceptance = count / state.num_attempts.astype(jnp.float32)
        some = count > 0
        error = jnp.sqrt((1.0 - acceptance) / jnp.maximum(count, 1.0))
        info = ConditionalInfo(
            model_calls=state.calls,
            accepted=state.accepted,
            num_attempts=state.num_attempts,
            acceptance=acceptance,
            log_language_prob=jnp.where(some, jnp.log(count) - state.log_trials, -jnp.inf),
            relative_error=jnp.where(some, error, jnp.inf),
            log_bound=state.failures.log_bound[:, 0],
        )
        return output_of_some(sequences, exists, info)


conditional_sample = as_function(ConditionalSample)
