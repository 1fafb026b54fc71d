"""Strategies, one algorithm a file, as plain functions of a model and a prompt.

These are the undecorated functions, for use under a ``jit`` of one's own; ``decoding_jax`` has the
compiled ones. Each file also has ``steps``, which takes its strategy apart for streaming.
"""

from collections.abc import Callable

from decoding_jax.loop import Steps
from decoding_jax.strategies.arithmetic import arithmetic_sample
from decoding_jax.strategies.arithmetic import steps as arithmetic_steps
from decoding_jax.strategies.beam.beam_sample import beam_sample
from decoding_jax.strategies.beam.beam_sample import steps as beam_sample_steps
from decoding_jax.strategies.beam.beam_search import beam_search
from decoding_jax.strategies.beam.beam_search import steps as beam_search_steps
from decoding_jax.strategies.beam.constrained_beam_search import constrained_beam_search
from decoding_jax.strategies.beam.constrained_beam_search import (
    steps as constrained_beam_search_steps,
)
from decoding_jax.strategies.beam.diverse_beam_search import diverse_beam_search
from decoding_jax.strategies.beam.diverse_beam_search import steps as diverse_beam_search_steps
from decoding_jax.strategies.beam.stochastic_beam_search import (
    steps as stochastic_beam_search_steps,
)
from decoding_jax.strategies.beam.stochastic_beam_search import stochastic_beam_search
from decoding_jax.strategies.best_first.best_k import (
    best_first_search,
    best_first_steps,
    best_k_search,
)
from decoding_jax.strategies.best_first.best_k import steps as best_k_steps
from decoding_jax.strategies.greedy import greedy
from decoding_jax.strategies.greedy import steps as greedy_steps
from decoding_jax.strategies.sampling import sample
from decoding_jax.strategies.sampling import steps as sampling_steps
from decoding_jax.strategies.speculative import speculative_sample
from decoding_jax.strategies.speculative import steps as speculative_steps

STEPS: dict[str, Callable[..., Steps]] = {
    "arithmetic_sample": arithmetic_steps,
    "beam_sample": beam_sample_steps,
    "beam_search": beam_search_steps,
    "best_first_search": best_first_steps,
    "best_k_search": best_k_steps,
    "constrained_beam_search": constrained_beam_search_steps,
    "diverse_beam_search": diverse_beam_search_steps,
    "greedy": greedy_steps,
    "sample": sampling_steps,
    "speculative_sample": speculative_steps,
    "stochastic_beam_search": stochastic_beam_search_steps,
}

__all__ = [
    "STEPS",
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
