"""The beam family: hypotheses of one length that compete at every step."""

from decoding_jax.strategies.beam.beam_search import (
    BeamSample,
    BeamSearch,
    beam_sample,
    beam_search,
)
from decoding_jax.strategies.beam.constrained_beam_search import (
    ConstrainedBeamSearch,
    constrained_beam_search,
)
from decoding_jax.strategies.beam.constraints import Constraints
from decoding_jax.strategies.beam.diverse_beam_search import DiverseBeamSearch, diverse_beam_search
from decoding_jax.strategies.beam.length_penalty import GNMTPenalty, PowerPenalty
from decoding_jax.strategies.beam.stochastic_beam_search import (
    StochasticBeamSearch,
    stochastic_beam_search,
)

__all__ = [
    "BeamSample",
    "BeamSearch",
    "ConstrainedBeamSearch",
    "Constraints",
    "DiverseBeamSearch",
    "GNMTPenalty",
    "PowerPenalty",
    "StochasticBeamSearch",
    "beam_sample",
    "beam_search",
    "constrained_beam_search",
    "diverse_beam_search",
    "stochastic_beam_search",
]
