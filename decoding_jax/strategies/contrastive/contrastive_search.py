"""Contrastive search (Su et al. 2022): the loop, the candidates and the choice among them."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import jax.numpy as jnp

from decoding_jax import fields
from decoding_jax.base import (
    Array,
    Cache,
    CarriedStates,
    DecodeOutput,
    LanguageModel,
    ModelOutput,
    Prefix,
    Prompt,
    SupportsKeep,
)
from decoding_jax.loop import (
    Sequences,
    Strategy,
    append_token,
    as_function,
    check_lengths,
    empty_sequences,
    model_calls,
    stopping,
)
from decoding_jax.loop.sequences import over_axes, per_lane
from decoding_jax.ops import exact
from decoding_jax.ops.logits import lowest_argmax, normaliser
from decoding_jax.ops.top_k import top_k
from decoding_jax.pytrees import pytree
from decoding_jax.strategies.contrastive import context
from decoding_jax.strategies.contrastive.context import Context
from decoding_jax.transforms import carried


class ContrastiveInfo(NamedTuple):
    """Statistics of a contrastive search.

    Attributes:
      model_calls: int32, the prefill and one ``extend`` a step; or ``[B]``, of each row.
    """

    model_calls: Array


class State(NamedTuple):
    """The state of the loop.

    Attributes:
      cache: the model's cache, with all new tokens.
      sequences: the sequences decoded so far, one a row.
      logits: float32 ``[B, V]``, the model's after the last token of each.
      context: the hidden states of prompt and new tokens.
      step: int32, a scalar or ``[B]``, the number of steps, which is the number of slots in use.
      carried: the states of the transform.
    """

    cache: Cache
    sequences: Sequences
    logits: Array
    context: Context
    step: Array
    carried: CarriedStates | None


class Candidates(NamedTuple):
    """The k most probable tokens of each row.

    Attributes:
      token: int32 ``[B, k]``.
      probability: float32 ``[B, k]``, after the transform; 0 where every token is banned.
      exists: bool ``[B, k]``, false for banned tokens.
    """

    token: Array
    probability: Array
    exists: Array


@pytree
@dataclasses.dataclass(frozen=True, kw_only=True)
class ContrastiveSearch(Strategy):
    """Appends one of the k most probable tokens, preferring those unlike the tokens before.

    Su et al. 2022, "A Contrastive Framework for Neural Text Generation", arXiv:2202.06417, equation
    5. Of the candidates v with the k highest probabilities, the token is the one with the highest
    ``(1 - alpha) p(v) - alpha max_j cos(h_v, h_j)``, where h_v is the hidden state of v and h_j are
    those of all earlier tokens, prompt included. The probabilities are those after the transform.

    The candidates are siblings of one call of the model, as nodes of a tree; the one that is chosen
    moves to the next slot. No cache is copied.

    The model has ``tree`` and ``keep``, and its ``prefill`` and ``extend`` return hidden states.
    The output has N = 1, and its ``score`` is ``log_prob``. A sequence whose every continuation is
    banned ends unfinished. Hidden states that are not finite count as NaN logits, where they leave
    no candidate with a known cosine.

    Attributes:
      penalty_alpha: alpha, from 0 to 1: a number, or ``[B]``. With 0, the tokens are those of
        ``greedy``.
      top_k: k, 1 or more; with 1, the tokens are those of ``greedy``.
      max_new_tokens: L, the maximum number of new tokens. All of them are fed to the model, the
        last as well, so P + L positions are needed.
      transform: applied to the logits before the candidates are chosen.
      stop: when a sequence ends.

    Raises:
      ValueError: for a model that lacks ``tree``, ``keep`` or hidden states, a k below 1, or a
        length that the model cannot hold.

    Example:
      >>> import jax
      >>> from decoding_jax import Prompt
      >>> from decoding_jax.testing import TableLM
      >>> model = TableLM.random(jax.random.key(0), 5)
      >>> prompt = Prompt(jnp.array([[1, 2]]), jnp.array([2]))
      >>> output = contrastive_search(
      ...     model, prompt, penalty_alpha=0.6, top_k=3, max_new_tokens=4)
      >>> output.tokens.shape, int(output.info.model_calls)
      ((1, 1, 4), 5)
    """

    penalty_alpha: Any = fields.number("a number from 0 to 1", lambda x: (x >= 0) & (x <= 1))
    top_k: int = fields.count()

    def init(self, model: LanguageModel, prompt: Prompt, key: Any) -> State:
        """See ``Strategy.init``. The first token is chosen in the first step."""
        batch, size = prompt.tokens.shape
        _check_model(model)
        length = check_lengths(model, size, self.max_new_tokens, last_is_fed=True)
        slots = length - 1 + min(self.top_k, model.vocab_size)
        logits, hidden, cache = model_calls.prefill_with_hidden(model, prompt, lanes=1, slots=slots)
        limit = stopping.limits(self.stop, batch, length)
        return State(
            cache=cache,
            sequences=empty_sequences(limit, 1, length),
            logits=logits[:, 0, 0],
            context=context.start(hidden[:, 0], prompt.length, length),
            step=jnp.int32(0),
            carried=carried.begin(self.transform, prompt, 1),
        )

    def step(self, model: LanguageModel, prompt: Prompt, state: State) -> State:
        """See ``Strategy.step``."""
        old, start = state.sequences, state.step
        path = Prefix(*prompt, old.tokens[:, :, None], old.length[..., None])
        path = carried.advance(self.transform, path, state.carried)
        allowed = self.allowed(state.logits, path)
        candidates = self.candidates(allowed)
        output, cache = self.feed(model, prompt, state, candidates.token)
        assert output.hidden is not None
        hidden = context.unit(output.hidden[:, 0])
        chosen, is_known = self.choose(candidates, hidden, state.context)
        known = jnp.where(is_known[:, None], state.logits, jnp.nan)
        token = jnp.take_along_axis(candidates.token, chosen, 1)
        source = over_axes(start, 3) + chosen[..., None]
        assert isinstance(model, SupportsKeep)
        cache = model.keep(cache, source, per_lane(start, 1))

        sequences = append_token(
            old, token, known[:, None], allowed, self.stop, old.tokens.shape[-1]
        )
        logits = jnp.take_along_axis(output.logits[:, 0], chosen[..., None], 1)[:, 0]
        hidden = jnp.take_along_axis(hidden, chosen[..., None], 1)
        return State(
            cache=cache,
            sequences=sequences,
            logits=logits,
            context=context.add(state.context, hidden, start),
            step=start + 1,
            carried=path.carried,
        )

    def allowed(self, logits: Array, path: Prefix) -> Array:
        """The transformed ``logits [B, V]`` after the last tokens, float32 ``[B, 1, V]``."""
        logits = logits[:, None, None]
        return model_calls.allowed_logits(logits, path, self.stop, self.transform)[:, :, 0]

    def candidates(self, allowed: Array) -> Candidates:
        """The k most probable tokens."""
        best, token = top_k(allowed[:, 0], min(self.top_k, allowed.shape[-1]))
        peak, total = normaliser(allowed[:, 0])
        probability = exact.exp(best - peak) / jnp.maximum(total, 1.0)
        return Candidates(token.astype(jnp.int32), probability, best > -jnp.inf)

    def feed(
        self, model: LanguageModel, prompt: Prompt, state: State, token: Array
    ) -> tuple[ModelOutput, Cache]:
        """One call of the model for all candidates, as siblings after the tokens so far."""
        batch, width = token.shape
        start = state.step
        num_slots = state.sequences.tokens.shape[-1] - 1 + width
        slot = jnp.arange(num_slots, dtype=jnp.int32)[None, None, None]
        visible = jnp.broadcast_to(slot < over_axes(start, 4), (batch, 1, width, num_slots))
        position = (prompt.length + start)[:, None, None]
        output, cache = model_calls.extend(
            model, state.cache, token[:, None], per_lane(start, 1), visible, position
        )
        if output.hidden is None:
            raise ValueError(
                "model: expected hidden states from extend too, in ModelOutput.hidden, got none"
            )
        return output, cache

    def choose(self, candidates: Candidates, hidden: Array, so_far: Context) -> tuple[Array, Array]:
        """Equation 5: model confidence against the degeneration penalty.

        A candidate whose cosines are NaN is chosen only if those of all candidates are. The
        sequence then ends as at NaN logits.

        Returns:
          int32 ``[B, 1]``, the candidate; and bool ``[B]``, false where all cosines are NaN.
        """
        alpha = jnp.asarray(self.penalty_alpha, jnp.float32).reshape(-1, 1)
        penalty = context.largest_cosine(so_far, hidden)
        score = (1 - alpha) * candidates.probability - alpha * penalty
        exists, is_nan = candidates.exists, jnp.isnan(score)
        chosen = lowest_argmax(jnp.where(exists & ~is_nan, score, -jnp.inf))[:, None]
        return chosen, (exists & ~is_nan).any(-1) | ~exists.any(-1)

    def row_done(self, state: State) -> Array:
        """See ``Strategy.row_done``."""
        return state.sequences.done.all(-1)

    def settled(self, state: State) -> Array:
        """See ``Strategy.settled``."""
        return state.sequences.length

    def finalize(self, prompt: Prompt, state: State) -> DecodeOutput:
        """See ``Strategy.finalize``."""
        tokens, length, log_prob = state.sequences[:3]
        finished = state.sequences.finished
        info = ContrastiveInfo(state.step + 1)
        return DecodeOutput(tokens, length, log_prob, log_prob, finished, info)


contrastive_search = as_function(ContrastiveSearch)


def _check_model(model: LanguageModel) -> None:
    """Refuses a model that cannot branch."""
    if not model.tree or not isinstance(model, SupportsKeep):
        lacks = "tree=False" if not model.tree else "no keep"
        raise ValueError(
            "model: expected one with tree=True and keep, since the candidates of contrastive "
            f"search are siblings, got a {type(model).__name__} with {lacks}"
        )
