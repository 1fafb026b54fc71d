"""Decoding strategies as plain functions of a model and a prompt.

These functions are not compiled, so that you can call them under your own ``jit``. The compiled
ones are in ``decoding_jax``. ``loop.steps_of`` returns the function that builds the steps of a
strategy. Each family of algorithms has a folder.
"""

from decoding_jax.strategies.beam import (
    BeamSample,
    BeamSearch,
    ConstrainedBeamSearch,
    DiverseBeamSearch,
    StochasticBeamSearch,
    beam_sample,
    beam_search,
    constrained_beam_search,
    diverse_beam_search,
    stochastic_beam_search,
)
from decoding_jax.strategies.best_first import (
    BestFirstSearch,
    BestKSearch,
    best_first_search,
    best_k_search,
)
from decoding_jax.strategies.conditional import ConditionalSample, conditional_sample
from decoding_jax.strategies.contrastive import ContrastiveSearch, contrastive_search
from decoding_jax.strategies.metropolis_sample import MetropolisSample, metropolis_sample
from decoding_jax.strategies.particles import PowerSample, SMCSample, power_sample, smc_sample
from decoding_jax.strategies.speculative import SpeculativeSample, speculative_sample
from decoding_jax.strategies.token_by_token import (
    ArithmeticSample,
    Greedy,
    Sample,
    arithmetic_sample,
    greedy,
    sample,
)

__all__ = [
    "ArithmeticSample",
    "BeamSample",
    "BeamSearch",
    "BestFirstSearch",
    "BestKSearch",
    "ConditionalSample",
    "ConstrainedBeamSearch",
    "ContrastiveSearch",
    "DiverseBeamSearch",
    "Greedy",
    "MetropolisSample",
    "PowerSample",
    "SMCSample",
    "Sample",
    "SpeculativeSample",
    "StochasticBeamSearch",
    "arithmetic_sample",
    "beam_sample",
    "beam_search",
    "best_first_search",
    "best_k_search",
    "conditional_sample",
    "constrained_beam_search",
    "contrastive_search",
    "diverse_beam_search",
    "greedy",
    "metropolis_sample",
    "power_sample",
    "sample",
    "smc_sample",
    "speculative_sample",
    "stochastic_beam_search",
]
