"""Decode functions for the other searches of the beam family: diverse, sampled, stochastic."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp

from decoding_jax import registry
from decoding_jax.base import Array, DecodeOutput, Prompt, Transform
from decoding_jax.loop import Steps, run
from decoding_jax.strategies.beam.length_penalty import GNMTPenalty
from decoding_jax.t5x.decode_fns import call as requests
from decoding_jax.t5x.decode_fns.beam_search import FromStart
from decoding_jax.t5x.decode_fns.sampling_settings import KeepForced, sampling_rule


def diverse_beam_search(
    inputs: Array,
    cache: Any,
    tokens_to_logits: Callable[..., Any],
    eos_id: int | Array,
    num_decodes: int = 4,
    num_groups: int = 2,
    diversity_penalty: float | Array = 0.5,
    alpha: float | Array = 0.6,
    decode_rng: Array | None = None,
    cache_offset: int = 0,
    initial_index: Array | None = None,
    max_decode_steps: int | Array | None = None,
    transform: Transform | None = None,
) -> tuple[Array, Array]:
    """Beam search in groups, each penalised for the tokens that earlier groups choose.

    See ``strategies.diverse_beam_search`` (Vijayakumar et al. 2018), with T5X's length penalty.

    Args:
      inputs: this and what is not said here is as in ``beam_search``.
      num_groups: a divisor of ``num_decodes``.
      diversity_penalty: what a token loses for each earlier group's hypothesis that takes it.
      max_decode_steps: the most tokens after the last of ``inputs``.

    Returns:
      Decodes int32 ``[B, N, L]`` and scores float32 ``[B, N]``, in rising order.

    Raises:
      ValueError: for groups that do not divide the hypotheses.
    """
    request = requests.read(
        inputs, cache, tokens_to_logits, eos_id, decode_rng, num_decodes, cache_offset,
        initial_index,
    )  # fmt: skip
    steps = registry.steps(
        "diverse_beam_search",
        beam_size=num_decodes,
        num_groups=num_groups,
        diversity_penalty=diversity_penalty,
        max_new_tokens=request.length,
        length_penalty=FromStart(GNMTPenalty(alpha), request.base),
        early_stopping="never",
        transform=None if transform is None else KeepForced(transform),
        stop=request.stop(request.limits(max_decode_steps)),
    )
    return _best_last(request, run(steps, request.model, request.prompt))


def beam_sample(
    inputs: Array,
    cache: Any,
    tokens_to_logits: Callable[..., Any],
    eos_id: int | Array,
    num_decodes: int = 4,
    alpha: float | Array = 0.6,
    temperature: float | Array = 1.0,
    topk: int | Array = 0,
    topp: float | Array = 0.0,
    decode_rng: Array | None = None,
    cache_offset: int = 0,
    initial_index: Array | None = None,
    max_decode_steps: int | Array | None = None,
    transform: Transform | None = None,
) -> tuple[Array, Array]:
    """Beam search that draws its candidates; see ``strategies.beam_sample``.

    Args:
      inputs: this and what is not said here is as in ``beam_search``, and ``temperature``,
        ``topk`` and ``topp`` as in ``temperature_sample``.
      max_decode_steps: the most tokens after the last of ``inputs``.

    Returns:
      Decodes int32 ``[B, N, L]`` and scores float32 ``[B, N]``, in rising order.
    """
    request = requests.read(
        inputs, cache, tokens_to_logits, eos_id, decode_rng, num_decodes, cache_offset,
        initial_index,
    )  # fmt: skip
    rule = sampling_rule(transform, temperature, topk, topp)
    steps = registry.steps(
        "beam_sample",
        beam_size=num_decodes,
        max_new_tokens=request.length,
        length_penalty=FromStart(GNMTPenalty(alpha), request.base),
        early_stopping="never",
        transform=rule if rule.transforms else None,
        stop=request.stop(request.limits(max_decode_steps)),
    )
    return _best_last(request, run(steps, request.model, request.prompt, request.key))


def stochastic_beam_search(
    inputs: Array,
    cache: Any,
    tokens_to_logits: Callable[..., Any],
    eos_id: int | Array,
    num_decodes: int = 4,
    temperature: float | Array = 1.0,
    topk: int | Array = 0,
    topp: float | Array = 0.0,
    decode_rng: Array | None = None,
    cache_offset: int = 0,
    initial_index: Array | None = None,
    max_decode_steps: int | Array | None = None,
    transform: Transform | None = None,
) -> tuple[Array, Array]:
    """Draws ``num_decodes`` different sequences, without replacement.

    See ``strategies.stochastic_beam_search`` (Kool et al. 2019).

    Args:
      inputs: this and what is not said here is as in ``beam_search``, and ``temperature``,
        ``topk`` and ``topp`` as in ``temperature_sample``.
      num_decodes: N, 2 and above: one sequence alone is ``temperature_sample``'s.
      max_decode_steps: the most tokens after the last of ``inputs``.

    Returns:
      Decodes int32 ``[B, N, L]`` in rising order of their log-probabilities under the law that is
      drawn from, and these, float32 ``[B, N]``.

    Raises:
      ValueError: for one sequence.
    """
    if num_decodes < 2:
        raise ValueError(f"num_decodes: got {num_decodes}; takes 2 or more")
    request = requests.read(
        inputs, cache, tokens_to_logits, eos_id, decode_rng, num_decodes, cache_offset,
        initial_index,
    )  # fmt: skip
    rule = sampling_rule(transform, temperature, topk, topp)
    # The search keeps one sequence more than it returns, for the threshold of an estimator. Here
    # it is one of the draws, since T5X has lanes for no more.
    steps = registry.steps(
        "stochastic_beam_search",
        beam_size=num_decodes - 1,
        max_new_tokens=request.length,
        transform=rule if rule.transforms else None,
        stop=request.stop(request.limits(max_decode_steps)),
    )
    steps = Steps(steps.init, steps.step, steps.done, _all_drawn)
    return _best_last(request, run(steps, request.model, request.prompt, request.key))


def _all_drawn(prompt: Prompt, state: Any) -> DecodeOutput:
    drawn = state.beam
    exists = drawn.key > -jnp.inf
    score = jnp.where(exists, drawn.log_law, -jnp.inf)
    length = jnp.where(exists, drawn.length, 0)
    return DecodeOutput(drawn.tokens, length, drawn.log_prob, score, drawn.finished & exists)


def _best_last(request: requests.Request, output: DecodeOutput) -> tuple[Array, Array]:
    rank = jnp.argsort(output.score, axis=-1)
    return request.answer(output.tokens, output.length, output.score, rank)
