"""Decode functions for the texts of a language: exact conditional samples, and particles.

Both need a native model, since their lanes begin again or are moved, and T5X's own networks count a
prompt's forced tokens as new ones, which a language would read.
"""

from __future__ import annotations

from typing import Any

from decoding_jax import strategies
from decoding_jax.base import Array, Transform
from decoding_jax.loop import Strategy
from decoding_jax.strategies.particles.smc_sample import Potential
from decoding_jax.t5x.decode_fns.calls import (
    Decodes,
    T5XArguments,
    TemperatureArguments,
    decode_fn,
    open_native_call,
)
from decoding_jax.t5x.decode_fns.sampling import sampling_transform


@decode_fn()
def conditional_sample(
    arguments: T5XArguments,
    sampling: TemperatureArguments,
    *,
    language: Transform | None = None,
    finished_only: bool | None = None,
    budget: int | None = None,
    max_prefixes: int = 1024,
    max_decode_steps: int | Array | None = None,
) -> Decodes:
    """Draws exact samples of the model given a language; see ``strategies.conditional_sample``.

    For native models only. What is not accepted within the budget has no new token and a score of
    -inf, and comes first.

    Args:
      inputs, cache, tokens_to_logits, eos_id, decode_rng, num_decodes, cache_offset, initial_index,
        transform: see ``T5XArguments``. The transform is a part of the model's distribution.
      temperature, topk, topp: see ``TemperatureArguments``; they come after the transform.
      language: a transform that bans tokens, such as one of ``decoding_jax.constraints``.
      finished_only, budget, max_prefixes: as for ``strategies.conditional_sample``.
      max_decode_steps: the maximum number of tokens after the last prompt token.

    Returns:
      Decodes int32 ``[B, N, L]`` and scores float32 ``[B, N]``, the log-probabilities under the
      model, sorted by ascending score.

    Raises:
      ValueError: on T5X's own networks, and as ``strategies.conditional_sample``.
    """
    settings = {
        "language": language,
        "finished_only": finished_only,
        "budget": budget,
        "max_prefixes": max_prefixes,
    }
    kind = strategies.ConditionalSample
    return _drawn(kind, arguments, sampling, max_decode_steps, settings)


@decode_fn()
def smc_sample(
    arguments: T5XArguments,
    sampling: TemperatureArguments,
    *,
    language: Transform | None = None,
    potential: Potential | None = None,
    proposal: Transform | None = None,
    finished_only: bool | None = None,
    resampling: str = "systematic",
    ess_threshold: float | Array = 0.5,
    max_decode_steps: int | Array | None = None,
) -> Decodes:
    """Draws texts by particles, given a language and a potential; see ``strategies.smc_sample``.

    For native models only. ``num_decodes`` is the number of particles; where none reached the
    language, texts have no new token and a score of -inf.

    Args:
      inputs, cache, tokens_to_logits, eos_id, decode_rng, num_decodes, cache_offset, initial_index,
        transform, temperature, topk, topp, max_decode_steps, language: as for
        ``conditional_sample``.
      potential, finished_only, resampling, ess_threshold: as for ``strategies.smc_sample``.
      proposal: a transform of the target's logits, by which tokens are drawn.

    Returns:
      As ``conditional_sample``.

    Raises:
      ValueError: on T5X's own networks, and as ``strategies.smc_sample``.
    """
    settings = {
        "language": language,
        "potential": potential,
        "proposal": proposal,
        "finished_only": finished_only,
        "resampling": resampling,
        "ess_threshold": ess_threshold,
    }
    return _drawn(strategies.SMCSample, arguments, sampling, max_decode_steps, settings)


def _drawn(
    made: type[Strategy],
    arguments: T5XArguments,
    sampling: TemperatureArguments,
    max_decode_steps: int | Array | None,
    settings: dict[str, Any],
) -> Decodes:
    call = open_native_call(made, arguments)
    strategy = call.strategy(
        made,
        max_decode_steps,
        num_samples=arguments.num_decodes,
        transform=sampling_transform(call.transform, sampling),
        **settings,
    )
    output = call.run(strategy)
    return call.rising(output, output.log_prob)
