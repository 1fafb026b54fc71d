"""Decode functions for the other searches of the beam family: diverse, sampled, stochastic."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from decoding_jax import registry
from decoding_jax.base import Array, DecodeOutput, Prompt
from decoding_jax.loop import Steps, run
from decoding_jax.strategies.beam.length_penalty import GNMTPenalty
from decoding_jax.strategies.beam.stochastic_beam_search import sampling_log_prob_of
from decoding_jax.t5x.decode_fns.arguments import (
    Decodes,
    T5XArguments,
    TemperatureArguments,
    decode_fn,
)
from decoding_jax.t5x.decode_fns.beam_search import FromStart
from decoding_jax.t5x.decode_fns.call import open_call
from decoding_jax.t5x.decode_fns.temperature import keep_forced, sampling_transform


@decode_fn(num_decodes=4)
def diverse_beam_search(
    arguments: T5XArguments,
    *,
    num_groups: int = 2,
    diversity_penalty: float | Array = 0.5,
    alpha: float | Array = 0.6,
    max_decode_steps: int | Array | None = None,
) -> Decodes:
    """Beam search in groups, each penalised for the tokens that earlier groups choose.

    See ``strategies.diverse_beam_search`` (Vijayakumar et al. 2018), with T5X's length penalty.

    Args:
      inputs, cache, tokens_to_logits, eos_id, decode_rng, num_decodes, cache_offset, initial_index,
        transform: see ``T5XArguments``.
      num_groups: a divisor of ``num_decodes``.
      diversity_penalty: subtracted from a token's score for each hypothesis of an earlier group
        that chooses this token.
      alpha: the exponent of the length penalty, as for ``beam_search``.
      max_decode_steps: the maximum number of tokens after the last prompt token.

    Returns:
      Decodes int32 ``[B, N, L]`` and scores float32 ``[B, N]``, sorted by ascending score.

    Raises:
      ValueError: if ``num_groups`` does not divide ``num_decodes``.
    """
    call = open_call(arguments)
    steps = registry.steps(
        "diverse_beam_search",
        beam_size=arguments.num_decodes,
        num_groups=num_groups,
        diversity_penalty=diversity_penalty,
        max_new_tokens=call.length,
        length_penalty=FromStart(GNMTPenalty(alpha), call.prompt_end),
        early_stopping="never",
        transform=keep_forced(arguments.transform),
        stop=call.stop(call.limits(max_decode_steps)),
    )
    return call.rising(run(steps, call.model, call.prompt))


@decode_fn(num_decodes=4)
def beam_sample(
    arguments: T5XArguments,
    sampling: TemperatureArguments,
    *,
    alpha: float | Array = 0.6,
    max_decode_steps: int | Array | None = None,
) -> Decodes:
    """Beam search that draws its candidates; see ``strategies.beam_sample``.

    Args:
      inputs, cache, tokens_to_logits, eos_id, decode_rng, num_decodes, cache_offset, initial_index,
        transform: see ``T5XArguments``.
      temperature, topk, topp: see ``TemperatureArguments``.
      alpha: the exponent of the length penalty, as for ``beam_search``.
      max_decode_steps: the maximum number of tokens after the last prompt token.

    Returns:
      Decodes int32 ``[B, N, L]`` and scores float32 ``[B, N]``, sorted by ascending score.
    """
    call = open_call(arguments)
    transform = sampling_transform(
        arguments.transform, sampling.temperature, sampling.topk, sampling.topp
    )
    steps = registry.steps(
        "beam_sample",
        beam_size=arguments.num_decodes,
        max_new_tokens=call.length,
        length_penalty=FromStart(GNMTPenalty(alpha), call.prompt_end),
        early_stopping="never",
        transform=transform if transform.transforms else None,
        stop=call.stop(call.limits(max_decode_steps)),
    )
    return call.rising(run(steps, call.model, call.prompt, call.key))


@decode_fn(num_decodes=4)
def stochastic_beam_search(
    arguments: T5XArguments,
    sampling: TemperatureArguments,
    *,
    max_decode_steps: int | Array | None = None,
) -> Decodes:
    """Draws ``num_decodes`` different sequences, without replacement.

    See ``strategies.stochastic_beam_search`` (Kool et al. 2019).

    Args:
      inputs, cache, tokens_to_logits, eos_id, decode_rng, cache_offset, initial_index, transform:
        see ``T5XArguments``.
      num_decodes: N, 2 or more: ``temperature_sample`` draws a single sequence.
      temperature, topk, topp: see ``TemperatureArguments``.
      max_decode_steps: the maximum number of tokens after the last prompt token.

    Returns:
      Decodes int32 ``[B, N, L]`` and their log-probabilities under the distribution that is drawn
      from, float32 ``[B, N]``, in ascending order.

    Raises:
      ValueError: for ``num_decodes`` below 2.
    """
    count = arguments.num_decodes
    if count < 2:
        raise ValueError(f"num_decodes: got {count}; takes 2 or more")
    call = open_call(arguments)
    transform = sampling_transform(
        arguments.transform, sampling.temperature, sampling.topk, sampling.topp
    )
    # The search keeps one sequence more than it returns, as the threshold of an estimator. This
    # function returns it too, since T5X has rows for ``num_decodes`` sequences only.
    steps = registry.steps(
        "stochastic_beam_search",
        beam_size=count - 1,
        max_new_tokens=call.length,
        transform=transform if transform.transforms else None,
        stop=call.stop(call.limits(max_decode_steps)),
    )
    steps = Steps(steps.init, steps.step, steps.done, _all_drawn)
    return call.rising(run(steps, call.model, call.prompt, call.key))


def _all_drawn(prompt: Prompt, state: Any) -> DecodeOutput:
    drawn = state.beam
    exists = drawn.perturbed_log_prob > -jnp.inf
    score = sampling_log_prob_of(drawn)
    length = jnp.where(exists, drawn.length, 0)
    return DecodeOutput(drawn.tokens, length, drawn.log_prob, score, drawn.finished & exists)
