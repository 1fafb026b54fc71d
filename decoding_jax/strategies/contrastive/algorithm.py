"""Contrastive search (Su et al. 2022): the loop, the candidates and the choice among them."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp

from decoding_jax.base import (
    Array,
    Cache,
    DecodeOutput,
    LanguageModel,
    Prefix,
    Prompt,
    Stop,
    SupportsKeep,
    Transform,
)
from decoding_jax.loop import (
    Sequences,
    Static,
    Steps,
    append_token,
    check_lengths,
    empty_sequences,
    model_calls,
    search,
    stopping,
)
from decoding_jax.loop.counters import over_axes, per_lane
from decoding_jax.loop.values import check_count
from decoding_jax.ops import exact
from decoding_jax.ops.logits import clean, lowest_argmax, normaliser
from decoding_jax.ops.top_k import top_k as take_top_k
from decoding_jax.rows import PerRow
from decoding_jax.strategies.contrastive import context
from decoding_jax.strategies.contrastive.context import Context


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
    """

    cache: Cache
    sequences: Sequences
    logits: Array
    context: Context
    step: Array


@search
def contrastive_search(
    *,
    penalty_alpha: PerRow[float | Array],
    top_k: Static[int],
    max_new_tokens: Static[int],
    transform: Transform | None = None,
    stop: Stop | None = None,
) -> Steps:
    """Appends one of the k most probable tokens, preferring those unlike the tokens before.

    Su et al. 2022, "A Contrastive Framework for Neural Text Generation", arXiv:2202.06417, equation
    5. Of the candidates v with the k highest probabilities, the token is the one with the highest
    ``(1 - alpha) p(v) - alpha max_j cos(h_v, h_j)``, where h_v is the hidden state of v and h_j are
    those of all earlier tokens, prompt included. The probabilities are those after the transform.

    The candidates are siblings of one call of the model, as nodes of a tree; the one that is chosen
    moves to the next slot. No cache is copied.

    Args:
      model: the language model, with ``tree`` and ``keep``, whose ``prefill`` and ``extend`` return
        hidden states.
      prompt: tokens int32 ``[B, P]`` and their length ``[B]``.
      penalty_alpha: alpha, from 0 to 1: a number, or ``[B]``. With 0, the tokens are those of
        ``greedy``.
      top_k: k, 1 or more; with 1, the tokens are those of ``greedy``.
      max_new_tokens: L, the maximum number of new tokens. All of them are fed to the model, the
        last as well, so P + L positions are needed.
      transform: applied to the logits before the candidates are chosen.
      stop: when a sequence ends.

    Returns:
      A ``DecodeOutput`` with N = 1. ``score`` is ``log_prob``. A sequence whose every continuation
      is banned ends unfinished. Hidden states that are not finite count as NaN logits, where they
      leave no candidate with a known cosine.

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
    stop = Stop() if stop is None else stop
    if check_count("top_k", top_k) < 1:
        raise ValueError(f"top_k: got {top_k}; takes 1 or more")

    def init(model: LanguageModel, prompt: Prompt, key: Array | None) -> State:
        batch, size = prompt.tokens.shape
        _check_model(model)
        check_lengths(model, size, max_new_tokens, last_is_fed=True)
        slots = max_new_tokens - 1 + min(top_k, model.vocab_size)
        logits, hidden, cache = model_calls.prefill_with_hidden(model, prompt, lanes=1, slots=slots)
        limit = stopping.limits(stop, batch, max_new_tokens)
        return State(
            cache=cache,
            sequences=empty_sequences(limit, 1, max_new_tokens),
            logits=logits[:, 0, 0],
            context=context.start(hidden[:, 0], prompt.length, max_new_tokens),
            step=jnp.int32(0),
        )

    def step(model: LanguageModel, prompt: Prompt, state: State) -> State:
        old, start = state.sequences, state.step
        # Candidates: the k most probable tokens.
        allowed = stopping.ban_end_tokens(stop, clean(state.logits)[:, None], old.length)
        if transform is not None:
            path = Prefix(*prompt, old.tokens[:, :, None], old.length[..., None])
            changed = model_calls.transformed(transform, allowed[:, :, None], path)
            allowed = clean(changed)[:, :, 0]
        best, tokens = take_top_k(allowed[:, 0], min(top_k, model.vocab_size))
        peak, total = normaliser(allowed[:, 0])
        probability = exact.exp(best - peak) / jnp.maximum(total, 1.0)
        tokens = tokens.astype(jnp.int32)
        # One call of the model for all of them, as siblings after the tokens so far.
        assert isinstance(model, SupportsKeep)
        slot = jnp.arange(max_new_tokens - 1 + tokens.shape[1], dtype=jnp.int32)[None, None, None]
        visible = jnp.broadcast_to(
            slot < over_axes(start, 4), (tokens.shape[0], 1, tokens.shape[1], slot.size)
        )
        position = (prompt.length + start)[:, None, None]
        output, cache = model_calls.extend(
            model, state.cache, tokens[:, None], per_lane(start, 1), visible, position
        )
        if output.hidden is None:
            raise ValueError(
                "model: got no hidden states from extend; takes a model that returns them, in "
                "ModelOutput.hidden, as from prefill"
            )
        hidden = context.unit(output.hidden[:, 0])
        # Choose: model confidence against the degeneration penalty.
        alpha = jnp.broadcast_to(jnp.asarray(penalty_alpha, jnp.float32), (tokens.shape[0],))[
            :, None
        ]
        penalty = context.largest_cosine(state.context, hidden)
        score = (1 - alpha) * probability - alpha * penalty
        # A candidate whose cosines are NaN is chosen only if those of all candidates are. The
        # sequence then ends as at NaN logits.
        exists, is_nan = best > -jnp.inf, jnp.isnan(score)
        chosen = lowest_argmax(jnp.where(exists & ~is_nan, score, -jnp.inf))[:, None]
        unknown = (is_nan | ~exists).all(-1) & exists.any(-1)
        known = jnp.where(unknown[:, None], jnp.nan, state.logits)
        token = jnp.take_along_axis(tokens, chosen, 1)
        source = over_axes(start, 3) + chosen[..., None]
        cache = model.keep(cache, source, per_lane(start, 1))

        sequences = append_token(old, token, known[:, None], allowed, stop, max_new_tokens)
        logits = jnp.take_along_axis(output.logits[:, 0], chosen[..., None], 1)[:, 0]
        hidden = jnp.take_along_axis(hidden, chosen[..., None], 1)
        return State(
            cache=cache,
            sequences=sequences,
            logits=logits,
            context=context.add(state.context, hidden, start),
            step=start + 1,
        )

    def done(state: State) -> Array:
        return state.sequences.done.all()

    def row_done(state: State) -> Array:
        return state.sequences.done.all(-1)

    def finalize(prompt: Prompt, state: State) -> DecodeOutput:
        tokens, length, log_prob = state.sequences[:3]
        finished = state.sequences.finished
        info = ContrastiveInfo(state.step + 1)
        return DecodeOutput(tokens, length, log_prob, log_prob, finished, info)

    def settled(state: State) -> Array:
        return state.sequences.length

    return Steps(init, step, done, finalize, row_done, settled, widens=True)


def _check_model(model: LanguageModel) -> None:
    """Refuses a model that cannot branch."""
    if not model.tree or not isinstance(model, SupportsKeep):
        lacks = "tree=False" if not model.tree else "no keep"
        raise ValueError(
            f"model: got a {type(model).__name__} with {lacks}; contrastive search takes one with "
            "tree=True and keep, since candidates are siblings"
        )
