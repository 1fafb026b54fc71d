"""Sequential Monte Carlo: particles with weights, resampled while they grow.

Lew, Zhi-Xuan, Grand & Mansinghka 2023, "Sequential Monte Carlo Steering of Large Language Models
using Probabilistic Programs"; Loula et al. 2025, "Syntactic and Semantic Control of Large Language
Models via Sequential Monte Carlo".
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from decoding_jax import codes, fields, rows
from decoding_jax.base import (
    Array,
    CarriedStates,
    DecodeOutput,
    LanguageModel,
    Prefix,
    Prompt,
    Transform,
)
from decoding_jax.codes import point_sets
from decoding_jax.loop import as_function, model_calls, shared_cache, stopping
from decoding_jax.loop.inputs import check_transform
from decoding_jax.loop.sequences import (
    Sequences,
    append_token,
    check_lengths,
    empty_sequences,
    output_of_some,
    per_lane,
)
from decoding_jax.loop.shared_cache import SharedCache
from decoding_jax.loop.strategy import Strategy
from decoding_jax.ops import exact, random
from decoding_jax.ops.gather import gather_items, gather_last
from decoding_jax.ops.logits import clean, log_total
from decoding_jax.pytrees import pytree
from decoding_jax.transforms import carried

RESAMPLING = {"systematic": "lattice", "stratified": "stratified", "multinomial": "iid"}
"""The points of the unit interval at which the particles that go on are read off."""

Potential = Callable[[Prefix, Array], Array]
"""``(prefix, done) -> float32 [B, N, 1]``: the logarithm of a potential, in nats, of each text."""


class SMCInfo(NamedTuple):
    """The weights of the particles, and what they estimate.

    Attributes:
      model_calls: int32, the prefill and every ``extend``; or ``[B]``, of each row.
      log_weight: float32 ``[B, N]``: the logarithm of each particle's share of the weight of its
        row. The shares sum to 1, and are equal unless ``weighted``; -inf for a particle that the
        target excludes.
      log_normaliser: float32 ``[B]``, in nats: the logarithm of an unbiased estimate of the
        target's normaliser, which is the probability of the language where nothing else weighs.
        -inf where no particle has weight, and NaN where one met logits that are NaN.
      effective_sample_size: float32 ``[B]``, from 1 to N: ``(sum w)^2 / sum w^2`` of the weights
        since they were last resampled; 0 where no particle has weight.
      num_resamplings: int32 ``[B]``, how often the particles were resampled before they ended.
    """

    model_calls: Array
    log_weight: Array
    log_normaliser: Array
    effective_sample_size: Array
    num_resamplings: Array


class Particles(NamedTuple):
    """N particles a row.

    Attributes:
      sequences: their texts.
      token: int32 ``[B, N]``, the last token of each, which is not in the cache yet.
      log_weight: float32 ``[B, N]``, since the last resampling.
      log_potential: float32 ``[B, N]``, of the texts so far; 0 before the first token.
      carried: the states of the transform, the language and the proposal, after the tokens of each
        text but the last.
    """

    sequences: Sequences
    token: Array
    log_weight: Array
    log_potential: Array
    carried: CarriedStates | None


class State(NamedTuple):
    """The state of the loop.

    Attributes:
      shared: the cache of the particles.
      particles: the particles.
      token_keys: typed keys ``[B, N]``, by which lanes draw tokens.
      keys: typed keys ``[B]``, by which rows resample.
      log_normaliser: float32 ``[B]``, the mean weights before each resampling, multiplied.
      num_resamplings: int32 ``[B]``.
      proposing: the cache of a ``proposal`` that is a model; None without one.
      step: int32, a scalar or ``[B]``, the number of tokens of each particle that is not done.
    """

    shared: SharedCache
    particles: Particles
    token_keys: Array
    keys: Array
    log_normaliser: Array
    num_resamplings: Array
    proposing: SharedCache | None
    step: Array


def _check_proposal(name: str, proposal: Any) -> Any:
    if hasattr(proposal, "prefill") and not isinstance(proposal, type):
        return proposal
    if hasattr(proposal, "bind"):
        raise fields.error(name, "a transform, or a model that is bound to its inputs", proposal)
    return check_transform(name, proposal)


def _check_potential(name: str, potential: Any) -> Any:
    if isinstance(potential, type) or not callable(potential):
        raise fields.error(name, "a function of (prefix, done)", potential)
    return potential


@pytree
@dataclasses.dataclass(frozen=True, kw_only=True)
class SMCSample(Strategy):
    """Samples texts by particles: from the model, given a language, and weighed by a potential.

    The target is ``p(x) psi(x)``, normalised over texts x. p is the model after ``transform``. A
    ``language`` bans tokens, and psi is then 0 for every text with a banned one; a ``potential``
    multiplies psi by its value for the whole text. To mask tokens one by one gives another
    distribution: it never goes back from a beginning that has hardly any allowed continuation.

    N particles grow by a token a step. Each draws it from p among the allowed tokens, which hold a
    mass m of p, and its weight is multiplied by m, and by the ratio of the potentials after and
    before the token (Loula et al. 2025). Where the effective sample size of the weights falls below
    ``ess_threshold`` N, N particles are drawn from them, with equal weights: those that have no
    future are replaced by copies of others. The mean weight estimates the normaliser without bias
    for any N. The distribution of a text differs from the target by O(1 / N).

    A ``language`` is any transform. It is given log-probabilities, and its result is the logarithm
    of what each token adds to the target; one that changes more than what is banned, such as
    ``logit_bias``, changes the target by as much. Sequences of a trie need their end tokens.

    If the model has ``tree``, particles are nodes of one tree in the cache, and resampling moves no
    key or value, but for many on a CPU (see ``loop.shared_cache``).

    The key is a typed key, which is folded with each row's index; or typed keys ``[B]``, one for
    each row. ``score`` is ``log_prob``, and ``info`` is an ``SMCInfo``. Particles of weight 0 have
    length 0 and ``log_prob`` -inf: all N, if no particle of the row reached the language.

    Attributes:
      num_samples: N, the number of particles of a row.
      language: a transform that bans the tokens which may not follow, such as
        ``transforms.prefix_allowed_tokens``; None allows every text.
      potential: a function ``(prefix, done)`` on the device, which gives float32 ``[B, N, 1]``: the
        logarithm of the potential of each text so far, in nats. ``prefix`` is a ``Prefix`` with
        tokens ``[B, N, 1, L]``, and ``done``, bool ``[B, N, 1]``, says which texts are whole. The
        values of whole texts define the target; those before only guide the particles. NaN counts
        as -inf, and +inf as the largest float. None is 0 for every text.
      proposal: what tokens are drawn by in place of the target's next token: a transform of its
        logits, or a language model of the same vocabulary, such as a draft, bound to the same rows.
        Weights are multiplied by the ratio of the target to it. What it bans has no samples, unless
        it bans all; so it should ban nothing that the target allows.
      finished_only: whether a text that ends unfinished, at its limit or without an allowed token,
        is outside the target; by default, if there is a language.
      resampling: at which points the weights are read off: ``systematic`` (one shift of N equal
        steps), ``stratified`` (one in each of N cells), or ``multinomial`` (independent points).
      ess_threshold: from 0 (particles are never resampled) to 1: a number or float32 ``[B]``.
      weighted: whether the output keeps the weights of the last particles, ``info.log_weight``, as
        estimates need. Otherwise the last particles are resampled, and texts count equally.
      max_new_tokens: L, the maximum number of new tokens.
      transform: applied to the logits before the language; it is a part of p.
      stop: when a sequence ends.

    Raises:
      ValueError: for a raw key, a prompt of wrong shapes, ``num_samples`` below 1, a length that
        the model cannot hold, a potential of another shape, a proposal of another vocabulary, or a
        model with neither ``tree`` nor ``select``.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from decoding_jax import Prompt, Stop, transforms
      >>> from decoding_jax.testing import TableLM
      >>> model = TableLM.random(jax.random.key(0), 5)
      >>> prompt = Prompt(jnp.array([[1, 2]]), jnp.array([2]))
      >>> trie = transforms.Trie.from_sequences([(2, 3), (4,)], eos_ids=1)
      >>> output = smc_sample(
      ...     model, prompt, jax.random.key(1), num_samples=8, max_new_tokens=4,
      ...     language=transforms.prefix_allowed_tokens(trie), stop=Stop(eos_ids=1),
      ... )
      >>> bool(output.finished.all()), bool(jnp.exp(output.info.log_normaliser[0]) < 1)
      (True, True)
    """

    num_samples: int = fields.count()
    language: Transform | None = fields.field(check_transform, default=None)
    potential: Potential | None = fields.field(_check_potential, default=None)
    proposal: Any = fields.field(_check_proposal, default=None)
    finished_only: bool | None = fields.switch(default=None)
    resampling: str = fields.choice(*RESAMPLING, default="systematic")
    ess_threshold: Any = fields.probability(default=0.5)
    weighted: bool = fields.switch(default=False)

    draws: ClassVar[bool] = True

    @property
    def only_finished(self) -> bool:
        """Whether texts that end unfinished are outside the target."""
        has_language = self.language is not None
        return has_language if self.finished_only is None else self.finished_only

    @property
    def weighs_tokens(self) -> bool:
        """Whether the mass that tokens are drawn from may differ from 1."""
        return self.language is not None or self.only_finished or self.proposal is not None

    @property
    def changing(self) -> tuple[Any, ...]:
        """The transforms whose states are carried."""
        proposal = None if self.proposing_model is not None else self.proposal
        return self.transform, self.language, proposal

    @property
    def proposing_model(self) -> Any:
        """The ``proposal`` that is a model; None without one."""
        return self.proposal if hasattr(self.proposal, "prefill") else None

    @property
    def widens(self) -> bool:
        return self.proposing_model is None or getattr(self.proposal, "widens", False)

    def tilted(self, log_probs: Array) -> Array:
        """The logarithm of what each token adds to the target, before the language.

        Args:
          log_probs: float32 ``[B, N, V]``, those of p.
        """
        return log_probs

    def init(self, model: LanguageModel, prompt: Prompt, key: Any) -> State:
        """See ``Strategy.init``. All particles continue the prompt; none is resampled yet."""
        batch, size = prompt.tokens.shape
        lanes, limit = self.num_samples, check_lengths(model, size, self.max_new_tokens)
        logits, shared = shared_cache.open_cache(model, prompt, lanes, limit)
        proposed, proposing = None, None
        if self.proposing_model is not None:
            check_lengths(self.proposing_model, size, limit)
            proposed, proposing = shared_cache.open_cache(
                self.proposing_model, prompt, lanes, limit
            )
            if proposed.shape[-1] != logits.shape[-1]:
                expected = f"a model of the target's {logits.shape[-1]} tokens"
                raise ValueError(f"proposal: expected {expected}, got one of {proposed.shape[-1]}")
            proposed = jnp.broadcast_to(proposed[:, None], (batch, lanes, proposed.shape[-1]))
        empty = empty_sequences(stopping.limits(self.stop, batch, limit), lanes, limit)
        drawing, resampling = random.split(random.row_keys(key, batch))
        zeros = jnp.zeros((batch, lanes), jnp.float32)
        excluded = empty.done & self.only_finished  # Rows whose limit is 0.
        state = State(
            shared=shared,
            particles=Particles(
                sequences=empty,
                token=empty.length,
                log_weight=jnp.where(excluded, -jnp.inf, zeros),
                log_potential=zeros,
                carried=carried.begin(self.changing, prompt, lanes),
            ),
            token_keys=random.lane_keys(drawing, lanes),
            keys=resampling,
            log_normaliser=zeros[:, 0],
            num_resamplings=empty.length[:, 0],
            proposing=proposing,
            step=jnp.int32(0),
        )
        logits = jnp.broadcast_to(logits[:, None], (batch, lanes, logits.shape[-1]))
        particles = self.grown(logits, proposed, prompt, state)
        return state._replace(particles=particles, step=jnp.int32(1))

    def step(self, model: LanguageModel, prompt: Prompt, state: State) -> State:
        """See ``Strategy.step``: tokens are fed, the next ones drawn and weighed; resampling."""
        token = state.particles.token
        logits, shared = shared_cache.extend_hypotheses(model, prompt, state.shared, token)
        proposed, proposing = None, state.proposing
        if proposing is not None:
            proposed, proposing = shared_cache.extend_hypotheses(
                self.proposing_model, prompt, proposing, token
            )
        particles = self.grown(logits, proposed, prompt, state)
        state = state._replace(particles=particles, step=state.step + 1)
        size = effective_sample_size(particles.log_weight)
        threshold = rows.per_row(self, "ess_threshold", size)
        wanted = (size < threshold * self.num_samples) & ~self.row_done(state)
        state, parent = self.resampled(state, wanted)
        if proposing is not None:
            proposing = shared_cache.reorder(self.proposing_model, proposing, parent)
        shared = shared_cache.reorder(model, shared, parent)
        return state._replace(shared=shared, proposing=proposing)

    def masses(self, allowed: Array, path: Prefix) -> tuple[Array, Array]:
        """The logarithm of what each token adds to the target, and the mass that all of them hold.

        Args:
          allowed: float32 ``[B, N, 1, V]``, the model's logits after the transform.
          path: the particles.

        Returns:
          float32 ``[B, N, V]``, and the logarithm of the mass, float32 ``[B, N]``: 0 where nothing
          is changed, and where the transform itself ends a text.
        """
        log_probs = allowed[:, :, 0]
        if not self.weighs_tokens:
            return log_probs, jnp.zeros(log_probs.shape[:2], jnp.float32)
        total = log_total(log_probs)
        is_dead_end = total == -jnp.inf
        log_probs = log_probs - jnp.where(is_dead_end, 0.0, total)[..., None]
        changed = self.tilted(log_probs)
        changed = model_calls.language_logits(
            changed, path.part(1), self.language, self.stop, only_finished=self.only_finished
        )
        # What is not changed has a mass of exactly 1, since both sums are the same.
        mass = log_total(changed) - log_total(log_probs)
        return changed, jnp.where(is_dead_end, 0.0, mass)

    def proposed_logits(self, target: Array, proposed: Array | None, path: Prefix) -> Array:
        """The logits that tokens are drawn by, float32 ``[B, N, V]``.

        Args:
          target: from ``masses``.
          proposed: float32 ``[B, N, V]``, the logits of a ``proposal`` that is a model.
          path: the particles.
        """
        if self.proposal is None:
            return target
        if proposed is None:
            changed = model_calls.transformed(
                self.proposal, target[:, :, None], path.part(2), "proposal"
            )
            proposed = changed[:, :, 0]
        proposed = jnp.where(target > -jnp.inf, clean(proposed), -jnp.inf)
        bans_all = (proposed.max(-1) == -jnp.inf)[..., None]
        return jnp.where(bans_all, target, proposed)

    def grown(
        self, logits: Array, proposed: Array | None, prompt: Prompt, state: State
    ) -> Particles:
        """The particles with one more token, drawn after ``logits [B, N, V]``, and weighed."""
        old, lanes = state.particles, self.num_samples
        sequences, limit = old.sequences, old.sequences.tokens.shape[-1]
        path = Prefix(*prompt, sequences.tokens[:, :, None], sequences.length[..., None])
        path = carried.advance(self.changing, path, old.carried)
        allowed = model_calls.allowed_logits(
            logits[:, :, None], path.part(0), self.stop, self.transform
        )
        target, log_mass = self.masses(allowed, path)
        proposal = self.proposed_logits(target, proposed, path)
        bits = random.bits_at(state.token_keys, per_lane(state.step, lanes))
        token = codes.draw(proposal, bits)
        if self.proposal is not None:
            drawn, ratio = (gather_last(x, token) for x in (proposal, target))
            is_possible = ratio > -jnp.inf
            ratio = jnp.where(is_possible, ratio - (drawn - log_total(proposal)), -jnp.inf)
            log_mass = jnp.where((log_mass > -jnp.inf) & is_possible, ratio, log_mass)
        new = append_token(sequences, token, logits, proposal, self.stop, limit)

        is_nan = jnp.isnan(new.log_prob)
        log_weight = old.log_weight + jnp.where(sequences.done | is_nan, 0.0, log_mass)
        if self.only_finished:
            is_cut = new.done & ~sequences.done & ~new.finished & ~is_nan
            log_weight = jnp.where(is_cut, -jnp.inf, log_weight)
        log_potential = old.log_potential
        if self.potential is not None:
            text = Prefix(*prompt, new.tokens[:, :, None], new.length[..., None])
            value = _value(self.potential(text, new.done[..., None]), new.done.shape)
            changes = ~sequences.done & ~is_nan & (log_weight > -jnp.inf)
            log_weight += jnp.where(changes, value - log_potential, 0.0)
            log_potential = jnp.where(changes, value, log_potential)
        new = new._replace(done=new.done | (log_weight == -jnp.inf))
        return Particles(new, token, log_weight, log_potential, path.carried)

    def resampled(self, state: State, wanted: Array) -> tuple[State, Array]:
        """Resamples the particles of the rows ``wanted`` (bool ``[B]``), and returns the parents.

        Particle n becomes a copy of ``parent[b, n]``, int32 ``[B, N]``.
        """
        particles = state.particles
        log_weight = particles.log_weight
        step_keys = jax.vmap(jax.random.fold_in)(
            state.keys, jnp.broadcast_to(state.step, state.keys.shape)
        )
        points = point_sets.points(RESAMPLING[self.resampling], step_keys, self.num_samples)
        shape = (*log_weight.shape, self.num_samples)
        drawn = codes.draw(jnp.broadcast_to(log_weight[:, None], shape), points)
        itself = jnp.arange(self.num_samples, dtype=jnp.int32)[None]
        parent = jnp.where(wanted[:, None], drawn, itself)
        particles = jax.tree.map(lambda x: gather_items(x, parent), particles)
        particles = particles._replace(
            log_weight=jnp.where(wanted[:, None], 0.0, particles.log_weight)
        )
        gained = jnp.where(wanted, log_mean(log_weight), 0.0)
        is_nan = jnp.isnan(particles.sequences.log_prob).any(-1)
        state = state._replace(
            particles=particles,
            log_normaliser=state.log_normaliser + jnp.where(is_nan, jnp.nan, gained),
            num_resamplings=state.num_resamplings + wanted.astype(jnp.int32),
        )
        return state, parent

    def row_done(self, state: State) -> Array:
        """See ``Strategy.row_done``."""
        return state.particles.sequences.done.all(-1)

    def finalize(self, prompt: Prompt, state: State) -> DecodeOutput:
        """See ``Strategy.finalize``; the particles are resampled once more unless ``weighted``."""
        before, log_weight = state, state.particles.log_weight
        size = effective_sample_size(log_weight)
        is_nan = jnp.isnan(state.particles.sequences.log_prob).any(-1)
        log_normaliser = before.log_normaliser + log_mean(log_weight)
        log_normaliser = jnp.where(is_nan, jnp.nan, log_normaliser)
        if not self.weighted:
            wanted = log_weight.max(-1) > log_weight.min(-1)
            # Where steps resample, the number of tokens is at most L.
            past_end = jnp.int32(state.particles.sequences.tokens.shape[-1] + 1)
            last = state._replace(step=past_end)
            state, _ = self.resampled(last, wanted)
            log_weight = state.particles.log_weight
        sequences = state.particles.sequences
        exists = log_weight > -jnp.inf
        total = log_mean(log_weight) + jnp.log(jnp.float32(self.num_samples))
        info = SMCInfo(
            model_calls=before.step,
            log_weight=jnp.where(exists, log_weight - total[:, None], -jnp.inf),
            log_normaliser=log_normaliser,
            effective_sample_size=size,
            num_resamplings=before.num_resamplings,
        )
        return output_of_some(sequences, exists, info)


def _value(value: Any, shape: tuple[int, ...]) -> Array:
    """The values of a potential, float32 ``[B, N]``.

    Raises:
      ValueError: for another shape, or a dtype that is not floating.
    """
    shape = (*shape, 1)
    dtype = getattr(value, "dtype", None)
    if dtype is None or value.shape != shape or not jnp.issubdtype(dtype, jnp.floating):
        got = type(value).__name__ if dtype is None else f"{dtype}{list(value.shape)}"
        raise ValueError(f"potential: expected float32 [B, N, 1] = {list(shape)}, got {got}")
    value = value[..., 0].astype(jnp.float32)
    bound = jnp.finfo(jnp.float32).max
    return jnp.where(jnp.isnan(value), -jnp.inf, jnp.minimum(value, bound))


def log_mean(log_weight: Array) -> Array:
    """The logarithm of the mean of weights ``[B, N]``: float32 ``[B]``, -inf where all are 0.

    Example:
      >>> log_mean(jnp.log(jnp.array([[1.0, 3.0], [0.0, 0.0]]))).round(4)
      Array([0.6931,   -inf], dtype=float32)
    """
    return log_total(log_weight) - jnp.log(jnp.float32(log_weight.shape[-1]))


def effective_sample_size(log_weight: Array) -> Array:
    """``(sum w)^2 / sum w^2`` of weights ``[B, N]``: float32 ``[B]``, 0 where all are 0.

    Example:
      >>> effective_sample_size(jnp.log(jnp.array([[1.0, 1.0], [1.0, 0.0], [0.0, 0.0]])))
      Array([2., 1., 0.], dtype=float32)
    """
    peak = log_weight.max(-1, keepdims=True)
    weight = exact.exp(log_weight - jnp.where(peak == -jnp.inf, 0.0, peak))
    total, squares = exact.sum_last(weight), exact.sum_last(weight * weight)
    return exact.divide(total * total, jnp.maximum(squares, jnp.finfo(jnp.float32).tiny))


smc_sample = as_function(SMCSample)
