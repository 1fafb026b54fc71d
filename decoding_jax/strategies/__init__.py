"""Strategies as plain functions of a model and a prompt, one family of algorithms a folder.

These functions are not compiled, for use under a ``jit`` of your own; ``decoding_jax`` has the
compiled ones. ``loop.steps_of`` returns the function that builds the steps of each.
"""

from decoding_jax.strategies.arithmetic import arithmetic_sample
from decoding_jax.strategies.beam import (
    beam_sample,
    beam_search,
    constrained_beam_search,
    diverse_beam_search,
    stochastic_beam_search,
)
from decoding_jax.strategies.best_first import best_first_search, best_k_search
from decoding_jax.strategies.greedy import greedy
from decoding_jax.strategies.sampling import sample
from decoding_jax.strategies.speculative import speculative_sample

__all__ = [
    "arithmetic_sample",
    "beam_sample",
    "beam_search",
    "best_first_search",
    "best_k_search",
    "constrained_beam_search",
    "diverse_beam_search",
    "greedy",
    "sample",
    "speculative_sample",
    "stochastic_beam_search",
]
